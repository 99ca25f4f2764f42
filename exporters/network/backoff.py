"""When senders try again: delays that double, with jitter, unless the other end says how long to wait."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER_S = 86_400.0
"""Seconds; a longer `Retry-After` counts as this."""
_jitter = random.Random()
"""A generator of its own: a training that was seeded draws the same numbers with an exporter as without."""


class Backoff:
    """Delays between attempts. They double from `first` to `longest`.

    Each is drawn from the upper half of its range, so that a thousand ranks which failed together do not return together.
    """

    def __init__(self, first: float, longest: float) -> None:
        """
        Args:
            first: seconds before the second attempt, at most.
            longest: seconds that no delay exceeds.
        """
        self._first, self._longest = min(first, longest), longest
        self._next = self._first

    def delay(self, retry_after: float | None = None) -> float:
        """Returns the seconds until the next attempt.

        Args:
            retry_after: seconds that the other end asks for; they replace the delay, which does not grow then.
        """
        if retry_after is not None:
            return retry_after
        current, self._next = self._next, min(2 * self._next, self._longest)
        return _with_jitter(current)

    def longest_delay(self) -> float:
        """Returns the seconds until the next attempt after a failure that time alone does not change, such as a wrong token.

        The delay after other failures does not grow by it.
        """
        return _with_jitter(self._longest)

    def reset(self) -> None:
        """Starts again with the first delay. Senders call it after a success."""
        self._next = self._first


def parse_retry_after(header: str | None, now: float) -> float | None:
    """Reads the header `Retry-After`, a number of seconds or a date (RFC 9110, 10.2.3).

    Args:
        header: its value; `None` if the answer has none.
        now: Unix time in seconds.

    Returns:
        Seconds to wait, at most `MAX_RETRY_AFTER_S`; `None` if there is no header or it is malformed.
    """
    if header is None:
        return None
    header = header.strip()
    if header.isascii() and header.isdigit():
        return min(float(header[:12]), MAX_RETRY_AFTER_S)
    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # the latter is for a time zone, or a year, of many digits
        return None
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return min(max((date - datetime.fromtimestamp(now, UTC)).total_seconds(), 0.0), MAX_RETRY_AFTER_S)


def _with_jitter(seconds: float) -> float:
    return _jitter.uniform(seconds / 2, seconds)
