"""What carries a stream's backlog away: a link to a collector, or to what stands between."""

from __future__ import annotations

from typing import Protocol

import msgspec


class LinkStatistics(msgspec.Struct, frozen=True):
    """What the connection has been through."""

    connected: bool
    connections: int
    """How often it was made."""
    confirmed: int
    """The collector has written the frames before this one."""
    refused: bool
    """Whether the last attempt was refused for a reason that time alone does not change."""
    last_error: str
    """What went wrong last; empty while it is connected."""


class Connecting(Protocol):
    """Runs on the exporter's loop, beside its calls."""

    def start(self) -> None:
        """Begins to connect."""

    def wake(self) -> None:
        """There is something to send."""

    async def settled(self) -> bool:
        """Waits until everything is confirmed; false as soon as the other end refuses it."""
        ...

    async def close(self) -> None:
        """Ends the connection in order. Idempotent."""

    def abort(self) -> None:
        """Ends it at once. Idempotent."""

    def statistics(self) -> LinkStatistics:
        """What it has been through so far."""
        ...
