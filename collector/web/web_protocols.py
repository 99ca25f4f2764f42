"""The protocols of the web server, with limits for clients that are slow to send or to receive, or send too much at once."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from h11 import IDLE, SEND_BODY
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from stepscope.collector.live.stream import Allowance
from stepscope.collector.memory_budget import FREE, Grant, MemoryBudget
from stepscope.exporters.network.secrets import QuietLogger
from stepscope.exporters.stream.protocol import MAX_HEADER

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from uvicorn.server import ServerState

FIRST_MESSAGE = MAX_HEADER + 4
"""Bytes of a WebSocket's first message, which is no more than a header."""

_web_log = logging.getLogger("stepscope.collector.web")
_web_log.setLevel(logging.WARNING)
_REFUSAL_MESSAGES = frozenset(
    {
        "ASGI callable returned without completing handshake.",
        "ASGI callable returned without completing response.",
        "Invalid HTTP request received.",
    }
)
"""Messages of uvicorn about refusals, without address and reason, which our own log has."""
_web_log.addFilter(lambda record: record.msg not in _REFUSAL_MESSAGES)

STALLED = 60.0
"""Seconds after which a connection that accepts no data is cut."""

FRAMES_PER_SECOND, FRAMES_AT_ONCE = 100, 1000
"""Frames of a WebSocket that are read. An exporter sends a few a second. Each costs the loop as much, however small it is."""
PIECE_BYTES = 16 << 10
"""Bytes of a WebSocket that are parsed at once, as more may be thousands of frames."""

REQUEST_SECONDS = 20.0
"""Seconds in which a connection must have sent a request, body and all: one that says nothing would hold a descriptor for ever."""


def check_libraries() -> None:
    """Makes sure that the installed libraries have what the bounds of connections hang on.

    Raises:
        ImportError: if one has it no more; says what to install.
    """
    needed: dict[object, tuple[str, ...]] = {
        ServerProtocol(): ("max_message_size", "reader"),
        StreamReader: ("read_exact",),
        WebSocketsSansIOProtocol: (
            "handle_bytes",
            "handle_text",
            "handle_cont",
            "handle_ping",
            "handle_pong",
            "receive",
            "send",
            "run_asgi",
        ),
        H11Protocol: ("send_400_response", "on_response_complete"),
    }
    missing = [name for owner, names in needed.items() for name in names if not hasattr(owner, name)]
    if missing:
        raise ImportError(
            f"the installed uvicorn and websockets have no {', '.join(missing)}, by which the collector limits what clients "
            "send: install the versions that it is tested with: pip install 'stepscope[collector]'"
        )


class _CutsStalled(asyncio.Protocol):
    """Cuts a connection whose client takes nothing for too long: closing it would wait for what it does not take."""

    transport: asyncio.Transport
    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """The client does not take what was written."""
        self._stalled = asyncio.get_running_loop().call_later(STALLED, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has taken most of it."""
        self._stop_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class HttpProtocol(_CutsStalled, H11Protocol):
    """HTTP for connections that send their requests soon, and accept the answers."""

    def __init__(self, limit: ConnectionLimit, *args: Any, **options: Any) -> None:
        """Args: the limit of connections; then those of uvicorn."""
        super().__init__(*args, **options)
        self.limit = limit
        self.logger = _web_log
        self.counted: asyncio.Transport | None = None
        """The transport that the limit knows; with TLS that is the connection below."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins with the connection of a client."""
        super().connection_made(transport)
        if self.counted is None:
            self.counted = transport
            self.limit.add(transport, len(self.connections))

    def data_received(self, data: bytes) -> None:
        """The client sends bytes."""
        super().data_received(data)
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Refuses bytes that are no HTTP."""
        self.limit.refused("it speaks no HTTP: TLS to a collector without a certificate, perhaps", self.client)
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """A response is complete; the client may send another request."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        if self.counted is not None:
            self.limit.remove(self.counted)
        super().connection_lost(exc)

    def _look(self) -> None:
        """Tells the limit whether a part of a request is still to come; also of a body that was answered already."""
        assert self.counted is not None
        if self.transport.get_protocol() is self and self.conn.their_state in (IDLE, SEND_BODY):
            self.limit.expect_request(self.counted)
        else:
            self.limit.remove(self.counted)


class WebSocketProtocol(_CutsStalled, WebSocketsSansIOProtocol):
    """WebSockets whose messages may be large only when they were welcomed, and when there is room in memory for all of it.

    A connection whose message has to wait for that is not read any further meanwhile, so its client waits as well. What
    one read has brought of it by then is held in addition. One that brings very many frames is read no faster than it may send.
    """

    def __init__(self, budget: MemoryBudget, *args: Any, **options: Any) -> None:
        """Args: the budget of all connections; then those of uvicorn."""
        super().__init__(*args, **options)
        self._budget = budget
        self.logger = _web_log
        self.conn.logger = QuietLogger(_web_log.name)
        self.conn.max_message_size = FIRST_MESSAGE
        self._coming: Grant | None = None
        """Memory for the message that arrives; none for a small one."""
        self._grants: deque[Grant | None] = deque()
        """Memory for messages that have arrived, in their order."""
        self._grant: Grant | None = None
        """Memory for the message that is being processed."""
        self._waits = False
        self._allowance = Allowance(FRAMES_PER_SECOND, FRAMES_AT_ONCE)
        self._frames = 0
        """Frames that have arrived since the allowance was last reduced."""
        self._unparsed = b""
        self._resuming: asyncio.TimerHandle | None = None
        """Ends a pause, in which nothing is read or parsed."""
        reader: Any = self.conn.reader
        read_exact = reader.read_exact

        def read(size: int) -> Generator[None, None, bytearray]:
            self._expect(size)
            found: Generator[None, None, bytearray] = read_exact(size)
            return found

        reader.read_exact = read

    def handle_bytes(self, event: Frame) -> None:
        """Receives the first frame of a message, or the only one."""
        super().handle_bytes(event)
        self._received(event)

    def handle_text(self, event: Frame) -> None:
        """Receives the first frame of a text, or the only one."""
        super().handle_text(event)
        self._received(event)

    def handle_cont(self, event: Frame) -> None:
        """Receives a further frame."""
        super().handle_cont(event)
        self._received(event)

    def handle_ping(self) -> None:
        """A sign of life, which exporters do not need."""
        self._frames += 1
        super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """The client sends a pong, though the collector sends no ping."""
        self._frames += 1
        super().handle_pong(event)

    def data_received(self, data: bytes) -> None:
        """Parses what was read, as far as the client may send that much now."""
        self._unparsed += data
        if self._resuming is None:
            self._parse()

    def _parse(self) -> None:
        data, at = self._unparsed, 0
        while at < len(data) and self._resuming is None and not self.transport.is_closing():
            super().data_received(data[at : at + PIECE_BYTES])
            at += PIECE_BYTES
            wait = self._allowance.use(self._frames, time.monotonic())
            self._frames = 0
            if wait:
                self._resuming = self.loop.call_later(wait, self._parse_on)
                self.transport.pause_reading()
        self._unparsed = data[at:]

    def _parse_on(self) -> None:
        self._resuming = None
        self._parse()
        self._resume()

    def _received(self, event: Frame) -> None:
        self._frames += 1
        event.data = b""  # the parser keeps the frame until the next one comes, which may be long
        if event.fin:
            self._grants.append(self._coming)
            self._coming = None
        else:  # how long the message will be is not known
            self._expect(self.conn.max_message_size or self.config.ws_max_size)

    async def receive(self) -> ASGIReceiveEvent:
        """Receives the next message; the caller is done with the last one."""
        self._done()
        message = await super().receive()
        if message["type"] == "websocket.receive" and self._grants:
            self._grant = self._grants.popleft()
        if self._waits or self._resuming is not None:
            self.transport.pause_reading()
        if not self.queue.empty():
            await asyncio.sleep(0)  # a client with many messages lets others have their turns
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Sends a message of the collector. The first one says that the stream is welcome, or that it ends."""
        if message["type"] == "websocket.send":
            self.conn.max_message_size = self.config.ws_max_size
        await super().send(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected. A message that is still being written stays in memory until it is written."""
        if self._resuming is not None:
            self._resuming.cancel()
        for grant in (*self._grants, self._coming):
            if grant is not None:
                grant.release()
        self._grants.clear()
        super().connection_lost(exc)

    async def run_asgi(self) -> None:
        """Serves the connection to its end."""
        try:
            await super().run_asgi()
        finally:
            self._done()

    def _expect(self, size: int) -> None:
        """Sets how many bytes of a message are read next."""
        if size <= FREE or self._coming is not None:
            return
        self._coming = self._budget.request(size, self._granted)
        if not self._coming.granted:
            self._waits = True
            self.transport.pause_reading()

    def _granted(self) -> None:
        self._waits = any(grant is not None and not grant.granted for grant in (*self._grants, self._coming))
        self._resume()

    def _resume(self) -> None:
        """Reads on, unless something keeps it from that."""
        paused = self._waits or self._resuming is not None or self.read_paused
        if not paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _done(self) -> None:
        if self._grant is not None:
            self._grant.release()
            self._grant = None


class Handshake(asyncio.Protocol):
    """Agrees on TLS with a client; its connection counts meanwhile as any other, and has as much time to say what it wants.

    A server that leaves TLS to the loop hears of a connection when that is done: clients that connect and say nothing would
    hold as many descriptors as they like.
    """

    def __init__(
        self, context: ssl.SSLContext, limit: ConnectionLimit, server_state: ServerState, **options: Any
    ) -> None:
        """Args: how to agree; the limit of connections; then those of a protocol of uvicorn."""
        self._context, self._limit = context, limit
        self._request = HttpProtocol(limit, server_state=server_state, **options)
        self._connections: set[Any] = server_state.connections
        self._early = bytearray()
        """Bytes that no protocol has received yet."""
        self._begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins with the connection of a client."""
        self._transport = transport
        transport.pause_reading()  # what comes is for TLS; uvloop reads once all the same
        self._connections.add(self)
        self._limit.add(transport, len(self._connections))
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
                self._limit.refused(why, transport.get_extra_info("peername"))
        finally:
            self._connections.discard(self)
        if secured is None or transport.is_closing():
            self._limit.remove(transport)
            transport.abort()
            return
        self._request.counted = transport
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
    """The reason why a client certificate was not accepted; empty if this is another error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate (--client-ca)"
    return ""


def _feed(protocol: Any, data: bytes) -> None:
    """Passes earlier bytes to an `asyncio.BufferedProtocol`."""
    while data:
        buffer: memoryview = protocol.get_buffer(len(data))
        copied = min(len(buffer), len(data))
        buffer[:copied] = data[:copied]
        protocol.buffer_updated(copied)
        data = data[copied:]


class ConnectionLimit:
    """Closes connections that take too long to send a request, and, when there are too many, the one that is without a request for
    longest.

    So strangers that open connections and ask nothing cannot keep others out: those ask at once. Connections that are
    being answered, and those of exporters, are not touched.
    """

    def __init__(self, most: int, refused: Callable[[str, tuple[str, int] | None], object]) -> None:
        """
        Args:
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
            self._waiting[transport] = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self._end, transport)

    def remove(self, transport: asyncio.Transport) -> None:
        """Ends that time: the request is complete, or the client has disconnected. Idempotent."""
        timer = self._waiting.pop(transport, None)
        if timer is not None:
            timer.cancel()

    def _end(self, transport: asyncio.Transport) -> None:
        self.remove(transport)
        transport.close()
