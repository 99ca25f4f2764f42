"""What `with accelerator.profile(...)` gives: a profiler with the methods that programs call there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio.from_thread
from msgspec.structs import replace

from stepscope.backends.base import Backend
from stepscope.compat.loop import Loop, Traced, guarded
from stepscope.compat.loop_settings import LoopSettings
from stepscope.exporters.journal import JournalExporter
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.formats import exporter_for, replay_into, run_of
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.options import Options
from stepscope.runtime.summary import SORT_KEYS, Summary
from stepscope.runtime.window import Window

KEPT = 100_000
"""Steps whose durations are kept for `metrics`, the latest."""


class Averages:
    """A table, as `key_averages()` gives it: what a run or one window of it recorded, by name."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary

    def table(self, sort_by: str | None = None, row_limit: int = 100, **layout: object) -> str:
        """The table as text.

        Args:
            sort_by: a column of ours or of torch, such as `self_cpu_time_total`; what is neither sorts by self time.
            row_limit: rows at most; -1 for all.
            layout: what torch takes besides, such as `max_name_column_width`; it has no effect.
        """
        return self.summary.render(_column(sort_by), None if row_limit < 0 else max(row_limit, 1))

    def __str__(self) -> str:
        return self.table()


def _column(sort_by: str | None) -> str:
    """Torch's `self_cpu_time_total`, `cuda_time_total`, `cpu_time` and so on, as columns of ours."""
    if sort_by in SORT_KEYS:
        return str(sort_by)
    if not sort_by or sort_by.startswith("self_"):
        return "self"
    return "total" if sort_by.endswith("_total") else "mean" if sort_by.endswith("_time") else "self"


class FinishedWindow:
    """A window, as `on_trace_ready` of Accelerate's handler gets it."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.step_num = window.steps[-1].number + 1 if window.steps else 0
        """Number of the step after the window, as torch's profiler has it there."""

    def key_averages(self, *grouping: object, **more: object) -> Averages:
        """The table of this window; shapes and stacks are no columns of it."""
        return Averages(self.window.summary())

    def export_chrome_trace(self, path: str, **more: object) -> None:
        """Writes this window; any number of times. What torch takes besides has no effect.

        Raises:
            OutputError: if the file cannot be written.
        """
        self.window.export(path, "kineto")


class AccelerateRun(Traced):
    """One `with accelerator.profile(...)`: what is done in it is a run, whose steps `step()` counts.

    Nothing of it raises into the training; `errors` has what went wrong.
    """

    def __init__(
        self,
        settings: LoopSettings,
        backends: Callable[[], Sequence[Backend]],
        ready: Callable[[FinishedWindow], Any] | None,
    ) -> None:
        self._journal: JournalExporter | None = None
        self._ready = ready
        self._durations: list[int] = []
        options = settings.options
        if options is None or (isinstance(options, Options) and options.journal):
            self._journal = JournalExporter()
            settings = replace(settings, exporters=[*settings.exporters, self._journal])
        self.loop = Loop(replace(settings, on_trace_ready=self._window), "accelerate", backends)

    @property
    def step_num(self) -> int:
        """Number of the current step, from 0."""
        return 0 if self.loop.profiler is None else self.loop.profiler.step_num

    def __enter__(self) -> AccelerateRun:
        self._open()
        return self

    @guarded
    def _open(self) -> None:
        self.loop.open("profile")

    @guarded
    def step(self) -> None:
        """Ends a step."""
        self.loop.step()

    def key_averages(self, *grouping: object, **more: object) -> Averages:
        """The table of all closed windows; shapes and stacks are no columns of it."""
        return Averages(Summary() if self.loop.profiler is None else self.loop.profiler.aggregates())

    @guarded
    def export_chrome_trace(self, path: str, **more: object) -> None:
        """Writes all that was recorded, every window, to a file; after the `with`, any number of times."""
        journal = self._journal
        if journal is None or self.loop.profiler is None or self.loop.stage:
            why = "within the `with`" if self.loop.stage else "of a run that was not recorded or keeps no journal"
            raise ProfilerStateError(f"export_chrome_trace({path!r}) {why}: there is nothing to write")
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)

        async def replay() -> None:
            with JournalReader(journal.path) as reader:
                await replay_into(reader, exporter_for(target, "kineto"), run_of(reader, target.parent))

        with anyio.from_thread.start_blocking_portal(name="stepscope export") as portal:
            portal.call(replay)

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

    def _window(self, window: Window) -> None:
        """Called off the training thread, once for each window."""
        more = [step.end_ns - step.start_ns for step in window.steps]
        self._durations = [*self._durations, *more][-KEPT:]
        if self._ready is not None:
            self._ready(FinishedWindow(window))
