"""When a request is tried again: exponential backoff with jitter, and what the receiver asks for."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRYABLE = frozenset({429, 502, 503, 504})
"""The status codes after which a request may be sent again (OTLP specification, "Retryable Response Codes")."""

LONGEST_ASKED = 86_400.0
"""Seconds; a `Retry-After` beyond it is taken as this."""


class Backoff:
    """Delays that double from `first` to `longest` seconds, each drawn from its upper half."""

    def __init__(self, first: float, longest: float, uniform: Callable[[float, float], float] = random.uniform) -> None:
        """Args: seconds; whichever of `first` and `longest` is less is the first delay."""
        self._first, self._longest, self._uniform = min(first, longest), longest, uniform
        self._next = self._first

    def delay(self) -> float:
        """Seconds until the next attempt."""
        now, self._next = self._next, min(2 * self._next, self._longest)
        return self._uniform(now / 2, now)

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next = self._first


def retry_after(text: str | None, now: float) -> float | None:
    """Seconds that a `Retry-After` asks to wait, in either of its forms (RFC 9110, 10.2.3).

    Args:
        text: the header.
        now: Unix time in seconds.

    Returns:
        `None` if there is none, or it cannot be read.
    """
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), LONGEST_ASKED)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the latter is for a time zone, or a year, of many digits
        return None
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return min(max((date - datetime.fromtimestamp(now, UTC)).total_seconds(), 0.0), LONGEST_ASKED)
