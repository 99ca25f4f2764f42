"""The protocols of the web server, with bounds on who has not said yet what it wants."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from stepscope.exporters.collector.protocol import MAX_HEADER

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

FIRST_REQUEST = 20.0
"""Seconds in which a connection must have sent its first request: one that says nothing would hold a descriptor for ever."""
FIRST_MESSAGE = MAX_HEADER + 4
"""Bytes of a message of a WebSocket to which nothing was sent yet: it is no more than a header."""


class PromptRequests(H11Protocol):
    """HTTP for connections that say soon what they want."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._patience = self.loop.call_later(FIRST_REQUEST, transport.close)

    def data_received(self, data: bytes) -> None:
        """It says something."""
        super().data_received(data)
        asked: Any = self.cycle  # none until the head of a request is whole
        if asked is not None or self.transport.get_protocol() is not self:
            self._forget_patience()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._forget_patience()
        super().connection_lost(exc)

    def _forget_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class ModestSockets(WebSocketsSansIOProtocol):
    """WebSockets whose messages may be large only when they were welcomed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn.max_message_size = FIRST_MESSAGE

    async def send(self, message: ASGISendEvent) -> None:
        """What the collector sends: a first message is that the stream is welcome, or that it ends."""
        if message["type"] == "websocket.send":
            self.conn.max_message_size = self.config.ws_max_size
        await super().send(message)
