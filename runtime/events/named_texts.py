"""The names that an output has written: each must be written before its first event."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block


class NamedTexts:
    """The names, categories and argument keys that one output has written. The table of the process may have a million more, of
    other runs and of recordings."""

    def __init__(self) -> None:
        # Pages that are never written need no memory.
        self._named = np.zeros(strings.IDS, np.uint8)

    def missing(self, events: Block, args: bytes) -> list[tuple[int, str]]:
        """`(id, text)` pairs that these events use and that are not written yet. Call `add` once they are."""
        return strings.missing(np.ascontiguousarray(events), args, self._named)

    def add(self, named: Iterable[tuple[int, str]]) -> None:
        """Marks pairs as written."""
        for number, _ in named:
            self._named[number] = 1

    def all(self) -> list[tuple[int, str]]:
        """All written pairs, in the order of their ids."""
        return [(number, strings.text(number)) for number in np.flatnonzero(self._named).tolist()]
