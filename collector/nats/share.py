"""How many of the streams in NATS are one collector's, if several share them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MOST_GIVEN = 32
"""Streams that a collector gives away at a look: those who take them read them from the beginning."""


class Share(msgspec.Struct, frozen=True):
    """What a collector has, and what there is."""

    held: int
    """Streams that it has."""
    streams: int
    """That there are, but for those that have ended and those that it cannot take for now."""
    others: Sequence[int]
    """What each of the other collectors has, or cannot take for now."""

    @property
    def room(self) -> int:
        """How many more it may take. A collector that is alone may take all."""
        return max(-(-self.streams // (1 + len(self.others))) - self.held, 0)

    @property
    def surplus(self) -> int:
        """How many it is to give away now: some of those that it has more than another one, but none of its own share."""
        if not self.others:
            return 0
        more = self.held - min(self.others)
        spare = self.held - self.streams // (1 + len(self.others))
        if more < 2 or spare < 1:
            return 0
        return min(max(more // 4, 1), spare, MOST_GIVEN)
