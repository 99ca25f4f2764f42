"""Work of the host: spans as a table, and stacks of Python functions, folded, as flame graphs are drawn from."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import IO, Any

from stepscope.compat.mindspore.output_layout import write_text
from stepscope.compat.mindspore.products.base import PYTHON, Product, in_categories, microseconds, spans
from stepscope.exporters.files.output import part
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window


class FoldedStacks(Product):
    """Writes `stacks_<rank>.folded`: one line for each stack, functions parted by `;`, then its time in µs."""

    name = "folded stacks"

    def __init__(self, directory: Path, rank: int) -> None:
        super().__init__(directory)
        self._rank = rank
        self._spans: dict[int, tuple[int, int, int]] = {}

    async def add(self, batch: EventBatch) -> None:
        events = spans(batch.events)
        events = events[in_categories(events, (PYTHON,))]
        columns = (events[field].tolist() for field in ("id", "parent", "name", "self_dur"))
        for number, parent, name, own in zip(*columns, strict=True):
            self._spans[number] = (parent, name, own + self._spans.get(number, (0, 0, 0))[2])

    async def finish(self, window: Window) -> tuple[Path, ...]:
        if not self._spans:
            return ()
        stacks: Counter[str] = Counter()
        for parent, name, own in self._spans.values():
            if own > 0:
                stacks[self._stack(parent, name)] += own
        lines = (f"{stack} {max(round(time / 1000), 1)}\n" for stack, time in sorted(stacks.items()))
        return (write_text(self.directory / f"stacks_{self._rank}.folded", "".join(lines)),)

    def _stack(self, parent: int, name: int) -> str:
        names = [strings.text(name)]
        while parent in self._spans and len(names) < 512:
            parent, name, _ = self._spans[parent]
            names.append(strings.text(name))
        return ";".join(text.replace(";", ",") for text in reversed(names))


HEAD = ("tid", "category", "name", "start_time(us)", "duration(us)", "self_time(us)", "step")
"""`start_time` is Unix time."""


class HostInfo(Product):
    """Writes `host_info/host_info_<rank>.csv`."""

    name = "host info"

    def __init__(self, directory: Path, rank: int) -> None:
        super().__init__(directory)
        self._path = directory / "host_info" / f"host_info_{rank}.csv"
        self._file: IO[str] | None = None
        self._writer: Any = None
        self._threads: dict[int, int | None] = {}

    async def open(self, run: Run) -> None:
        await super().open(run)
        self._path.parent.mkdir(exist_ok=True)
        self._file = part(self._path).open("w", newline="", encoding="utf-8", errors="backslashreplace")  # noqa: ASYNC230
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(HEAD)

    async def add(self, batch: EventBatch) -> None:
        events = spans(batch.events)
        columns = (events[field].tolist() for field in ("track", "category", "name", "ts", "dur", "self_dur", "step"))
        self._writer.writerows(
            (thread, strings.text(category), strings.text(name), microseconds(self.run.anchor.wall(ts)),
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
