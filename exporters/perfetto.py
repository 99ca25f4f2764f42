"""Trace files in Perfetto's native format."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.exporters.files.perfetto_file import PerfettoFile
from stepscope.exporters.files.trace_series import OnFull, TraceExporter
from stepscope.runtime.export.run import Run
from stepscope.runtime.session.note import TraceNote
from stepscope.runtime.settings.validation import suggesting


class PerfettoExporter(TraceExporter):
    """Writes Perfetto's native format (`.pftrace`) while the run goes on.

    It takes a quarter of the space of Chrome JSON and keeps every nanosecond and every type of argument. It can be opened
    in Perfetto at any moment, also after the process was killed; where it was cut, what came before is read. The spans
    that were open when a window began, and its first step if it lies in one, appear when what encloses them is known,
    at the window's end at the latest. Metadata, windows and their ledgers are instant events of the process, named
    `stepscope`, `run` and `window <n>`.

    Files of several processes of a machine can be put one behind the other, in the order in which their runs began, and
    are one trace then: no row or flow has the same number in two of them. Of several machines the clocks and
    process numbers would have to agree first.

    Args:
        path: file to write; `{rank}`, `{pid}` and `{window}` are replaced. With `{window}` every window gets a file of
            its own, without it all share one. Missing directories are made, a file that is there is replaced.
        gzip: whether to compress; by default if the name ends in `.gz`.
        max_bytes: size in bytes of a file, at least 64 KiB; only an event with very large arguments at its end exceeds it.
            `None`: no limit.
        on_full: `rotate` goes on in `trace.1.pftrace`, `trace.2.pftrace` and so on; `stop` drops what comes later, says
            so in the file and counts it in `dropped_cap`.

    Raises:
        TypeError: an argument is not what it should be.
        ValueError: an argument is not one of these, or the path is a directory.
    """

    @suggesting
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        gzip: bool | None = None,
        max_bytes: int | None = None,
        on_full: OnFull = "rotate",
    ) -> None:
        super().__init__("perfetto", path, gzip, max_bytes, on_full)

    async def _create(self, path: Path, run: Run, note: TraceNote) -> PerfettoFile:
        return await PerfettoFile.create(path, run, self._gzip, self._limit, note)
