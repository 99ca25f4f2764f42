"""Tables of closed windows are bounded."""

from __future__ import annotations

import numpy as np

from stepscope.runtime.events.record import Kind, empty_block
from stepscope.runtime.events.strings import FIRST_NAME
from stepscope.runtime.windows.window_tables import MAX_TABLES, WindowTable, WindowTables


def table(names: int = 1) -> WindowTable:
    """Statistics of this many names, each with durations far apart."""
    made = WindowTable()
    for duration in (10, 100_000, 10_000_000):
        block = empty_block(names)
        block["kind"], block["dur"], block["name"] = int(Kind.SPAN), duration, np.arange(names) + FIRST_NAME
        made.update(block)
    return made


def test_the_newest_stay() -> None:
    """Of small ones a number."""
    tables = WindowTables()
    for window in range(MAX_TABLES + 10):
        tables.close(window, table())
    assert tables.get(9) is None and tables.get(10) is not None and tables.get(MAX_TABLES + 9) is not None


def test_large_ones_are_bounded_by_their_bytes() -> None:
    """They go sooner; the counted bytes are those of the stored tables."""
    one = table(500).nbytes()
    assert one > 500 * 1000  # many buckets each
    tables = WindowTables(10 * one)
    for window in range(100):
        tables.close(window, table(500))
        assert tables.nbytes <= 10 * one
    assert tables.get(89) is None and all(tables.get(window) is not None for window in range(90, 100))


def test_the_newest_stays_however_large() -> None:
    """A callback gets the table of the window that it is called for."""
    tables = WindowTables(1)
    for window in range(3):
        tables.close(window, table(500))
    assert tables.get(2) is not None and tables.get(1) is None
