"""What is remembered of spans that were sent, for what comes later and belongs to them. Bounded: the oldest are forgotten."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")

KEPT = 65_536


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A span that was sent."""

    trace: bytes
    span: bytes
    home: int
    """The step in whose trace it is, -1: that of the run."""


class Memory(Generic[K, V]):
    """A mapping that keeps the newest entries."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._entries: dict[K, V] = {}

    def put(self, key: K, value: V) -> None:
        """Remembers, and forgets the oldest if need be."""
        self._entries[key] = value
        if len(self._entries) > self._most:
            del self._entries[next(iter(self._entries))]

    def get(self, key: K) -> V | None:
        """What is known; `None` if nothing is."""
        return self._entries.get(key)

    def __contains__(self, key: K) -> bool:
        return key in self._entries
