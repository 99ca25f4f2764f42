"""Spans that ran on the host."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import IO, Any

from stepscope.compat.mindspore.products.base import Product, microseconds, spans
from stepscope.exporters.files.output import part
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

HEAD = ("tid", "category", "name", "start_time(us)", "duration(us)", "self_time(us)", "step")
"""`start_time` is Unix time."""


class HostInfo(Product):
    """Writes `host_info/host_info_<rank>.csv`."""

    name = "host info"

    def __init__(self, directory: Path, rank: int) -> None:
        self._path = directory / "host_info" / f"host_info_{rank}.csv"
        self._file: IO[str] | None = None
        self._writer: Any = None
        self._anchor = ClockAnchor(0, 0, 0)
        self._threads: dict[int, int | None] = {}

    async def open(self, run: Run) -> None:
        self._anchor = run.anchor
        self._path.parent.mkdir(exist_ok=True)
        self._file = part(self._path).open("w", newline="", encoding="utf-8", errors="backslashreplace")  # noqa: ASYNC230
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(HEAD)

    async def add(self, batch: EventBatch) -> None:
        events = spans(batch.events)
        columns = (events[field].tolist() for field in ("track", "category", "name", "ts", "dur", "self_dur", "step"))
        self._writer.writerows(
            (thread, strings.text(category), strings.text(name), microseconds(self._anchor.wall(ts)),
             microseconds(dur), microseconds(own), step)
            for track, category, name, ts, dur, own, step in zip(*columns, strict=True)
            if (thread := self._thread(track)) is not None
        )  # fmt: skip

    async def finish(self, window: Window) -> tuple[Path, ...]:
        if self._file is not None:
            self._file.close()
            part(self._path).replace(self._path)  # noqa: ASYNC240
        return (self._path,)

    async def abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            part(self._path).unlink(missing_ok=True)  # noqa: ASYNC240

    def _thread(self, track: int) -> int | None:
        """Number of the thread; `None` for what is not of the host."""
        if track not in self._threads:
            entry = tracks.get(track)
            host = entry is not None and entry.kind in (TrackKind.THREAD, TrackKind.TASK)
            self._threads[track] = entry.tid if entry is not None and host else None
        return self._threads[track]
