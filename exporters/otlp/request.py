"""One request: what is posted, and the events that it carries."""

from __future__ import annotations

import msgspec

from stepscope.exporters.otlp.target import Signal


class Request(msgspec.Struct, frozen=True):
    """A body and what it is accounted as."""

    signal: Signal
    body: bytes
    window: int
    """Whose events are in it."""
    weights: tuple[int, ...]
    """How many of them each span or point stands for, in their order; spans of our own, such as that of the run, for none."""

    @property
    def parts(self) -> int:
        """Spans or points in it."""
        return len(self.weights)

    @property
    def events(self) -> int:
        """Events in it."""
        return sum(self.weights)
