"""Counts of events and bytes of streams."""

from __future__ import annotations

from collections.abc import Callable

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
        return self._each(other, int.__add__)

    def highest(self, other: Amounts) -> Amounts:
        """Of each the larger."""
        return self._each(other, max)

    def _each(self, other: Amounts, of: Callable[[int, int], int]) -> Amounts:
        return Amounts(*map(of, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))
