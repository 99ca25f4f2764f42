"""The protocols of the web server, with bounds on who does not say what it wants, takes nothing, or sends too much at once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from h11 import IDLE, SEND_BODY
from litestar.response.base import ASGIResponse
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from stepscope.collector.memory_budget import FREE, Grant, MemoryBudget
from stepscope.collector.web.announced import Announced
from stepscope.collector.web.doorway import Doorway
from stepscope.exporters.stream.discreet import Discreet
from stepscope.exporters.stream.protocol import MAX_HEADER

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent

FIRST_MESSAGE = MAX_HEADER + 4
"""Bytes of a message of a WebSocket to which nothing was sent yet: it is no more than a header."""

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
"""Seconds after which a connection that takes nothing of what it is sent is cut."""


class _Stall:
    """Cuts a connection whose client takes nothing for too long: closing it would wait for what it does not take."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def begins(self, transport: asyncio.Transport) -> None:
        """More was written than it takes."""
        self.ends()
        self._timer = asyncio.get_running_loop().call_later(STALLED, transport.abort)

    def ends(self) -> None:
        """The client takes something, or has disconnected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class PromptRequests(H11Protocol):
    """HTTP for connections that say soon what they want, and take what they get."""

    doorway: Doorway
    """Of all connections together."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _web_log
        self._stall = _Stall()
        self.entrance: asyncio.Transport | None = None
        """The transport by which the doorway knows it; with TLS that is the connection below."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        if self.entrance is None:
            self.entrance = transport
            self.doorway.came(transport, len(self.connections))

    def data_received(self, data: bytes) -> None:
        """It says something."""
        super().data_received(data)
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Refuses bytes that are no HTTP."""
        self.doorway.refused("it speaks no HTTP: TLS to a collector without a certificate, perhaps", self.client)
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """It was answered, and may ask again."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """It has not taken what was written."""
        self._stall.begins(self.transport)
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        self._stall.ends()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        if self.entrance is not None:
            self.doorway.remove(self.entrance)
        self._stall.ends()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Tells the doorway if a part of a request is still to come; also of a body that was answered already."""
        assert self.entrance is not None
        if self.transport.get_protocol() is self and self.conn.their_state in (IDLE, SEND_BODY):
            self.doorway.waits(self.entrance)
        else:
            self.doorway.remove(self.entrance)


class ModestSockets(WebSocketsSansIOProtocol):
    """WebSockets whose messages may be large only when they were welcomed, and when there is room in memory for all of it.

    A connection whose message has to wait for that is not read any further meanwhile, so its client waits as well. What
    one read has brought of it by then is held in addition.
    """

    budget: MemoryBudget
    """Of all connections together."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _web_log
        self.conn.logger = Discreet(_web_log.name)
        self.conn.max_message_size = FIRST_MESSAGE
        self._stall = _Stall()
        self._announced: Announced | None = None
        self._grants: deque[Grant | None] = deque()
        """For the messages that come, in their order; none for small ones."""
        self._grant: Grant | None = None
        """For the message that is being looked at."""
        self._waits = False

    def data_received(self, data: bytes) -> None:
        """Something came."""
        if self._announced is None:
            self._announced = Announced(self.config.ws_max_size)  # this is the handshake
        else:
            for size in self._announced.feed(data):
                self._expect(min(size, self.conn.max_message_size or size))
        super().data_received(data)

    def handle_bytes(self, event: Frame) -> None:
        """A frame; the parser keeps it until the next one comes, which may be long, and with it all that it holds."""
        super().handle_bytes(event)
        event.data = b""

    def handle_text(self, event: Frame) -> None:
        """As `handle_bytes`, for text."""
        super().handle_text(event)
        event.data = b""

    def handle_cont(self, event: Frame) -> None:
        """As `handle_bytes`, for a continued message."""
        super().handle_cont(event)
        event.data = b""

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; who asks for it is done with the last one."""
        self._done()
        message = await super().receive()
        if message["type"] == "websocket.receive" and self._grants:
            self._grant = self._grants.popleft()
        if self._waits:
            self.transport.pause_reading()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Sends a message of the collector. The first one says that the stream is welcome, or that it ends."""
        if message["type"] == "websocket.send":
            self.conn.max_message_size = self.config.ws_max_size
        await super().send(message)

    def pause_writing(self) -> None:
        """It has not taken what was written."""
        self._stall.begins(self.transport)
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        self._stall.ends()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected. A message that is still being written stays in memory until it is written."""
        self._stall.ends()
        for grant in self._grants:
            if grant is not None:
                grant.release()
        self._grants.clear()
        super().connection_lost(exc)

    async def run_asgi(self) -> None:
        """Serves it to its end."""
        try:
            await super().run_asgi()
        finally:
            self._done()

    def _expect(self, size: int) -> None:
        if size <= FREE:
            self._grants.append(None)
            return
        grant = self.budget.request(size, self._granted)
        self._grants.append(grant)
        if not grant.granted:
            self._waits = True
            self.transport.pause_reading()

    def _granted(self) -> None:
        self._waits = any(grant is not None and not grant.granted for grant in self._grants)
        if not self._waits and not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _done(self) -> None:
        if self._grant is not None:
            self._grant.release()
            self._grant = None


def _check_dependencies() -> None:
    """Checks the names of uvicorn and websockets that are used here and are no part of their interfaces: a bound whose name has
    changed in another version would be off without a message.

    Raises:
        ImportError: naming what is missing, and the versions.
    """
    config = Config(ASGIResponse(), lifespan="off", log_config=None)
    config.load()
    arguments: dict[str, Any] = {"config": config, "server_state": ServerState(), "app_state": {}}
    loop = asyncio.new_event_loop()
    try:
        http, socket = H11Protocol(**arguments, _loop=loop), WebSocketsSansIOProtocol(**arguments, _loop=loop)
    finally:
        loop.close()
    missing = [
        f"{type(made).__name__}.{name}"
        for made, names in (
            (http, ("client", "conn", "connections", "logger", "transport")),
            (http, ("on_response_complete", "send_400_response", "pause_writing", "resume_writing")),
            (socket, ("config", "conn", "logger", "read_paused", "transport")),
            (socket, ("handle_bytes", "handle_cont", "handle_text", "receive", "run_asgi", "send")),
            (socket.conn, ("logger", "max_message_size")),
        )
        for name in names
        if not hasattr(made, name)
    ]
    if missing:
        found = " and ".join(f"{name} {version(name)}" for name in ("uvicorn", "websockets"))
        raise ImportError(
            f"the collector cannot bound connections with {found}, which lack {', '.join(missing)}: install the versions that "
            "stepscope[collector] asks for"
        )


_check_dependencies()


def requests(door: Doorway) -> type[PromptRequests]:
    """HTTP for connections that share the bound on how many there are."""

    class Requests(PromptRequests):
        doorway = door

    return Requests


def sockets(bound: MemoryBudget) -> type[ModestSockets]:
    """WebSockets that share the bound on what is held of all their messages."""

    class Sockets(ModestSockets):
        budget = bound

    return Sockets
