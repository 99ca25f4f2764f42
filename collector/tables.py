"""The table of a window: read from a stream's file by a process of its own, kept for those who ask again."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import OrderedDict
from pathlib import Path

import msgspec

from stepscope.collector.problems import ProblemError
from stepscope.runtime.aggregates import Aggregates
from stepscope.runtime.errors import StepscopeError
from stepscope.runtime.events import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.summary import CounterRow, InstantRow, Summary, SummaryRow

KEPT = 64
"""Tables of closed windows that are kept."""
ROWS = 1000
"""Rows of a kind that are told; those that take most time."""
_AT_ONCE = 2


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What a window holds, per name and category. Times are in ns."""

    spans: tuple[SummaryRow, ...]
    """The largest self time first."""
    counters: tuple[CounterRow, ...]
    instants: tuple[InstantRow, ...]
    left_out: int
    """Rows beyond `ROWS` of a kind."""


def table(path: Path, window: int) -> Table:
    """Reads a window of a journal.

    Raises:
        OSError, FormatError: if it cannot be read.
    """
    aggregates = Aggregates()
    with JournalReader(path) as reader:
        for item in reader.items(window):
            if isinstance(item, EventBatch) and item.window == window:
                aggregates.update(item.events)
    summary = Summary.of(aggregates)
    kinds = (summary.rows, summary.counters, summary.instants)
    return Table(
        spans=summary.rows[:ROWS],
        counters=summary.counters[:ROWS],
        instants=summary.instants[:ROWS],
        left_out=sum(max(len(rows) - ROWS, 0) for rows in kinds),
    )


class Tables:
    """Tables by file and window. A process of its own reads: the names of all runs would fill this one's table of names."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._kept: OrderedDict[tuple[Path, int], bytes] = OrderedDict()

    async def get(self, path: Path, window: int, *, closed: bool) -> bytes:
        """The table as JSON.

        Args:
            path: of the stream's file.
            window: its index.
            closed: whether it will not change any more.

        Raises:
            ProblemError: if it cannot be read.
        """
        key = (path, window)
        if key not in self._kept:
            async with self._turn:
                found = await _read(path, window)
            if not closed:
                return found
            self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


async def _read(path: Path, window: int) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stepscope.collector.tables", str(path), str(window)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        found, said = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        raise ProblemError(500, f"the window could not be read: {said.decode(errors='replace').strip()[-300:]}")
    return found


def main(path: str, window: str) -> int:
    """Writes a table to standard output."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode(table(Path(path), int(window))))
    except (OSError, StepscopeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
