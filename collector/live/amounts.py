"""Counts of events and bytes of streams."""

from __future__ import annotations

import msgspec


class Amounts(msgspec.Struct, frozen=True):
    """Sums over a stream's life, or over the lives of several."""

    events: int = 0
    bytes: int = 0
    """Of their files."""
    dropped: int = 0
    """Events lost, as far as ledgers have told."""
    discarded: int = 0
    """Events evicted to keep the files within the limit of the disk."""

    def __add__(self, other: Amounts) -> Amounts:
        """Both together."""
        return Amounts(
            self.events + other.events,
            self.bytes + other.bytes,
            self.dropped + other.dropped,
            self.discarded + other.discarded,
        )

    def highest(self, other: Amounts) -> Amounts:
        """Of each the larger."""
        return Amounts(
            max(self.events, other.events),
            max(self.bytes, other.bytes),
            max(self.dropped, other.dropped),
            max(self.discarded, other.discarded),
        )
