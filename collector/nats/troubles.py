"""What stands in the way of taking streams from NATS: said once, shown as long as it lasts, and when to try again."""

from __future__ import annotations

import logging
import time

import msgspec

log = logging.getLogger("stepscope.collector")

FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds until a stream is taken again that could not be, doubled each time."""


class _Trouble(msgspec.Struct):
    text: str
    until: float
    delay: float


class Troubles:
    """Troubles by stream; that of the connection has the empty name. A text that was said is not said again."""

    def __init__(self, where: str) -> None:
        """Args: what is connected to, for messages."""
        self._where = where
        self._troubles: dict[str, _Trouble] = {}
        self._mentioned: set[str] = set()

    def add(self, stream: str, error: BaseException) -> None:
        """Something went wrong: it is tried again, each time after twice as long."""
        before = self._troubles.get(stream)
        if isinstance(error, TimeoutError) and before is not None:
            text = before.text  # what was said before says more
        else:
            text = f"{type(error).__name__}: {error}"[:500]
        delay = FIRST_DELAY if before is None else min(2 * before.delay, LONGEST_DELAY)
        self._troubles[stream] = _Trouble(text, time.monotonic() + delay, delay)
        if before is None or before.text != text:
            what = f"stream {stream} of {self._where}" if stream else self._where
            log.error("%s cannot be taken from, and is tried again: %s", what, ascii(text)[1:-1])

    def remove(self, stream: str) -> None:
        """It goes well."""
        self._troubles.pop(stream, None)

    def keep(self, streams: set[str]) -> None:
        """Forgets those of other streams."""
        self._mentioned &= streams
        for stream in self._troubles.keys() - streams - {""}:
            del self._troubles[stream]

    def is_waiting(self, stream: str) -> bool:
        """Whether it is too early to try again."""
        trouble = self._troubles.get(stream)
        return trouble is not None and time.monotonic() < trouble.until

    def mention(self, stream: str, text: str) -> None:
        """Says something of a stream, unless something was said already."""
        if stream not in self._mentioned:
            self._mentioned.add(stream)
            log.warning("stream %s of %s: %s", ascii(stream[:100])[1:-1], self._where, ascii(text[:300])[1:-1])

    @property
    def worst(self) -> str:
        """That of the connection, or else one of a stream; empty if there is none."""
        if "" in self._troubles:
            return self._troubles[""].text
        return next((f"stream {stream}: {trouble.text}" for stream, trouble in self._troubles.items()), "")
