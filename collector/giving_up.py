"""The act of giving events up, until enough of the disk was freed: by what the files take then, not by what they should."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from stepscope.collector.inventory import Inventory
from stepscope.collector.retention import Held
from stepscope.runtime.journal.discard import Place, discard

Isolated = Callable[[str, Path, Callable[[], object]], bool]
"""Does what concerns one stream and its journal; whether that was possible."""

_AT_ONCE = 64
"""Frames that are given up before it is seen what that has freed."""


class GivingUp:
    """Gives up events of journals until there is no surplus. Calls block on the disk."""

    def __init__(self, inventories: Mapping[str, Inventory], surplus: int, isolated: Isolated) -> None:
        """Args: the journals by their streams; bytes to be freed; how to do what may fail for one of them."""
        self._inventories, self._isolated = inventories, isolated
        self.surplus = surplus
        """Bytes that are too many still."""
        self.freed = self.events = self.windows = 0
        self.gone: dict[tuple[str, int], int] = {}
        """By stream and window of which some were given up: events that are gone, with those before."""

    def whole(self, group: Iterable[Held]) -> None:
        """Gives up windows, all of their events."""
        for one in group:
            inventory = self._inventories[one.stream]
            self._isolated(one.stream, inventory.path, lambda: self._all(one.stream, inventory, one.window))  # noqa: B023
            self.windows += 1

    def oldest(self, held: Iterable[Held]) -> None:
        """Gives up the oldest events of windows, until there is no surplus or they have none left."""
        in_order = heapq.merge(*map(self._frames, held), key=lambda found: found[0])
        while self.surplus > 0:
            chosen: defaultdict[tuple[str, int], list[Place]] = defaultdict(list)
            expected = 0
            for _, one, place, frees in islice(in_order, _AT_ONCE):
                chosen[one.stream, one.window].append(place)
                expected += frees
                if expected >= self.surplus:
                    break
            if not chosen:
                return
            for (stream, window), frames in chosen.items():
                path = self._inventories[stream].path
                self._isolated(stream, path, lambda: self._discard(stream, window, frames))  # noqa: B023

    def _all(self, stream: str, inventory: Inventory, window: int) -> None:
        frames = inventory.frames(window)
        while some := list(islice(frames, _AT_ONCE)):
            self._discard(stream, window, some)

    def _discard(self, stream: str, window: int, frames: list[Place]) -> None:
        inventory = self._inventories[stream]
        freed = discard(inventory.path, frames)
        self.gone[stream, window] = inventory.discarded(window, frames)
        self.events += sum(place.header.count for place in frames)
        self.freed += freed
        self.surplus -= freed

    def _frames(self, one: Held) -> Iterator[tuple[int, Held, Place, int]]:
        """The frames of a window that free something, with their Unix times, and how much that is."""
        inventory = self._inventories[one.stream]
        frames = inventory.frames(one.window)
        found: list[Place] = []
        while self._isolated(one.stream, inventory.path, lambda: found.extend(islice(frames, 1))) and found:
            place = found.pop()
            if frees := inventory.frees(place):
                yield place.header.first_ns + inventory.ahead_ns, one, place, frees
