"""One request: what is posted, and the events that it carries."""

from __future__ import annotations

from collections import Counter

import msgspec

from stepscope.exporters.otlp.target import Signal


class Request(msgspec.Struct, frozen=True):
    """A body and what it is accounted as."""

    signal: Signal
    body: bytes
    parts: int
    """Spans or points in it."""
    events: Counter[int]
    """Events of each window that are in it; spans of our own, such as that of the run, are none."""
