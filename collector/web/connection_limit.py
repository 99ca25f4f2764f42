"""The limit of connections, and the time in which each must have sent a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE = 20.0
"""Seconds in which a connection must have sent a request, body and all: one that says nothing would hold a descriptor for ever."""


class ConnectionLimit:
    """Closes connections that take too long to send a request, and, when there are too many, the one that is without a request for
    longest.

    So strangers that open connections and ask nothing cannot keep others out: those ask at once. Connections that are
    being answered, and those of exporters, are not touched.
    """

    def __init__(self, most: int, refused: Callable[[str, tuple[str, int] | None], object]) -> None:
        """
        Args:
            most: connections at once, of exporters and all others.
            refused: called with the reason and the address when a connection is refused before any request.
        """
        self.most, self.refused = most, refused
        self._waiting: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        """The connection that has waited longest comes first."""

    def add(self, transport: asyncio.Transport, there: int) -> None:
        """Adds the connection of a client, which is expected to ask.

        Args:
            transport: its connection.
            there: connections that there are now, with this one.
        """
        self.expect_request(transport)
        longest = next(iter(self._waiting), None)
        if there > self.most and longest is not None:
            self.remove(longest)
            longest.abort()

    def expect_request(self, transport: asyncio.Transport) -> None:
        """Begins the time in which a connection must ask, unless it has begun."""
        if transport not in self._waiting and not transport.is_closing():
            self._waiting[transport] = asyncio.get_running_loop().call_later(PATIENCE, self._end, transport)

    def remove(self, transport: asyncio.Transport) -> None:
        """Ends that time: the request is complete, or the client has disconnected. Idempotent."""
        timer = self._waiting.pop(transport, None)
        if timer is not None:
            timer.cancel()

    def _end(self, transport: asyncio.Transport) -> None:
        self.remove(transport)
        transport.close()
