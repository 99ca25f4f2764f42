"""Kineto mode: torch's own profiler, driven on the training thread and read off it."""

from __future__ import annotations

import threading
from collections import Counter
from importlib import import_module
from typing import Any

from stepscope.backends.kineto_blocks import MARKER
from stepscope.backends.kineto_worker import FinishedTrace, KinetoWorker
from stepscope.backends.torch_settings import TorchSettings
from stepscope.runtime import clock
from stepscope.runtime.action import ProfilerAction
from stepscope.runtime.clock import ClockAnchor
from stepscope.runtime.detail import FULL, Detail
from stepscope.runtime.sink import BackendReport, Sink

_lock = threading.Lock()
_owner: KinetoMode | None = None
"""Who records with kineto now, or has prepared to: it is one for the process, and two at once crash it."""

_DEVICES = ("CUDA", "XPU", "MTIA", "HPU")


class KinetoMode:
    """Records with kineto. All calls but `aclose` and `report` come from the training thread."""

    def __init__(self, settings: TorchSettings, sink: Sink) -> None:
        self._torch: Any = import_module("torch")
        self._autograd: Any = import_module("torch.autograd.profiler")
        self._settings = settings
        self._worker = KinetoWorker(sink)
        self._profile: Any = None
        self._recording = self._closed = False
        self._anchor: ClockAnchor | None = None
        self._brackets: list[tuple[int, int]] = []
        self._problems: Counter[str] = Counter()
        self._cost_ns = 0
        self._config = self._experimental_config()
        self._device = self._find_device()
        self._detail = FULL

    def set_detail(self, detail: Detail) -> None:
        """For windows that are prepared from now on: without what costs most, or none at all."""
        self._detail = detail

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self._closed:
            self.abandon()
            return
        began = clock.now()
        recorded = self._recording
        if recorded and (not after.records or before is ProfilerAction.RECORD_AND_SAVE):
            self._stop(at)
        if after is ProfilerAction.WARMUP and self._profile is None:
            self._prepare()
        elif after.records and not self._recording:
            self._start()
        elif after is ProfilerAction.NONE and self._profile is not None:
            # Warmed up for nothing. torch has no way back but to record, and to throw it away.
            self._start()
            self.abandon()
        if not recorded:
            self._worker.put(at)
        self._cost_ns += clock.now() - began

    def abandon(self) -> None:
        """Ends a recording and throws it away."""
        if self._recording:
            self._recording = False
            self._discard()

    def orphaned(self) -> None:
        """The thread that records has ended. A session that is left to itself crashes torch when the process exits, so it
        is ended from here; what it recorded cannot be had."""
        if not self._recording:
            return
        self._recording, self._profile = False, None
        self._problems["the last window was lost: the thread that recorded it has ended"] += 1
        try:
            self._torch.autograd._disable_profiler()
        except RuntimeError as error:
            self._problems[f"torch's profiler did not end: {_first_line(error)}"] += 1
        self._let_go()

    async def aclose(self) -> None:
        self._closed = True
        if self._recording:
            self._problems["the last window was lost: recording was not ended on the thread that began it"] += 1
        await self._worker.aclose()

    def report(self) -> BackendReport:
        problems = self._problems + self._worker.problems
        return BackendReport(
            mode="kineto",
            clock=f"CLOCK_REALTIME as kineto has it, mapped by two readings per window; {self._worker.clock_error_ns} ns "
            "off at most where it was checked",
            training_thread_ns=self._cost_ns,
            notes=tuple(text if n == 1 else f"{text} ({n} times)" for text, n in problems.items()),
        )

    def _prepare(self) -> None:
        global _owner
        settings = self._settings
        if not self._detail.operators:
            self._problems["a window has no operators, to keep within overhead_budget"] += 1
            return
        whole = self._detail.backends
        if not whole and settings.beyond_stream:
            self._problems[
                "a window has neither shapes, stacks, memory nor the like, to keep within overhead_budget"
            ] += 1
        with _lock:
            if _owner is not None and _owner is not self:
                self._problems["a window has no operators: another profiler of this process records with kineto"] += 1
                return
            _owner = self
        arguments: dict[str, Any] = {}
        if settings.filters:
            arguments["activity_filters"] = settings.filters
        profile = self._autograd.profile(
            use_kineto=True,
            use_cpu="CPU" in settings.activities if settings.activities else True,
            use_device=self._device,
            record_shapes=whole and settings.record_shapes,
            profile_memory=whole and settings.profile_memory,
            with_stack=whole and settings.with_stack,
            with_flops=whole and settings.with_flops,
            with_modules=whole and settings.with_modules,
            experimental_config=self._config,
            **arguments,
        )
        if self._refused("prepare", profile._prepare_trace):
            self._let_go()
            return
        self._profile = profile

    def _start(self) -> None:
        if self._profile is None:
            self._prepare()
        if self._profile is None or self._refused("start", self._profile._start_trace):
            self._profile = None
            self._let_go()
            return
        self._recording = True
        self._brackets = []
        self._mark()
        self._anchor = ClockAnchor.read()

    def _stop(self, at: int) -> None:
        assert self._anchor is not None
        self._mark()
        anchors = self._anchor, ClockAnchor.read()
        result = self._discard()
        self._recording = False
        if result is None:
            self._worker.put(at)
            return
        self._worker.put(FinishedTrace(result, at, anchors, tuple(self._brackets), self._settings.with_flops))

    def _discard(self) -> Any:
        """Stops torch's profiler; returns what it recorded."""
        profile, self._profile = self._profile, None
        try:
            if profile is None or self._refused("stop", lambda: profile.__exit__(None, None, None)):
                return None
            return profile.kineto_results
        finally:
            self._let_go()

    def _let_go(self) -> None:
        global _owner
        with _lock:
            if _owner is self:
                _owner = None

    def _refused(self, what: str, call: Any) -> bool:
        """Makes a call of torch's profiler; if torch refuses, the window goes without."""
        try:
            if what != "stop" and self._torch.autograd._profiler_enabled():
                raise RuntimeError("another profiler of torch is active on this thread")
            call()
        except (RuntimeError, AssertionError, ValueError) as error:
            self._problems[f"a window has no operators, torch's profiler did not {what}: {_first_line(error)}"] += 1
            return True
        return False

    def _mark(self) -> None:
        """An operator whose begin is known by our clock, to check kineto's clock by."""
        record = getattr(self._torch._C._profiler, "_RecordFunctionFast", None)
        if record is None:
            return
        marker = record(MARKER)
        before = clock.now()
        marker.__enter__()
        after = clock.now()
        marker.__exit__(None, None, None)
        self._brackets.append((before, after))

    def _experimental_config(self) -> Any:
        """The user's, or the one that stops fastest: without torch's own post-processing, where nothing needs it."""
        settings = self._settings
        if settings.experimental_config is not None:
            return settings.experimental_config
        make = self._torch._C._profiler._ExperimentalConfig
        if settings.with_stack or settings.with_flops:
            return make()
        try:
            return make(trace_only=True)
        except TypeError:
            return make()

    def _find_device(self) -> str | None:
        for name in _DEVICES:
            module = getattr(self._torch, name.lower(), None)
            asked = not self._settings.activities or name in self._settings.activities
            if asked and module is not None and hasattr(module, "is_available") and module.is_available():
                return name.lower()
        return None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
