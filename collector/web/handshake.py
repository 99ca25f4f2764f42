"""TLS with a client, before anything is made of its connection."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

from stepscope.collector.web.doorway import Doorway
from stepscope.collector.web.web_protocols import PromptRequests

if TYPE_CHECKING:
    from uvicorn.server import ServerState


class Handshake(asyncio.Protocol):
    """Agrees on TLS with a client; its connection counts meanwhile as any other, and has as much time to say what it wants.

    A server that leaves TLS to the loop hears of a connection when that is done: clients that connect and say nothing would
    hold as many descriptors as they like.
    """

    def __init__(self, context: ssl.SSLContext, doorway: Doorway, server_state: ServerState, **options: Any) -> None:
        """Args: how to agree; the doorway of all connections; then those of a protocol of uvicorn."""
        self._context, self._doorway = context, doorway
        self._request = PromptRequests(doorway, server_state=server_state, **options)
        self._connections: set[Any] = server_state.connections
        self._early = bytearray()
        """Bytes that no protocol has received yet."""
        self._begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        self._transport = transport
        transport.pause_reading()  # what comes is for TLS; uvloop reads once all the same
        self._connections.add(self)
        self._doorway.came(transport, len(self._connections))
        self._task = asyncio.create_task(self._agree(), name="stepscope TLS")

    def data_received(self, data: bytes) -> None:
        """Bytes that the client sent before TLS began, or right after the handshake, before `_agree` goes on."""
        self._early += data
        if not self._begun:
            self._transport.pause_reading()

    def shutdown(self) -> None:
        """The server ends."""
        self._transport.abort()

    async def _agree(self) -> None:
        transport = self._transport
        secured: asyncio.Transport | None = None
        try:
            if not transport.is_closing():
                secured = await self._secured(transport)
        except (OSError, RuntimeError) as error:  # the latter is uvloop's, of a connection that has just gone
            # Else it speaks no TLS, none that we speak, or has gone: that is for the client to say.
            if why := _uncertified(error):
                self._doorway.refused(why, transport.get_extra_info("peername"))
        finally:
            self._connections.discard(self)
        if secured is None or transport.is_closing():
            self._doorway.remove(transport)
            transport.abort()
            return
        self._request.entrance = transport
        secured.set_protocol(self._request)
        self._request.connection_made(secured)
        if self._early:
            self._request.data_received(bytes(self._early))

    async def _secured(self, transport: asyncio.Transport) -> asyncio.Transport | None:
        loop = asyncio.get_running_loop()
        agreeing = asyncio.create_task(loop.start_tls(transport, self, self._context, server_side=True))
        try:
            await asyncio.sleep(0)  # from now on all that comes goes to the loop's protocol
            early, self._early, self._begun = bytes(self._early), bytearray(), True
            if early and not transport.is_closing():
                _feed(transport.get_protocol(), early)
            return await agreeing
        finally:
            agreeing.cancel()


def _uncertified(error: Exception) -> str:
    """Why a client certificate was not accepted; empty if this is another error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate (--client-ca)"
    return ""


def _feed(protocol: Any, data: bytes) -> None:
    """Gives an `asyncio.BufferedProtocol` what came before it was there."""
    while data:
        buffer: memoryview = protocol.get_buffer(len(data))
        copied = min(len(buffer), len(data))
        buffer[:copied] = data[:copied]
        protocol.buffer_updated(copied)
        data = data[copied:]
