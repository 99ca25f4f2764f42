"""Which names an output has said: each is, before its first event."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block


class NamedTexts:
    """The names, categories and argument keys that one output has said so far. A process may know a million more: those
    of other runs, and of recordings that it has read."""

    def __init__(self) -> None:
        # Pages that nobody writes to take no memory.
        self._named = np.zeros(strings.IDS, np.uint8)

    def missing(self, events: Block, args: bytes) -> list[tuple[int, str]]:
        """`(id, text)` of what these events use and was not said yet. It says nothing: see `add`."""
        return strings.missing(np.ascontiguousarray(events), args, self._named)

    def add(self, named: Iterable[tuple[int, str]]) -> None:
        """Notes that they are said."""
        for number, _ in named:
            self._named[number] = 1

    def all(self) -> list[tuple[int, str]]:
        """Those that were said, in the order of their ids."""
        return [(number, strings.text(number)) for number in np.flatnonzero(self._named).tolist()]
