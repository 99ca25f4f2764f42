"""Backends that are bound to a thread: every call comes from the thread that opened them, or waits for it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

from stepscope.runtime.errors import BackendError, ClosedError
from stepscope.runtime.events import clock
from stepscope.runtime.events.intervals import Interval
from stepscope.runtime.inbox.inbox import Inbox
from stepscope.runtime.inbox.messages import Message
from stepscope.runtime.options import Options
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import FULL, Detail
from stepscope.runtime.sources.recording_intervals import RecordingIntervals
from stepscope.runtime.sources.source import Producer, Source
from stepscope.runtime.threads.one_shot import OneShot

log = logging.getLogger("stepscope")

_MOST_WAITING = 256
_LOOK = 0.05
"""Seconds between two looks at whether a thread is alive."""


class _Token:
    """Stands for a thread. Unlike its number it is never given to another one, and ends with it."""


class _Here(threading.local):
    def __init__(self) -> None:
        self.token = _Token()


_here = _Here()


class BoundSource(Source):
    """A source whose backend is opened and switched on one thread only.

    A change that is asked for on another thread waits until the bound one calls `carry_out`, which it does at its next
    `step()`. If that thread has ended the change is refused, as nobody could make it: torch's profiler, for one,
    records nothing or crashes when it is stopped by another thread than the one that started it.
    """

    def __init__(self, backend: Producer, inbox: Inbox[Message], options: Options, enter: Callable[[], object]) -> None:
        super().__init__(backend, inbox, options, enter)
        self._thread: weakref.ref[_Token] | None = None
        self._thread_name, self._thread_number = "", 0
        self._listening = RecordingIntervals(backend)
        self._waiting: deque[tuple[ProfilerAction, ProfilerAction, int]] = deque()
        self._passed = 0
        self._detail = self._told = FULL
        self.wanted = False
        """To be opened by the thread that calls `step()` next."""
        self.refused = ""
        """Why a change was refused, the latest; empty if none was."""
        self._settled: OneShot[None] = OneShot()
        """Given when nothing waits for the bound thread."""

    @property
    def expected(self) -> bool:
        return self.open or self.wanted

    @property
    def here(self) -> bool:
        """Whether the caller's thread is the bound one."""
        return self._thread is not None and self._thread() is _here.token

    @property
    def lost(self) -> bool:
        """Whether the bound thread has ended."""
        return self._thread is not None and self._thread() is None

    @property
    def thread(self) -> tuple[str, int]:
        """Name and number of the bound thread, as the system numbers threads; of the latest one that it was."""
        return self._thread_name, self._thread_number

    @property
    def may_miss_threads(self) -> bool:
        """Whether the backend may record one thread only."""
        return hasattr(self.backend, "one_thread")

    def listened_alone(self, interval: Interval) -> bool:
        """Whether the backend recorded its own thread only, in this time or a part of it; on any thread."""
        return self._listening.during(interval)

    @property
    def pending(self) -> bool:
        """Whether something waits for a call of `step()` on the bound thread."""
        return self.wanted or bool(self._waiting) or (self.open and self.tunable and self._told != self._detail)

    def start(self) -> None:
        """Opens the backend here: this is its thread from now on."""
        self.wanted = False
        self._thread, self._thread_name = weakref.ref(_here.token), threading.current_thread().name
        self._thread_number = threading.get_native_id()
        self._told = FULL
        super().start()

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if not self.open:
            return
        if self.lost:
            self._refuse(after, at)
        elif self.here and not self._waiting:
            self._listening.change(before, after, at)
            super().transition(before, after, at)
        elif not self._waiting or self._waiting[-1] != (before, after, at):
            self._wait(before, after, at)

    def set_detail(self, detail: Detail) -> None:
        self._detail = detail
        if self.here:
            self._tell_detail()

    def carry_out(self, action: ProfilerAction, at: int, *, stepping: bool) -> None:
        """Makes the changes that wait for this thread, if it is the bound one; opens what waits to be opened.

        Args:
            action: of the profiler now.
            at: now, in ns.
            stepping: whether this thread has called `step()`.
        """
        if self.wanted and stepping:
            self.start()
            self._tell_detail()
            if action is not ProfilerAction.NONE:
                self._listening.change(ProfilerAction.NONE, action, at)
                super().transition(ProfilerAction.NONE, action, at)
        if not self.here:
            return
        self._tell_detail()
        while self._waiting:
            change = self._waiting[0]
            self._listening.change(*change)
            # Also after it was closed: what it began here nobody else can end. It waits until it is done: a signal handler
            # may raise.
            self._guard("transition", partial(self.backend.transition, *change))
            self._waiting.popleft()
        self._settle()

    def unsettled(self) -> str:
        """What is to be said of changes that nobody has made; empty if there are none."""
        if self.wanted:
            return f"backend {self.name!r} was not opened: no thread has called step() since start()"
        if not self._waiting:
            return ""
        after = self._waiting[-1][1].name
        why = "has ended" if self.lost else "has not called step() since"
        return (
            f"backend {self.name!r} was not told of the change to {after}: it is bound to the thread "
            f"{self._thread_name!r}, which {why}; call stop() there, or go on stepping until it is done"
        )

    def _tell_detail(self) -> None:
        if self._told != self._detail:
            self._told = self._detail
            super().set_detail(self._detail)

    def _wait(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self._settled.done:
            self._settled = OneShot()
        self._waiting.append((before, after, at))
        # A recording that was to begin and end in the meantime never was. Windows are told of that when the rest is done.
        for number, (start, _, _) in enumerate(self._waiting):
            if start is after and not start.records:
                missed = any(action.records for _, action, _ in list(self._waiting)[number:])
                while len(self._waiting) > number:
                    self._waiting.pop()
                self._passed = at
                if missed:
                    self._miss()
                break
        if len(self._waiting) > _MOST_WAITING:
            start = self._waiting[0][0]
            self._waiting.clear()
            self._waiting.append((start, after, at))
        if not self._waiting:
            self._settle()

    def _miss(self) -> None:
        """A recording began and ended elsewhere while the bound thread did not step."""
        self.keep(
            "transition",
            BackendError(
                f"a window has nothing of {self.name!r}: it is bound to the thread {self._thread_name!r}, which did not call "
                "step() between its begin and its end; call start() where step() is called"
            ),
        )

    def wait_for_thread(self, seconds: float) -> None:
        """Waits until the bound thread has made the changes that wait for it, or has ended."""
        deadline = clock.now() + round(seconds * 1e9)
        while self._waiting and not self.lost and clock.now() < deadline:
            self._settled.wait(min(_LOOK, (deadline - clock.now()) / 1e9))

    def give_up(self) -> str:
        """The profiler closes: what still waits is refused, and windows wait for it no longer.

        Returns:
            What is to be said of it; empty if nothing waited.
        """
        text = self.unsettled()
        if text:
            self.keep("transition", BackendError(text))
            if self.lost:
                self._orphan()
            self._passed = max([self._passed, *(at for _, _, at in self._waiting)])
            if self._passed:
                self._state_watermark(self._passed)
        return text

    def _settle(self) -> None:
        if self._passed:
            self._state_watermark(self._passed)
            self._passed = 0
        self._settled.set_result(None)

    def _refuse(self, after: ProfilerAction, at: int) -> None:
        self._waiting.clear()
        self._settled.set_result(None)
        self._state_watermark(at)
        self._orphan()
        self.refused = (
            f"the change to {after.name} was refused: {self.name!r} is bound to the thread {self._thread_name!r}, which "
            "has ended; call start() and stop() on a thread that lives as long as the training loop"
        )
        log.error("%s", self.refused)
        self.keep("transition", BackendError(self.refused))

    def _orphan(self) -> None:
        orphaned: Callable[[], None] | None = getattr(self.backend, "orphaned", None)
        if orphaned is not None:
            self._guard("orphaned", orphaned)

    def _state_watermark(self, at: int) -> None:
        try:
            self._sink.watermark(at)
        except ClosedError:
            return  # The profiler was closed in the meantime: nobody waits any more.


def source_of(backend: Producer, inbox: Inbox[Message], options: Options, enter: Callable[[], object]) -> Source:
    """The source that a backend needs."""
    return (BoundSource if backend.thread_bound else Source)(backend, inbox, options, enter)
