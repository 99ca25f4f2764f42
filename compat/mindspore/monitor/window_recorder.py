"""Records the windows of `DynamicProfilerMonitor`, each in a directory that is named after its steps."""

from __future__ import annotations

import logging
from pathlib import Path

from stepscope.compat.mindspore.monitor.dynamic_args import UNSET_PATH, DynamicProfilerArgs
from stepscope.compat.mindspore.options.options import read_options
from stepscope.compat.mindspore.output_layout import METADATA, STEPS_PER_CALL
from stepscope.compat.mindspore.profiler import Profiler
from stepscope.compat.mindspore.recording.capture import Capture, analyse_captures
from stepscope.runtime import _core
from stepscope.runtime.requests.armed_window import ArmedWindow, recorded_name

log = logging.getLogger("stepscope")


class WindowRecorder:
    """Records the windows of one rank, one after the other. Each is a capture of one profiler, with the options in the file.
    Nothing raises: training goes on without a window."""

    def __init__(self, rank: int, output_path: Path) -> None:
        """Args: of this process; where windows go unless a configuration says."""
        self.profiler = Profiler(output_path=output_path, start_profile=False)
        self.steps_per_call = 1
        """Steps of training for each step of the trace."""
        self._rank, self._output_path = rank, output_path
        self._capture: Capture | None = None
        """The open window."""
        self._mode: str | None = None
        self._into = output_path
        self._waiting: _core.span | None = None

    @property
    def recording(self) -> bool:
        """Whether a window is open."""
        return self._capture is not None

    def begin(self, window: ArmedWindow, config: DynamicProfilerArgs) -> bool:
        """Begins a window. Returns whether it could."""
        first, last = window.first, window.last
        self._into = self._output_path if config.prof_path == UNSET_PATH else Path(config.prof_path)
        try:
            options = read_options({"output_path": self._directory(window), **config.args}, "Profiler")
            about = {**window.facts(), "run_id": window.request.run_id, STEPS_PER_CALL: self.steps_per_call}
            self.profiler.add_metadata(METADATA, about)
            self._capture = self.profiler.start_capture(options, first)
        except Exception as error:  # training goes on without
            log.error("[Dynamic Profiler] rank %d: the window cannot begin: %s", self._rank, error)
            return False
        self._mode = config.analyse_mode
        self._mark("start", window)
        self._log("start", window, f"start at step {first}, will stop at step {last}")
        return True

    def step(self, ended: ArmedWindow | None = None) -> None:
        """A step of the window has ended, and with it the window, if that is given."""
        if self._capture is None:
            return
        if ended is not None:
            self._mark("stop", ended)
        self.profiler.step()
        if ended is not None:
            self.finish(ended)

    def begin_wait(self) -> None:
        """Begins a span for the wait for data, between two steps."""
        if self._capture is not None:
            self._waiting = _core.span("data_wait", category="dataloader")
            self._waiting.__enter__()

    def end_wait(self) -> None:
        """Ends the span for the wait for data."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.__exit__(None, None, None)

    def finish(self, ended: ArmedWindow) -> None:
        """Ends the window, which gets its name, and has it analysed."""
        capture, self._capture = self._capture, None
        self.end_wait()
        if capture is None:
            return
        try:
            capture.cut_reason = ended.reason if ended.state == "cut" else ""
            self.profiler.stop()
            capture.move(self._directory(ended))
            if self._mode is not None:
                analyse_captures([capture], waits=self._mode == "sync")
        except Exception as error:  # training goes on; raw data are kept
            log.error("[Dynamic Profiler] rank %d: the window did not end well: %s", self._rank, error)
        why = f": {ended.reason}" if ended.state in ("aborted", "cut") else ""
        self._log("stop", ended, f"stop at step {ended.last}{why}")

    def discard(self) -> None:
        """Forgets the window that runs, and what it has recorded."""
        self._capture = None
        self.profiler.discard_capture()

    def analyse_in_background(self) -> None:
        """The window's end waits for no products."""
        self._mode = self._mode and "async"

    def _directory(self, window: ArmedWindow) -> Path:
        return self._into / recorded_name(self._rank, window.first, window.last, window.request.run_id)

    def _mark(self, event: str, window: ArmedWindow) -> None:
        """Marks the trace, in the current step."""
        _core.instant(f"dynamic profiler: {event}", category="stepscope", first=window.first, last=window.last)

    def _log(self, event: str, window: ArmedWindow, text: str) -> None:
        """Writes to the log; the record has the facts as `stepscope`."""
        facts = {"event": event, "rank": self._rank, "first": window.first, "last": window.last}
        log.info("[Dynamic Profiler] rank %d: %s", self._rank, text, extra={"stepscope": facts})
