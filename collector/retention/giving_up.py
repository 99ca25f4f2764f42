"""The act of giving events up, until enough of the disk was freed: by what the files take then, not by what they should."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from stepscope.collector.discarding.discard import EventsPlace, discard, free
from stepscope.collector.retention.inventory import Inventory
from stepscope.collector.retention.retention import Held

Isolated = Callable[[str, Path, Callable[[], object]], bool]
"""Does what concerns one stream and its journal; whether that was possible."""

_AT_ONCE = 64
"""Frames that are given up before it is seen what that has freed."""
_MOST = 4096
"""Frames of a window that is given up whole that are given up together."""
_RECORDS = 256
"""Records that are given up together."""


class GivingUp:
    """Gives up events of journals until there is no surplus. Calls block on the disk."""

    def __init__(
        self,
        inventories: Mapping[str, Inventory],
        surplus: int,
        isolated: Isolated,
        borders: Callable[[str], Collection[int]] = lambda _: (),
        recorded: Collection[str] | None = None,
    ) -> None:
        """
        Args:
            inventories: the journals by their streams.
            surplus: bytes to be freed.
            isolated: how to do what may fail for one of them.
            borders: bytes of a stream's journal at which somebody goes on to read.
            recorded: streams whose records may be given up; `None`: all.
        """
        self._inventories, self._isolated, self._borders = inventories, isolated, borders
        self._recorded = inventories.keys() if recorded is None else recorded
        self.surplus = surplus
        """Bytes that are too many still."""
        self.freed = self.events = self.windows = 0
        self.gone: dict[tuple[str, int], int] = {}
        """By stream and window of which some were given up: events that are gone, with those before."""

    def count(self, freed: int) -> None:
        """So many bytes were freed."""
        self.freed += freed
        self.surplus -= freed

    def left(self) -> None:
        """Frees what was given up before, and was not freed: by a collector that was killed then."""
        for stream, inventory in self._inventories.items():
            given, inventory.unfreed = inventory.unfreed, []
            if given:
                self._isolated(stream, inventory.path, lambda: self.count(free(inventory.path, given)))  # noqa: B023

    def whole(self, group: Iterable[Held]) -> None:
        """Gives up windows, all of their events; if they were so small that little is free then, records as well."""
        before, expected = self.freed, 0
        for one in group:
            inventory = self._inventories[one.stream]
            self._isolated(one.stream, inventory.path, lambda: self._all(one.stream, inventory, one.window))  # noqa: B023
            self.windows += 1
            expected += one.nbytes
        missing = expected // 2 - (self.freed - before)
        if missing > 0:
            self.records(missing)

    def records(self, wanted: int) -> None:
        """Gives up the records of windows of which nothing else is left, the oldest first.

        Args:
            wanted: bytes that are to be freed by that, as far as there is a surplus.
        """
        until = self.freed + min(wanted, self.surplus)
        if self.freed >= until:
            return
        order: list[tuple[int, str]] = []

        def note(stream: str) -> None:
            oldest = self._inventories[stream].oldest_record
            if oldest is not None:
                heapq.heappush(order, (oldest, stream))

        for stream, inventory in self._inventories.items():
            if stream in self._recorded:
                self._isolated(stream, inventory.path, lambda: note(stream))  # noqa: B023
        while order and self.freed < until:
            _, stream = heapq.heappop(order)
            path = self._inventories[stream].path
            if self._isolated(stream, path, lambda: self._records(stream)):  # noqa: B023
                self._isolated(stream, path, lambda: note(stream))  # noqa: B023

    def oldest(self, held: Iterable[Held]) -> None:
        """Gives up the oldest events of windows, until there is no surplus or they have none left."""
        in_order = heapq.merge(*map(self._frames, held), key=lambda found: found[0])
        while self.surplus > 0:
            chosen: defaultdict[tuple[str, int], list[EventsPlace]] = defaultdict(list)
            expected = 0
            for _, one, place in islice(in_order, _AT_ONCE):
                chosen[one.stream, one.window].append(place)
                expected += place.end - place.at
                if expected >= self.surplus:
                    break
            if not chosen:
                return
            for (stream, window), frames in chosen.items():
                path = self._inventories[stream].path
                self._isolated(stream, path, lambda: self._discard(stream, window, frames))  # noqa: B023

    def _all(self, stream: str, inventory: Inventory, window: int) -> None:
        after = 0
        while frames := inventory.frames(window, after, _MOST):
            after = frames[-1].end
            self._discard(stream, window, frames)

    def _discard(self, stream: str, window: int, frames: list[EventsPlace]) -> None:
        inventory = self._inventories[stream]
        start = inventory.windows[window].at
        done = discard(inventory.path, frames, start=start, borders=self._borders(stream))
        self.gone[stream, window] = inventory.discarded(window, frames, done)
        self.events += sum(place.header.count for place in frames)
        self.count(done.freed)

    def _records(self, stream: str) -> None:
        inventory = self._inventories[stream]
        records = inventory.records(_RECORDS)
        if not records.places:
            return
        done = discard(
            inventory.path,
            records.places,
            start=records.start,
            borders=self._borders(stream),
            ended=records.ended,
        )
        inventory.records_discarded(records, done)
        self.count(done.freed)

    def _frames(self, one: Held) -> Iterator[tuple[int, Held, EventsPlace]]:
        """The frames of a window, the oldest first, with their Unix times."""
        inventory = self._inventories[one.stream]
        found: list[EventsPlace] = []
        after = 0

        def more() -> None:
            found.extend(inventory.frames(one.window, after, _AT_ONCE))

        while self._isolated(one.stream, inventory.path, more) and found:
            after, ahead = found[-1].end, inventory.ahead_ns(one.window)
            for place in found:
                yield place.header.first_ns + ahead, one, place
            found.clear()
