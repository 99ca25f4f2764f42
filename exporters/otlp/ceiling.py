"""How large a request a receiver takes, as far as its refusals tell."""

from __future__ import annotations

import math

RISE = 1.05
"""By which the ceiling rises when a request that is about as large passes: limits are changed, and requests differ in
how well they are compressed."""


class Ceiling:
    """Falls to half of what was refused, so never below half of what the receiver takes; rises slowly again."""

    def __init__(self) -> None:
        self._bytes = math.inf

    def fits(self, size: int) -> bool:
        """Whether a request of so many bytes is worth a try."""
        return size <= self._bytes

    def refused(self, size: int) -> None:
        """One of so many bytes was too large."""
        self._bytes = min(self._bytes, size / 2)

    def taken(self, size: int) -> None:
        """One of so many bytes was not."""
        if size > self._bytes / 2:
            self._bytes *= RISE
