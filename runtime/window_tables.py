"""The tables of closed windows, the newest ones: what `Window.summary()` shows."""

from __future__ import annotations

from stepscope.runtime.aggregates import Aggregates

KEPT_TABLES = 256
"""Windows whose table is kept."""

KEPT_BYTES = 32 << 20
"""What they may take together; the newest is kept in any case. One of 500 names can take a megabyte."""


class WindowTables:
    """Bounded, so that a run of a million windows needs no more memory than one of a hundred."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most = most_bytes
        self._tables: dict[int, Aggregates] = {}
        self.nbytes = 0
        """What they take."""

    def keep(self, window: int, table: Aggregates) -> None:
        """Takes the table of a window that was closed, and lets go of the oldest ones if need be."""
        self._tables[window] = table
        self.nbytes += table.nbytes()
        while len(self._tables) > KEPT_TABLES or (self.nbytes > self._most and len(self._tables) > 1):
            self.nbytes -= self._tables.pop(next(iter(self._tables))).nbytes()

    def get(self, window: int) -> Aggregates | None:
        """The table of a window; `None` if it was let go."""
        return self._tables.get(window)
