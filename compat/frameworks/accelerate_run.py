"""The profiler that `with accelerator.profile(...)` returns."""

from __future__ import annotations

import math
import os
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stepscope.backends.base import Backend
from stepscope.compat.frameworks.loop import Loop, TracingCallback, stores_errors
from stepscope.compat.frameworks.loop_settings import LoopSettings
from stepscope.compat.torch.results import Results, View, export_facts
from stepscope.compat.torch.windows.finished_window import FinishedWindow, TorchFlags
from stepscope.compat.torch.windows.memory_timeline import LatestResults
from stepscope.exporters.journal import JournalExporter
from stepscope.runtime.control.entry_points.environment import options_in_effect
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.export.formats import writing
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.replay import replay_into, run_of
from stepscope.runtime.loop_threads.loop_thread import run_on_own_loop
from stepscope.runtime.options import Options
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule.schedule import always
from stepscope.runtime.windows.window import Window

MAX_DURATIONS = 100_000
"""Number of latest step durations that `metrics` covers."""


class AccelerateRun(TracingCallback, Results):
    """One `with accelerator.profile(...)`: what is done in it is a run, whose steps `step()` counts.

    Tables, events and stacks are of all windows that have ended, where torch's profiler has the last one's; they are
    torch's own objects. A wrong argument raises. Later errors do not raise into the training; `errors` has
    what went wrong.
    """

    def __init__(
        self,
        settings: LoopSettings,
        backends: Callable[[], Sequence[Backend]],
        ready: Callable[[View], Any] | None,
        torch_flags: TorchFlags,
        results: LatestResults | None,
    ) -> None:
        """Args: what is recorded; makes what records it; called with each window; what torch's tables have; has
        torch's recordings of the last window."""
        super().__init__()
        self._torch_flags, self._results = torch_flags, results
        if results is not None:
            weakref.finalize(self, results.release)
        self._journal: JournalExporter | None = None
        self._ready = ready
        self._done: list[FinishedWindow] = []
        self._durations: list[int] = []
        options = settings.options or Options()
        if options.journal:
            self._journal = JournalExporter.of(options_in_effect(options))
            settings = replace(settings, exporters=[*settings.exporters, self._journal])
        self.loop = Loop(replace(settings, on_trace_ready=self._window), "accelerate", backends)

    @property
    def profiler(self) -> Profiler | None:  # type: ignore[override]  # torch's has its inner one there
        """The profiler of stepscope that records, or recorded; `None` before it exists."""
        return self.loop.profiler

    @property
    def step_num(self) -> int:
        """Number of the current step, from 0."""
        return 0 if self.loop.profiler is None else self.loop.profiler.step_num

    def __enter__(self) -> AccelerateRun:
        self._open()
        return self

    @stores_errors
    def _open(self) -> None:
        self.loop.open("profile")

    @stores_errors
    def step(self) -> None:
        """Ends a step."""
        self.loop.step()

    @stores_errors
    def add_metadata(self, key: str, value: Any) -> None:
        """Adds a fact to every output."""
        if self.loop.profiler is not None:
            self.loop.profiler.add_metadata(key, value)

    @stores_errors
    def add_metadata_json(self, key: str, value: str) -> None:
        """Adds a fact, given as JSON text, to every output."""
        if self.loop.profiler is not None:
            self.loop.profiler.add_metadata_json(key, value)

    @stores_errors
    def export_chrome_trace(self, path: str | os.PathLike[str], use_python_export: bool = False) -> None:
        """Writes all that was recorded, every window, to a file; after the `with`, any number of times.

        Args:
            path: file to write; missing directories are made.
            use_python_export: taken, as torch has it; there is one way of writing here.
        """
        journal = self._journal
        if journal is None or self.loop.profiler is None or self.loop.stage:
            why = "within the `with`" if self.loop.stage else "of a run that was not recorded or keeps no journal"
            raise ProfilerStateError(f"export_chrome_trace({os.fspath(path)!r}) {why}: there is nothing to write")
        target = Path(path)
        with writing(target, "kineto") as exporter:

            async def replay() -> None:
                with JournalReader(journal.path) as reader:
                    await replay_into(reader, exporter, run_of(reader, target.parent))

            run_on_own_loop(replay)

    def metrics(self, prefix: str = "stepscope/") -> dict[str, float]:
        """Step times in ms so far, for `accelerator.log(...)`: `step_ms_mean`, `_p50`, `_p95`, `_max`, and `steps`.

        Empty before a window has ended.
        """
        times = sorted(self._durations)
        if not times:
            return {}

        def quantile(share: float) -> float:
            return times[max(math.ceil(len(times) * share), 1) - 1] / 1e6

        found = {
            "steps": float(len(times)),
            "step_ms_mean": sum(times) / len(times) / 1e6,
            "step_ms_p50": quantile(0.5),
            "step_ms_p95": quantile(0.95),
            "step_ms_max": times[-1] / 1e6,
        }
        return {prefix + name: value for name, value in found.items()}

    # Results

    def _finished_windows(self) -> Sequence[FinishedWindow]:
        profiler = self.loop.profiler
        if profiler is not None and self.loop.stage:
            profiler.flush()
        return tuple(self._done)

    def facts(self, finished: FinishedWindow) -> Mapping[str, Any]:
        profiler = self.loop.profiler
        return export_facts(finished, {} if profiler is None else profiler.metadata)

    def _window(self, window: Window) -> None:
        """Called off the training thread, once for each window."""
        more = [step.end_ns - step.start_ns for step in window.steps]
        self._durations = [*self._durations, *more][-MAX_DURATIONS:]
        finished = self._finished(window)
        self._done.append(finished)
        profiler = self.loop.profiler
        if self._ready is not None and profiler is not None:
            self._ready(View(self, (finished,), profiler.current_action))

    def _finished(self, window: Window) -> FinishedWindow:
        profiler, journal = self.loop.profiler, self._journal
        steps = profiler is not None and (profiler.schedule is not always or profiler.keep_last is not None)
        return FinishedWindow(
            torch_flags=replace(self._torch_flags, steps=steps),
            window=window,
            journal=None if journal is None else journal.path,
            step_num=window.steps[-1].number + 1 if window.steps else 0,
            trace_id=f"{uuid.uuid4().int:032X}",
        )
