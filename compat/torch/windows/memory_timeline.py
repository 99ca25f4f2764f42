"""Memory timelines, which need torch's own recordings."""

from __future__ import annotations

import gzip
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepscope.backends.torch.kineto.worker import FinishedTrace
from stepscope.exporters.files.output import whole_file
from stepscope.runtime.errors import BackendError, ProfilerStateError
from stepscope.runtime.threads import locks
from stepscope.runtime.windows.window import Window

NEEDS = ("record_shapes", "profile_memory", "with_stack")


class LatestResults:
    """torch's recordings of the last window only: they have every tensor's history, and are large."""

    def __init__(self) -> None:
        self._lock = locks.reentrant()
        self._traces: list[FinishedTrace] = []

    def __call__(self, trace: FinishedTrace) -> None:
        """Adds a recording, and releases the one before the last."""
        with self._lock:
            self._traces.append(trace)
            outdated, self._traces = self._traces[:-2], self._traces[-2:]
        for old in outdated:
            old.result.release()

    def of(self, window: Window) -> Any:
        """torch's own result of a window. Raises `ProfilerStateError` if it was released."""
        with self._lock:
            results = [
                trace.result.raw
                for trace in self._traces
                if trace.anchors[0].monotonic_ns < window.end_ns and trace.until > window.start_ns
            ]
        if len(results) == 1:
            return results[0]
        if results:
            raise ProfilerStateError(
                f"torch recorded window {window.index} in pieces, as another profiler began or ended in it: there is no "
                "memory timeline of the whole"
            )
        raise ProfilerStateError(
            f"torch's recording of window {window.index} is not kept: memory timelines are of the last window, "
            "so export them in on_trace_ready, or when the profile has ended"
        )

    def release(self) -> None:
        """Releases all recordings."""
        with self._lock:
            traces, self._traces = self._traces, []
        for trace in traces:
            trace.result.release()


def export_memory_timeline(
    result: Any, path: str | os.PathLike[str], device: str | None, use_device: str | None
) -> None:
    """Writes what torch's `export_memory_timeline` makes of its `_ProfilerResult`, in the format that the file's ending
    names: `.html` (needs matplotlib), `.raw.json.gz`, `.json.gz`, or JSON. The default device is the accelerator that
    was recorded, else the host. Raises `BackendError` if this version of torch makes none, or matplotlib is missing."""
    try:
        module: Any = import_module("torch.profiler._memory_profiler")
    except ModuleNotFoundError as error:
        raise BackendError(f"this version of torch makes no memory timelines any more: {error}") from error
    chosen = device or (f"{use_device}:0" if use_device else "cpu")
    timeline = module.MemoryProfileTimeline(module.MemoryProfile(result))
    name = os.fspath(path)
    with whole_file(Path(name)) as place:
        if name.endswith(".html"):
            if find_spec("matplotlib") is None:  # torch would print so, and write nothing
                raise BackendError(
                    "export_memory_timeline() needs matplotlib to write .html: install it, or name a .json"
                )
            timeline.export_memory_timeline_html(str(place), chosen)
            return
        raw = name.endswith("raw.json.gz")
        (timeline.export_memory_timeline_raw if raw else timeline.export_memory_timeline)(str(place), chosen)
        if name.endswith(".gz"):
            place.write_bytes(gzip.compress(place.read_bytes()))
