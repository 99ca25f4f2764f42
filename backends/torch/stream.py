"""Stream mode: torch calls the native recorder around every operator, through ITT."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from stepscope.backends.torch import arm as torch_arm
from stepscope.backends.torch.gaps import Gaps
from stepscope.backends.torch.kineto.session import session
from stepscope.backends.torch.kineto.slot import OPERATOR_RUNS, PROGRAM, in_operator, slot
from stepscope.backends.torch.settings import SWITCHES
from stepscope.runtime import _core
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import clock
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import Detail
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.native_threads import get_ident

_FOREVER = (1 << 63) - 1


class _Emission(threading.local):
    """torch's `emit_itt()` on this thread, which does not nest, shared by all modes that want it."""

    def __init__(self) -> None:
        self.context: Any = None
        self._ended_inside: Any = None
        """The one that ended inside of an operator last."""
        self.users: list[StreamMode] = []
        self._watches: weakref.finalize[Any, Any] | None = None
        """Ends the watch of the slot that began when it could not end; the thread's end does so, too."""

    def add(self, user: StreamMode) -> None:
        """A mode wants operators from now on."""
        self.users.append(user)
        if self.context is None:
            self._start()

    def remove(self, user: StreamMode) -> None:
        """A mode wants no more operators."""
        if user in self.users:  # else it was added on another thread
            self.users.remove(user)
        if not self.users:
            self._stop()

    must_stay = False

    def vacate(self, kineto: bool) -> None:
        """Ends the emission for a profiler of the program."""
        if (self.context is not None or self._came_back()) and self._stop():
            self._lack(PROGRAM)

    def reoccupy(self) -> None:
        """Goes on for those that want operators, or ends where it could not before."""
        if not self.users:
            self._stop()
        elif self.context is None:
            self._start()

    def check(self) -> None:
        """Notices that somebody took the slot by a way that is not watched."""
        if self.context is not None and not slot.has_profiler("ITT"):
            self.context, slot.emits = None, False
            self._lack("the program ended the recording of operators, or took torch's slot from it")

    def _start(self) -> None:
        torch: Any = import_module("torch")
        context = torch.autograd.profiler.emit_itt()
        if self._came_back():
            self._resume()
            return
        if slot.all_threads:  # torch would end that recording where ours ends
            self._lack("another profiler of this process records all threads with kineto")
            return
        if not session.free() or slot.is_occupied:
            self._lack(PROGRAM if not session.here else "another profile on this thread records with kineto")
            return
        if slot.operator_runs:
            self._lack(OPERATOR_RUNS)
            return
        try:
            with slot.ours():
                context.__enter__()
        except RuntimeError as error:
            self._lack(f"torch did not begin to emit operators: {error}".partition("\n")[0])
            return
        self.context, slot.emits = context, True
        self._resume()

    def _resume(self) -> None:
        for user in self.users:
            user.gaps.end(clock.now())

    def _came_back(self) -> bool:
        """True if torch has put the emission back that ended inside of an operator, as it does when it leaves the operator."""
        if self._ended_inside is None or self.context is not None or not slot.has_profiler("ITT"):
            return False
        self.context, self._ended_inside, slot.emits = self._ended_inside, None, True
        return True

    def _stop(self) -> bool:
        """Returns whether nothing is emitted any more."""
        if self.context is not None and slot.may_end_another:
            # torch would end that recording. Ours ends when this thread has to do with a profiler again.
            if self._watches is None:
                slot.watch()
                self._watches = weakref.finalize(threading.current_thread(), slot.unwatch)
                self._watches.atexit = False
            return False
        watches, self._watches = self._watches, None
        if watches is not None:
            watches()
        context, self.context, slot.emits = self.context, None, False
        if context is None:
            return True
        self._ended_inside = context if in_operator() else None
        try:
            with slot.ours():
                if slot.has_profiler("ITT"):
                    context.__exit__(None, None, None)
        except RuntimeError as error:
            for user in self.users:
                user.note(f"torch did not end the emission of operators: {error}".partition("\n")[0])
        return True

    def _lack(self, why: str) -> None:
        at = clock.now()
        for user in self.users:
            user.gaps.begin(at, why)


_emission = _Emission()
slot.occupants.append(_emission)


class StreamMode:
    """Switches the operators' events on and off; the recorder has them, so there is nothing to deliver."""

    def __init__(self, sink: Sink) -> None:
        """
        Raises:
            BackendError: if operators cannot arrive live in this process; says why.
        """
        self._torch: Any = import_module("torch")
        check_armed(self._torch)
        self._recording = self._closed = self._wanted = False
        self.gaps = Gaps(sink)
        self._operators = self._switched_on = True
        self._thread = get_ident()  # of `open`, which is that of every transition
        self._cost_ns = 0
        self._notes: list[str] = []
        self._before = _core.itt_statistics()["unbalanced"]
        slot.watch()
        self._watching = ExitStack()
        self._watching.callback(slot.unwatch)
        sink.watermark(_FOREVER)  # events arrive by the recorder, which has a watermark of its own

    @property
    def recording(self) -> bool:
        """True if torch reports operators now."""
        return self._recording and not self.gaps.open

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if after.records and not before.records:
            self._switched_on = True
        self._wanted = after.records and not self._closed
        if self._recording:
            _emission.check()
            self.gaps.end(at, again=self._wanted)  # each window gets its own
            if self._wanted:
                _emission.reoccupy()
        self._apply()

    def set_detail(self, detail: Detail) -> None:
        """Without operators torch does not even call back, which is most of their cost."""
        self._operators = detail.operators
        self._apply()

    def choose(self, chosen: Mapping[str, bool]) -> None:
        """Operators that arrive live have nothing more; a window that was asked for with more before that was known says so."""
        for what in (what for what, on in chosen.items() if on and what in SWITCHES):
            self.note(f"a window has no {what}: operators arrive live; make the backend with mode='kineto'")

    def toggle(self, enable: bool, activities: frozenset[str]) -> bool:
        """Switches operators off and on again, on the thread that records; False if nothing came of it."""
        here = self._wanted and self._thread == get_ident()
        if here and "CPU" in activities:
            self._switched_on = enable
            self._apply()
        return here

    def _apply(self) -> None:
        wanted = self._wanted and self._operators and self._switched_on
        if wanted == self._recording:
            return
        began = clock.now()
        if wanted:
            self._recording = True
            _emission.add(self)
        else:
            self.abandon()
        self._cost_ns += clock.now() - began

    def abandon(self) -> None:
        """Ends the emission of operators on this thread, if it was begun."""
        if self._recording:
            _emission.check()
            self._recording = False
            _emission.remove(self)
            self.gaps.end(clock.now())
        if self._closed:
            self._watching.close()

    async def aclose(self) -> None:
        self._closed = True
        if self._recording:
            self.note("operators are still emitted on the thread that began to: recording was not ended there")
        else:
            self._watching.close()

    def report(self) -> BackendReport:
        notes = [*self._notes, *self.gaps.notes()]
        lost = _core.itt_statistics()["unbalanced"] - self._before
        if lost:
            notes.append(f"{lost} operators that began before recording did, or ended on another thread, are missing")
        return BackendReport(mode="stream", training_thread_ns=self._cost_ns, notes=tuple(notes))

    def note(self, text: str) -> None:
        """Keeps a sentence for the report, once."""
        if text not in self._notes and len(self._notes) < 16:
            self._notes.append(text)


def check_armed(torch: Any) -> None:
    """Makes sure that torch calls our collector.

    Raises:
        BackendError: if it does not; says why and what to do.
    """
    # ITT's static part loads its collector at the first call, in recent versions.
    torch.profiler.itt.mark(_core.ITT_UNRECORDED) if torch.profiler.itt.is_available() else None
    statistics = _core.itt_statistics()
    if not statistics["armed"] or not statistics["domains"]:
        raise BackendError(f"operators cannot arrive live: {torch_arm.reason()}")
