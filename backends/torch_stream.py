"""Stream mode: torch calls the native recorder around every operator, through ITT."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from stepscope.backends import torch_arm
from stepscope.backends.torch_links import ForwardBackwardLinker
from stepscope.backends.torch_settings import SWITCHES
from stepscope.backends.torch_symbols import enable_numbers
from stepscope.runtime import _core, clock, tracks
from stepscope.runtime.action import ProfilerAction
from stepscope.runtime.detail import Detail
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import Block, EventBatch
from stepscope.runtime.sink import BackendReport, Sink

KEPT_TRACKS = 1024
"""Tracks whose process is remembered."""

_FOREVER = (1 << 63) - 1


class _Emitting(threading.local):
    """torch's `emit_itt()` on this thread, which does not nest, shared by all backends that want it."""

    context: Any = None
    users: int = 0


_emitting = _Emitting()


def emitting() -> bool:
    """Whether operators arrive live on the caller's thread now, which keeps kineto from recording there."""
    return _emitting.users > 0


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
        self._operators = self._switched_on = True
        self._thread = threading.get_ident()  # of `open`, which is that of every transition
        self._cost_ns = 0
        self._notes: list[str] = []
        self._linkers: dict[tuple[int, int], ForwardBackwardLinker] = {}
        self._pids: dict[int, int] = {}
        self._before = _core.itt_statistics()["unbalanced"]
        began = clock.now()
        missing = enable_numbers()
        self._cost_ns += clock.now() - began
        if missing:
            self._note(f"forward and backward operators are not linked: {missing}")
        sink.watermark(_FOREVER)  # events arrive by the recorder, which has a watermark of its own

    @property
    def recording(self) -> bool:
        """Whether torch tells of operators now."""
        return self._recording

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if after.records and not before.records:
            self._switched_on = True
        self._wanted = after.records and not self._closed
        self._settle()

    def set_detail(self, detail: Detail) -> None:
        """Without operators torch does not even tell of them, which is most of what they cost."""
        self._operators = detail.operators
        self._settle()

    def choose(self, chosen: Mapping[str, bool]) -> None:
        """Operators that arrive live have nothing more; a window that was asked for with more before that was known says so."""
        for what in (what for what, on in chosen.items() if on and what in SWITCHES):
            self._note(f"a window has no {what}: operators arrive live; make the backend with mode='kineto'")

    def toggle(self, enable: bool, activities: frozenset[str]) -> bool:
        """Switches operators off and on again, on the thread that records; False if nothing came of it."""
        here = self._wanted and self._thread == threading.get_ident()
        if here and "CPU" in activities:
            self._switched_on = enable
            self._settle()
        return here

    def _settle(self) -> None:
        wanted = self._wanted and self._operators and self._switched_on
        if wanted == self._recording:
            return
        began = clock.now()
        if wanted:
            self._begin()
        else:
            self.abandon()
        self._cost_ns += clock.now() - began

    def abandon(self) -> None:
        """Ends the emission of operators on this thread, if it was begun."""
        if not self._recording:
            return
        self._recording = False
        _emitting.users -= 1
        if _emitting.users == 0:
            context, _emitting.context = _emitting.context, None
            try:
                context.__exit__(None, None, None)
            except RuntimeError as error:
                self._note(f"torch did not end the emission of operators: {error}".partition("\n")[0])

    def derive(self, batch: EventBatch) -> Block:
        """Links forward to backward operators; links stay within one window and one process."""
        key = batch.window, self._process(int(batch.events["track"][0]))
        linker = self._linkers.get(key)
        if linker is None:
            for old in [old for old in self._linkers if old[0] < batch.window - 1]:
                del self._linkers[old]
            linker = self._linkers[key] = ForwardBackwardLinker()
        return linker.feed(batch.events)

    def _process(self, track: int) -> int:
        """The process of a batch, whose events are all of one: processes that were forked count their operators on."""
        pid = self._pids.get(track)
        if pid is None:
            found = tracks.get(track)
            pid = self._pids[track] = 0 if found is None else found.pid
            while len(self._pids) > KEPT_TRACKS:
                del self._pids[next(iter(self._pids))]
        return pid

    async def aclose(self) -> None:
        self._closed = True
        if self._recording:
            self._note("operators are still emitted on the thread that began to: recording was not ended there")

    def report(self) -> BackendReport:
        notes = list(self._notes)
        lost = _core.itt_statistics()["unbalanced"] - self._before
        if lost:
            notes.append(f"{lost} operators that began before recording did, or ended on another thread, are missing")
        return BackendReport(mode="stream", training_thread_ns=self._cost_ns, notes=tuple(notes))

    def _begin(self) -> None:
        if _emitting.users == 0:
            context = self._torch.autograd.profiler.emit_itt()
            try:
                if self._torch.autograd._profiler_enabled():
                    raise RuntimeError("another profiler of torch is active on this thread")
                context.__enter__()
            except RuntimeError as error:
                self._note(f"a window has no operators: {error}".partition("\n")[0])
                return
            _emitting.context = context
        _emitting.users += 1
        self._recording = True

    def _note(self, text: str) -> None:
        if text not in self._notes and len(self._notes) < 16:
            self._notes.append(text)


def check_armed(torch: Any) -> None:
    """Makes sure that torch calls our collector.

    Raises:
        BackendError: if it does not; says why and what to do.
    """
    # ITT's static part loads its collector at the first call, in recent versions.
    torch.profiler.itt.mark("stepscope") if torch.profiler.itt.is_available() else None
    statistics = _core.itt_statistics()
    if not statistics["armed"] or not statistics["domains"]:
        raise BackendError(f"operators cannot arrive live: {torch_arm.reason()}")
