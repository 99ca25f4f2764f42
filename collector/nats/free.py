"""Streams in NATS that no collector takes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

PATIENCE = 10.0
"""Seconds after which a stream that those did not take whose turn it was is taken by whoever can."""


class Free:
    """Streams that nobody takes, and since when that is so."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._given: dict[str, float] = {}

    def look(self, streams: set[str]) -> set[str]:
        """Forgets all others; gives those that are not known yet."""
        for stream in self._since.keys() - streams:
            del self._since[stream]
        return streams - self._since.keys()

    def add(self, stream: str) -> None:
        """Nobody takes it, as of now."""
        self._since[stream] = time.monotonic()

    def give(self, stream: str) -> None:
        """It was given away: it is not to be taken back before others could take it."""
        self._given[stream] = time.monotonic()

    def choose(self, room: int) -> Iterator[tuple[str, bool]]:
        """Streams to take, in any order, each with whether it is to be taken though there is no room.

        Args:
            room: how many may be taken.
        """
        long_ago = time.monotonic() - PATIENCE
        self._given = {stream: at for stream, at in self._given.items() if at > long_ago}
        for stream in random.sample(sorted(self._since), len(self._since)):
            late = self._since[stream] <= long_ago
            if late or room and stream not in self._given:
                yield stream, late
