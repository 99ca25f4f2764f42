"""The least of many numbers that change, found without looking at all of them."""

from __future__ import annotations

import heapq

_FEW = 64
"""Entries that are out of date and need no tidying, however few are not."""


class Least:
    """Numbers by key."""

    def __init__(self) -> None:
        self._values: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def put(self, key: int, value: int) -> None:
        """The number of a key, from now on."""
        if self._values.get(key) == value:
            return
        self._values[key] = value
        heapq.heappush(self._heap, (value, key))
        if len(self._heap) > 2 * len(self._values) + _FEW:
            self._heap = [(value, key) for key, value in self._values.items()]
            heapq.heapify(self._heap)

    def drop(self, key: int) -> None:
        """It has none any more."""
        self._values.pop(key, None)

    def find(self) -> int | None:
        """The least; `None` if there is none."""
        while self._heap:
            value, key = self._heap[0]
            if self._values.get(key) == value:
                return value
            heapq.heappop(self._heap)
        return None
