"""The base of `Profiler` and `profile`: starts and stops captures."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

from stepscope.compat.mindspore.options.options import ProfilerOptions
from stepscope.compat.mindspore.options.schedule import TraceHandler
from stepscope.compat.mindspore.recording.capture import Capture, CapturedWindow, CaptureSettings, CostEstimate
from stepscope.compat.mindspore.sources.backends import limits
from stepscope.compat.mindspore.sources.device import detect_target
from stepscope.runtime import _core
from stepscope.runtime.control.settings import Control
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.export.run import Metadata
from stepscope.runtime.report.run_report import RunReport
from stepscope.runtime.settings.arguments import got

T = TypeVar("T")

log = logging.getLogger("stepscope")

MOST_CAPTURES = 64
"""Captures with options of their own whose windows can be asked for afterwards."""


class Recording:
    """Records captures, each from `start()` to `stop()`, any number of them. Several may run at once.

    The log and `limitations` name options that the device cannot follow, when they are read; the log and `estimate` have what
    recording is likely to cost, when it starts.
    """

    def __init__(
        self,
        options: ProfilerOptions,
        schedule: Any,
        on_trace_ready: Any,
        *,
        who: str,
        strict_start: bool,
        control: str | os.PathLike[str] | Control | None = None,
    ) -> None:
        """
        Args:
            options, schedule, on_trace_ready, control: see `Profiler`.
            who: name of the class, for messages.
            strict_start: whether `start()` is refused if the options start at once, as MindSpore's `Profiler` does.

        Raises:
            TypeError: if schedule or handler are not callable, or `control` is none.
            RuntimeError: if MindSpore is set to a device that nobody knows.
        """
        for name, value in (("schedule", schedule), ("on_trace_ready", on_trace_ready)):
            if value is not None and not callable(value):
                raise TypeError(f"{who}: {name} must be callable, {got(value)}")
        controlled = Control.of(control)
        self.options = options
        self.target = detect_target()
        self.limitations: tuple[str, ...] = ()
        """Requested data that cannot be recorded here, in words."""
        self._who, self._strict_start = who, strict_start
        handler = on_trace_ready if isinstance(on_trace_ready, TraceHandler) else None
        callback = None if handler is not None else on_trace_ready
        self._settings = CaptureSettings(schedule, handler, callback, controlled, Metadata())
        self._captures: list[Capture] = []
        self._capture: Capture | None = None
        self._next_step = 0
        self._note_limitations()

    def _note_limitations(self) -> None:
        self.limitations = limits(self.options.requested(), self.target)
        for text in (*self.limitations, *self.target.notes):
            log.warning("%s: %s", self._who, text)

    @property
    def recording(self) -> bool:
        """Whether it was started and not stopped."""
        return self._capture is not None

    @property
    def windows(self) -> tuple[CapturedWindow, ...]:
        """The windows so far, each with its directory."""
        return tuple(window for capture in self._captures for window in capture.windows)

    @property
    def directories(self) -> tuple[Path, ...]:
        """Directories of the windows so far."""
        return tuple(window.directory for window in self.windows)

    @property
    def step_num(self) -> int:
        """Number of the current step. Set it before `start()` to go on where a run ended, or to count from 1."""
        return self._next_step if self._capture is None else self._capture.profiler.step_num

    @step_num.setter
    def step_num(self, step: int) -> None:
        if self._capture is not None:
            raise ProfilerStateError("step_num can be set before start(), not while it records")
        self._next_step = step

    def start(self) -> None:
        """Begins to record.

        Raises:
            RuntimeError: if it records already, or the profiler starts by itself (`start_profile=True`).
            ProfilerIOException: if nothing can be written to the output path.
            ControlError: if STEPSCOPE_OPTIONS cannot be followed. A `ValueError`.
        """
        if self._capture is not None:
            raise ProfilerStateError(f"{self._who}.start(): it has started already; call stop() first")
        if self._strict_start and self.options.start_profile:
            raise ProfilerStateError(
                f"{self._who}.start(): it starts by itself; make it with start_profile=False to start it later"
            )
        self._start()

    def start_capture(self, options: ProfilerOptions, step: int) -> Capture:
        """Begins a capture with options of its own. The caller has chosen its first step and its directory, so STEPSCOPE_OPTIONS has
        no say in them. Of all captures, `MOST_CAPTURES` are remembered.

        Raises:
            ProfilerIOException: if nothing can be written to the output path.
        """
        self.options, self._next_step = options, step
        self._note_limitations()
        capture = self._start(steps_are_fixed=True)
        del self._captures[:-MOST_CAPTURES]
        return capture

    @property
    def estimate(self) -> CostEstimate:
        """The likely cost of recording, by the recordings of this profiler so far."""
        return CostEstimate.by([capture.cost for capture in self._captures if capture.cost is not None])

    def _start(self, *, steps_are_fixed: bool = False) -> Capture:
        log.info("%s: recording begins; %s", self._who, self.estimate)
        self.target = detect_target()  # a framework may have been imported meanwhile
        capture = Capture(self, self._settings, self._next_step, steps_are_fixed=steps_are_fixed)
        capture.begin()
        self._capture = capture
        self._captures.append(capture)
        return capture

    def stop(self) -> None:
        """Ends recording, and waits until what was recorded is on disk; for the products, if a handler makes them.

        Raises:
            RuntimeError: if it does not record.
        """
        if self._capture is None:
            raise ProfilerStateError(f"{self._who}.stop(): it has not started; call start() first")
        self._stop()

    def _stop(self) -> None:
        made = self._end()
        if made is not None:
            made.result()

    def _end(self) -> Future[None] | None:
        """Ends the capture, if there is one; returns what to wait for."""
        capture, self._capture = self._capture, None
        if capture is None:
            return None
        self._next_step = capture.profiler.step_num
        capture.end()
        handler = self._settings.handler
        if handler is None or not handler.analyse_flag:
            return None
        made = capture.simplify()
        return None if handler.async_mode else made

    def step(self) -> None:
        """Ends a step. While it does not record the step is only counted."""
        if self._capture is None:
            self._next_step += 1
        else:
            self._capture.step()

    def watch_data(self, loader: Iterable[T]) -> Iterator[T]:
        """Yields what a loader yields, and records the time that the loop waits for each as a span `data_wait`."""
        batches = iter(loader)
        while True:
            with _core.span("data_wait", category="dataloader"):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch

    def add_metadata(self, key: str, value: Any) -> None:
        """Adds a fact to `profiler_metadata.json` of this and all later windows; the same key again replaces it.

        Args:
            key: its name.
            value: anything that JSON can hold.

        Raises:
            TypeError: if the key is no str.
        """
        self._settings.metadata.add(key, value)
        if self._capture is not None:
            self._capture.profiler.add_metadata(key, value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Adds a fact given as JSON text. Text that is not JSON stays a str, and is logged.

        Raises:
            TypeError: if key or value is no str.
        """
        self._settings.metadata.add_json(key, value)
        if self._capture is not None:
            self._capture.profiler.add_metadata_json(key, value)

    def discard_capture(self) -> None:
        """Ends the current capture, and deletes its files."""
        capture, self._capture = self._capture, None
        if capture is not None:
            self._captures.remove(capture)
            capture.discard()

    def trust_report(self) -> RunReport | None:
        """Events that the latest recording captured and dropped, and its cost; `None` before the first."""
        return self._captures[-1].profiler.report() if self._captures else None

    def raise_errors(self) -> None:
        """Raises what backends and the program's own `on_trace_ready` raised so far, if anything.

        Raises:
            ExceptionGroup: of what the latest recording kept.
        """
        if self._captures:
            self._captures[-1].profiler.raise_errors()

    def __enter__(self) -> Self:
        if self.options.start_profile and self._capture is None:
            self._start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        # Backends may be bound to this thread, so it ends here; the waiting for products is done elsewhere.
        made = self._end()
        if made is not None:
            await asyncio.wrap_future(made)
