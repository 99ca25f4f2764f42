"""Thread-bound backends: only the thread that opened them calls them."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

from stepscope.runtime.errors import BackendError, ClosedError
from stepscope.runtime.events import clock
from stepscope.runtime.inbox.inbox import Inbox
from stepscope.runtime.inbox.messages import Message
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import FULL, Detail
from stepscope.runtime.sources.source import Producer, Source
from stepscope.runtime.threads.one_shot import OneShot

log = logging.getLogger("stepscope")

_MAX_WAITING = 256
_POLL_S = 0.05
"""Seconds between two checks whether a thread is alive."""


class _Token:
    """Identifies a thread. Unlike its number, it is never reused, and is freed with the thread."""


class _Here(threading.local):
    def __init__(self) -> None:
        self.token = _Token()


_here = _Here()


class BoundSource(Source):
    """A source whose backend is opened and switched on one thread only.

    A change on another thread waits until the bound thread calls `carry_out`, at its next `step()`. If that thread has ended, the
    change is refused: torch's profiler, for example, records nothing or crashes if another thread stops it.
    """

    def __init__(self, backend: Producer, inbox: Inbox[Message], enter: Callable[[], object]) -> None:
        super().__init__(backend, inbox, enter)
        self._thread: weakref.ref[_Token] | None = None
        self._thread_name, self._thread_number = "", 0
        self._one_thread_until = 0
        """End of the latest recording of one thread only, in ns. A window asks soon after its end, when it closes."""
        self._waiting: deque[tuple[ProfilerAction, ProfilerAction, int]] = deque()
        self._passed = 0
        self._detail = self._reported_detail = FULL
        self.wanted = False
        """Whether the next thread that calls `step()` opens it."""
        self._opening = False
        """Whether it opens the backend now."""
        self.refused = ""
        """Why the latest refused change was refused; empty if there is none."""
        self._idle: OneShot[None] = OneShot()
        """Set when no change waits for the bound thread."""

    @property
    def expected(self) -> bool:
        return self.open or self.wanted or self._opening

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
        """Name and system number of the bound thread, or of the last one."""
        return self._thread_name, self._thread_number

    @property
    def records_one_thread(self) -> bool:
        """Whether the backend records now, and its own thread only."""
        return bool(getattr(self.backend, "one_thread", False))

    def recorded_one_thread(self, since: int) -> bool:
        """Whether the backend recorded its own thread only, at a time after `since`, in ns. Any thread may call."""
        # The backend first: at a change it is asked before it is called.
        return self.records_one_thread or self._one_thread_until > since

    def _note_change(self, at: int) -> None:
        """The action of the backend is about to change."""
        if self.records_one_thread:
            self._one_thread_until = at

    @property
    def pending(self) -> bool:
        """Whether a change waits for a call of `step()` on the bound thread."""
        return (
            self.wanted or bool(self._waiting) or (self.open and self.tunable and self._reported_detail != self._detail)
        )

    def start(self) -> None:
        """Opens the backend, and binds it to the current thread."""
        self._opening = True  # it may take seconds, in which the loop still expects events
        self.wanted = False
        self._thread, self._thread_name = weakref.ref(_here.token), threading.current_thread().name
        self._thread_number = threading.get_native_id()
        self._reported_detail = FULL
        try:
            super().start()
        finally:
            self._opening = False

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if not self.open:
            return
        if self.lost:
            self._refuse(after, at)
        elif self.here and not self._waiting:
            self._note_change(at)
            super().transition(before, after, at)
        elif not self._waiting or self._waiting[-1] != (before, after, at):
            self._wait(before, after, at)

    def set_detail(self, detail: Detail) -> None:
        self._detail = detail
        if self.here:
            self._report_detail()

    def carry_out(self, action: ProfilerAction, at: int, *, stepping: bool) -> None:
        """Makes the waiting changes if this is the bound thread. If the backend waits for a thread, opens it if this one is stepping, and
        reports the current action.
        """
        if self.wanted and stepping:
            self.start()
            self._report_detail()
            if action is not ProfilerAction.NONE:
                super().transition(ProfilerAction.NONE, action, at)
        if not self.here:
            return
        self._report_detail()
        while self._waiting:
            change = self._waiting[0]
            self._note_change(change[2])
            # Also after it was closed: only this thread can end what it began. The change is removed afterwards, as a signal
            # handler may raise.
            self._guard("transition", partial(self.backend.transition, *change))
            self._waiting.popleft()
        self._changes_done()

    def waiting_note(self) -> str:
        """Text on waiting changes; empty if there are none."""
        if self.wanted:
            return f"backend {self.name!r} was not opened: no thread has called step() since start()"
        if not self._waiting:
            return ""
        after = self._waiting[-1][1].name
        why = "has ended" if self.lost else "has not called step() since"
        return (
            f"backend {self.name!r} did not get the change to {after}: it is bound to the thread "
            f"{self._thread_name!r}, which {why}; call stop() there, or go on stepping until it is done"
        )

    def _report_detail(self) -> None:
        if self._reported_detail != self._detail:
            self._reported_detail = self._detail
            super().set_detail(self._detail)

    def _wait(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self._idle.done:
            self._idle = OneShot()
        self._waiting.append((before, after, at))
        # A recording that should begin and end meanwhile is dropped. Its watermark follows when the other changes are made.
        for number, (start, _, _) in enumerate(self._waiting):
            if start is after and not start.records:
                missed = any(action.records for _, action, _ in list(self._waiting)[number:])
                while len(self._waiting) > number:
                    self._waiting.pop()
                self._passed = at
                if missed:
                    self._miss()
                break
        if len(self._waiting) > _MAX_WAITING:
            start = self._waiting[0][0]
            self._waiting.clear()
            self._waiting.append((start, after, at))
        if not self._waiting:
            self._changes_done()

    def _miss(self) -> None:
        """A recording began and ended while the bound thread did not step."""
        self.record(
            "transition",
            BackendError(
                f"a window has nothing of {self.name!r}: it is bound to the thread {self._thread_name!r}, which did not call "
                "step() between its begin and its end; call start() where step() is called"
            ),
        )

    def wait_for_thread(self, seconds: float) -> None:
        """Waits until the bound thread has made its changes, or has ended."""
        deadline = clock.now() + round(seconds * 1e9)
        while self._waiting and not self.lost and clock.now() < deadline:
            self._idle.wait(min(_POLL_S, (deadline - clock.now()) / 1e9))

    def abandon_changes(self) -> str:
        """Refuses waiting changes, as the profiler closes. Windows no longer wait for them.

        Returns:
            Text on these changes; empty if there were none.
        """
        text = self.waiting_note()
        if text and not self.wanted:  # without a step a note is enough
            self.record("transition", BackendError(text))
            if self.lost:
                self._orphan()
            self._passed = max([self._passed, *(at for _, _, at in self._waiting)])
            if self._passed:
                self._state_watermark(self._passed)
        return text

    def _changes_done(self) -> None:
        if self._passed:
            self._state_watermark(self._passed)
            self._passed = 0
        self._idle.set_result(None)

    def _refuse(self, after: ProfilerAction, at: int) -> None:
        self._waiting.clear()
        self._idle.set_result(None)
        self._state_watermark(at)
        self._orphan()
        self.refused = (
            f"the change to {after.name} was refused: {self.name!r} is bound to the thread {self._thread_name!r}, which "
            "has ended; call start() and stop() on a thread that lives as long as the training loop"
        )
        log.error("%s", self.refused)
        self.record("transition", BackendError(self.refused))

    def _orphan(self) -> None:
        orphaned: Callable[[], None] | None = getattr(self.backend, "orphaned", None)
        if orphaned is not None:
            self._guard("orphaned", orphaned)

    def _state_watermark(self, at: int) -> None:
        try:
            self._sink.watermark(at)
        except ClosedError:
            return  # the profiler was closed meanwhile


def source_of(backend: Producer, inbox: Inbox[Message], enter: Callable[[], object]) -> Source:
    """Makes the source of a backend."""
    return (BoundSource if backend.thread_bound else Source)(backend, inbox, enter)
