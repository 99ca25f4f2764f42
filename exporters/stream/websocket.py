"""The connection to a collector, by WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidMessage, InvalidProxy, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from stepscope.exporters.network.http_failures import redirected, wants_plain, wants_tls
from stepscope.exporters.network.secrets import QuietLogger
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.address import NO_TOKEN, Address
from stepscope.exporters.stream.transport import Feed, LinkSettings, Transport
from stepscope.runtime.errors import FormatError
from stepscope.runtime.loop_threads.ending_tasks import end_tasks

log = logging.getLogger("stepscope")

IN_FLIGHT = 16 << 20
"""Bytes that may be sent and not confirmed."""
REFUSALS = frozenset({400, 401, 403, 404, 405, 410, 426})
"""HTTP answers that somebody has to do something about."""
_ADVICE = {
    401: NO_TOKEN,
    403: "its token has not the scope `ingest`, or the collector does not accept this host name (--allowed-host)",
    404: f"a collector takes streams at {protocol.PATH}, which is where a URL without a path leads",
}
SMALL = 64 << 10
"""Bytes of frames that are sent at once. Fewer wait for more, as long as the collector asks for."""
SMALLEST = 16 << 10
"""Bytes of a message that is sent to a collector which did not confirm larger ones in time."""
MOST_PATIENCE = 16
"""How many times `timeout` a collector may take to confirm the smallest messages."""
CLOSING_TIMEOUT_S = 1.0
"""Seconds for a collector to answer that the connection ends."""


class _ConnectWithoutRedirects(connect):
    """Follows no redirect: it would take the stream, and who may send commands, to a host that nobody named."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Returns the error: redirects are not followed."""
        return exc


class WebSocketTransport(Transport):
    """A WebSocket to a collector, made, lost and made again."""

    _closed_error = WebSocketException

    def __init__(self, address: Address, settings: LinkSettings, tls: ssl.SSLContext | None, feed: Feed) -> None:
        """
        Args:
            tls: how to check the collector's certificate; `None`: as usual.
        """
        super().__init__(f"the collector at {address.url}", settings, feed)
        self._address, self._tls = address, tls
        self._socket: ClientConnection | None = None
        self._most_bytes = self._message_bytes = settings.message_bytes
        self._largest = protocol.MAX_MESSAGE
        self._patience = 1
        self._last_received = self._gather_s = 0.0

    def abort(self) -> None:
        """Ends it at once. Idempotent."""
        super().abort()
        if self._socket is not None:
            self._socket.transport.abort()

    def _reason(self, failure: Exception) -> tuple[str, bool]:
        if isinstance(failure, InvalidStatus):
            status = failure.response.status_code
            if 300 <= status < 400:
                location = failure.response.headers.get("Location", "")
                return f"it answered {status} to the connection, {redirected(location)}", True
            advice = f": {_ADVICE[status]}" if status in _ADVICE else ""
            return f"it answered {status} to the connection{advice}", status in REFUSALS
        if isinstance(failure, _Refusal):
            return f"it refuses this stream: {failure}", not failure.retry
        if isinstance(failure, InvalidProxy):  # its text has the URL, perhaps with a password
            return "the proxy that the environment names is none: it must be a URL such as http://host:port", False
        if isinstance(failure, InvalidMessage) and self._address.url.startswith("ws:") and not self._connections:
            return wants_tls("wss"), False
        if problem := wants_plain(failure, "ws"):
            return problem, True
        if isinstance(failure, WebSocketException):
            return f"{type(failure).__name__}: {failure}", False
        return super()._reason(failure)

    async def _connection(self) -> None:
        async with _ConnectWithoutRedirects(
            self._address.url,
            additional_headers=self._address.headers(),
            subprotocols=[Subprotocol(protocol.SUBPROTOCOL)],
            compression=None,  # frames are compressed already
            proxy=None if self._address.is_local else True,
            max_size=protocol.MAX_HEADER + 4,
            open_timeout=self._settings.timeout,
            close_timeout=min(CLOSING_TIMEOUT_S, self._settings.timeout),
            ping_interval=None,  # confirmations and the comparisons of the clocks are the signs of life
            ssl=(self._tls or True) if self._address.url.startswith("wss:") else None,
            logger=QuietLogger("websockets.client"),
        ) as socket:
            self._socket = socket
            try:
                await self._converse(socket)
            except BaseException:
                # A collector that breaks the protocol, or does not answer, is not waited for.
                socket.transport.abort()
                raise
            finally:
                self._socket = None

    async def _converse(self, socket: ClientConnection) -> None:
        if socket.subprotocol != protocol.SUBPROTOCOL:
            raise FormatError(f"it does not speak {protocol.SUBPROTOCOL}")
        try:
            async with asyncio.timeout(self._settings.timeout * self._patience):
                await socket.send(protocol.encode(self._feed.hello))
                welcome = await _receive(socket)
        except TimeoutError:
            # It may have to read what it has of this stream.
            self._patience = min(2 * self._patience, MOST_PATIENCE)
            raise
        if isinstance(welcome, protocol.Refused):
            raise _Refusal(welcome)
        if not isinstance(welcome, protocol.Welcome):
            raise FormatError(f"the collector answered {type(welcome).__name__} to Hello")
        self._last_received = asyncio.get_running_loop().time()
        self._largest = welcome.largest
        self._gather_s = welcome.gather_ms / 1e3
        if welcome.segment_bytes:
            self._feed.limit_segments(welcome.segment_bytes)
        self._most_bytes = max(min(self._settings.message_bytes, welcome.max_message), SMALLEST)
        self._message_bytes = min(self._message_bytes, self._most_bytes)
        self._shipper.resume(welcome.next, welcome.checksum)
        self._established()
        # In this order: the collector's own reason says more than a closed connection.
        parts = (self._listen(socket), self._send(socket), self._compare_clocks(socket.send), self._watch())
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(*tasks, *self._orders)
            # A connection that is lost fails several of them at once; one says why.
            failures = {task: task.exception() for task in tasks if not task.cancelled()}
        for task, failure in failures.items():
            if task in done and failure is not None:
                raise failure

    async def _send(self, socket: ClientConnection) -> None:
        loop, sent = asyncio.get_running_loop(), -math.inf
        while True:
            self._news.clear()
            while (summary := self._next_summary()) is not None:
                await socket.send(summary)
            has_room = self._shipper.sent_bytes < IN_FLIGHT
            remaining = (
                0.0 if self._hurried or self._shipper.unsent_bytes >= SMALL else sent + self._gather_s - loop.time()
            )
            chunk = self._shipper.next_chunk(self._message_bytes) if has_room and remaining <= 0 else None
            if chunk is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(remaining if remaining > 0 else None):
                        await self._news.wait()
                continue
            sent = loop.time()
            frames = protocol.Frames(chunk.begin.number, chunk.count, chunk.segment, chunk.begin.at)
            message = protocol.encode(frames, chunk.data)
            if len(message) <= self._largest:
                await socket.send(message)
            else:
                self._shipper.skip_chunk(chunk)
                log.error(
                    "%s: frame %d is left out: it takes %s bytes, and the collector takes %s (--max-message)",
                    self.where, chunk.begin.number, f"{len(message):,}", f"{self._largest:,}",
                )  # fmt: skip

    async def _listen(self, socket: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        while True:
            header = await _receive(socket)
            self._last_received = loop.time()
            match header:
                case protocol.Ack():
                    self._confirm(header.next)
                case protocol.Pong():
                    self._compared(header)
                case protocol.Order():
                    self._take_order(header, socket.send)
                case protocol.Refused():
                    raise _Refusal(header)
                case _:
                    raise FormatError(f"the collector sent {type(header).__name__}")

    def _confirm(self, next: int) -> None:
        self._patience = 1
        self._message_bytes = min(2 * self._message_bytes, self._most_bytes)
        super()._confirm(next)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while (remaining := self._last_received + self._settings.timeout * self._patience - loop.time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(remaining)
        # It may be slow: less is sent at once next time, and it has longer to answer.
        self._message_bytes = max(self._message_bytes // 4, SMALLEST)
        self._patience = min(2 * self._patience, MOST_PATIENCE)
        raise TimeoutError("the collector gives no sign of life")


class _Refusal(Exception):
    """The collector refuses the stream."""

    def __init__(self, refusal: protocol.Refused) -> None:
        super().__init__(refusal.reason[:200])
        self.retry = refusal.retry


async def _receive(socket: ClientConnection) -> protocol.Header:
    message = await socket.recv()
    if isinstance(message, str):
        raise FormatError("the collector sent text")
    return protocol.decode(message)[0]
