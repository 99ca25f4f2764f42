"""The connection to NATS: publishes the journal until JetStream has stored all of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError, MaxPayloadError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import NoStreamResponseError

from stepscope.exporters.nats import layout
from stepscope.exporters.nats.connection import connect
from stepscope.exporters.nats.names import Names, StreamNames
from stepscope.exporters.nats.servers import NatsLimits, Servers
from stepscope.exporters.network.backoff import Backoff
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.transport import Feed, LinkSettings, Transport
from stepscope.runtime.errors import FormatError
from stepscope.runtime.loop_threads.ending_tasks import end_tasks

log = logging.getLogger("stepscope")


class _Message(msgspec.Struct, frozen=True):
    """One publication. It is repeated as it is until it is confirmed: its id stands for these frames and no others."""

    next: int
    """Number of the frame after its last one."""
    id: str
    data: bytes
    """Empty if the frame is too large for the server, and is left out."""
    oldest: int
    """Frames before this one were stored, or are nowhere."""


class NatsTransport(Transport):
    """A connection to NATS, which its client makes again when it is lost; publishes until all is stored."""

    _closed_error = NatsError

    def __init__(self, servers: Servers, names: Names, limits: NatsLimits, settings: LinkSettings, feed: Feed) -> None:
        super().__init__(f"NATS at {servers}", settings, feed)
        self._servers, self._names, self._limits = servers, names, limits
        self._max_bytes = 0
        """Bytes of a message that the server takes."""
        self._summarized = asyncio.Event()

    def summarize(self, summary: protocol.StepSummary) -> None:
        """Publishes facts of steps as soon as there is a connection, beside frames that wait."""
        super().summarize(summary)
        self._summarized.set()

    def _reason(self, failure: Exception) -> tuple[str, bool]:
        if isinstance(failure, NatsError):
            return f"{type(failure).__name__}: {failure}", False
        return super()._reason(failure)

    async def _note_error(self, error: Exception) -> None:
        """Logs and shows an error of the client, which tries again. A timeout does not replace an earlier error, which says more."""
        if not (isinstance(error, TimeoutError) and self._last_error):
            self._fail(self._reason(error)[0][:500])

    async def _lost(self) -> None:
        self._connected = False

    async def _back(self) -> None:
        self._established()
        self._summarized.set()

    async def _connection(self) -> None:
        hello = self._feed.hello()
        names = self._names.of(hello.run, hello.stream)
        client = await connect(
            self._servers,
            connect_timeout=self._settings.timeout,
            max_reconnect_attempts=-1,
            reconnect_time_wait=self._settings.first_delay,
            error_cb=self._note_error,
            disconnected_cb=self._lost,
            reconnected_cb=self._back,
            inbox_prefix=names.inbox,
        )
        await self._back()
        try:
            jetstream = layout.jetstream(client, self._settings.timeout)
            if self._feed.obey is not None:  # before the stream is announced: a collector may give a command at once
                await layout.answer(client, names.orders, self._ordered)
            try:
                await self._greet(jetstream, names)
            except (NoStreamResponseError, TimeoutError):  # the team has no bucket yet, or no stream
                await layout.create(jetstream, self._names, self._limits)
                await self._greet(jetstream, names)
            self._max_bytes = client.max_payload - layout.OVERHEAD
            background = (
                self._compare_clocks(lambda ping: self._request(client, names.clock, ping)),
                self._repeat_hello(jetstream, names.key),
                self._publish_summaries(client, names.live),
            )
            tasks = [asyncio.ensure_future(work) for work in background]
            try:
                await self._publish_all(jetstream, names.frames, hello.stream)
            except (
                NoStreamResponseError
            ):  # somebody has deleted it; the next connection would ask for it until a timeout
                await layout.create(jetstream, self._names, self._limits)
                raise
            finally:
                await end_tasks(*tasks)
        finally:
            try:
                await end_tasks(*self._orders)
            finally:
                await client.close()

    async def _greet(self, jetstream: JetStreamContext, names: StreamNames) -> None:
        """Sends `Hello`, and continues where JetStream's last message of it ends."""
        await layout.put(jetstream, self._names.hellos, names.key, protocol.encode(self._feed.hello()))
        stored = await layout.stored_before(jetstream, self._names, names.frames)
        self._shipper.resume(max(stored, self._shipper.confirmed.number))

    async def _request(self, client: Client, subject: str, ping: bytes) -> None:
        """Asks whichever collector takes the stream for its clock; perhaps none does now."""
        with contextlib.suppress(NatsError, TimeoutError, FormatError):
            reply = await client.request(subject, ping, timeout=self._settings.timeout)
            header, _ = protocol.decode(reply.data)
            if isinstance(header, protocol.Pong):
                self._compared(header)

    async def _repeat_hello(self, jetstream: JetStreamContext, key: str) -> None:
        """Sends `Hello` again before the server deletes it: collectors need it as long as the stream has messages."""
        delay = layout.HELLO_SPARE / 2
        while True:
            await asyncio.sleep(delay)
            try:
                await layout.put(jetstream, self._names.hellos, key, protocol.encode(self._feed.hello()))
                delay = layout.HELLO_SPARE / 2
            except (NatsError, TimeoutError) as error:
                await self._note_error(error)
                delay = self._settings.longest_delay

    async def _publish_summaries(self, client: Client, subject: str) -> None:
        """Publishes summaries as they come. While the connection is lost they wait, and the oldest are dropped."""
        while True:
            self._summarized.clear()
            while client.is_connected and (summary := self._next_summary()) is not None:
                try:
                    await client.publish(subject, summary)
                except NatsError as error:
                    await self._note_error(error)
            await self._summarized.wait()

    async def _ordered(self, message: Msg) -> None:
        """Has a command carried out."""
        try:
            order, _ = protocol.decode(message.data)
        except FormatError as error:
            log.warning("%s: a command cannot be read, and is ignored: %s", self.where, error)
            return
        if isinstance(order, protocol.Order):
            self._take_order(order, message.respond)

    async def _publish_all(self, jetstream: JetStreamContext, subject: str, stream: str) -> None:
        waiting: deque[tuple[_Message, asyncio.Task[bool]]] = deque()
        try:
            while True:
                self._news.clear()
                while _has_room(waiting):
                    message = self._compose(stream, all_stored=not waiting)
                    if message is None:
                        break
                    waiting.append((message, asyncio.create_task(self._publish(jetstream, subject, message))))
                if not waiting:
                    await self._news.wait()
                    continue
                await asyncio.wait({waiting[0][1]}, return_when=asyncio.FIRST_COMPLETED)
                while waiting and waiting[0][1].done():
                    message, task = waiting.popleft()
                    task.result()
                    self._last_error = ""
                    self._confirm(message.next)
        finally:
            await end_tasks(*(task for _, task in waiting))

    def _compose(self, stream: str, *, all_stored: bool) -> _Message | None:
        """The next message; `None` if there is nothing to send.

        Args:
            all_stored: whether everything that was taken before is stored.
        """
        shipper = self._shipper
        oldest = shipper.confirmed.number
        chunk = shipper.next_chunk(min(self._max_bytes, self._settings.message_bytes))
        if chunk is None:
            return None
        first, next = chunk.begin.number, chunk.end.number
        if len(chunk.data) > self._max_bytes:
            if not shipper.left_out:
                log.error(
                    "%s: frame %d has %s bytes, and the server's max_payload leaves room for %s: such frames are left out; "
                    "set a larger max_payload",
                    self.where, first, f"{len(chunk.data):,}", f"{self._max_bytes:,}",
                )  # fmt: skip
            shipper.skip_chunk(chunk)
            return _Message(next, "", b"", oldest)
        data = protocol.encode(protocol.Frames(first, chunk.count, chunk.segment, chunk.begin.at), chunk.data)
        return _Message(next, f"{stream}:{first}:{next}", data, first if all_stored else oldest)

    async def _publish(self, jetstream: JetStreamContext, subject: str, message: _Message) -> bool:
        """Publishes until JetStream says that it is stored; a repetition is known by its id, and stored once."""
        backoff = Backoff(self._settings.first_delay, self._settings.longest_delay)
        while message.data:
            try:
                await jetstream.publish(
                    subject,
                    message.data,
                    timeout=self._settings.timeout,
                    stream=self._names.stream,
                    headers={"Nats-Msg-Id": message.id, layout.OLDEST: str(message.oldest)},
                )
                return True
            except (ConnectionClosedError, NoStreamResponseError, MaxPayloadError):
                raise  # the server has closed it, the stream was deleted, or another server takes less: connect again
            except (NatsError, TimeoutError) as error:
                await self._note_error(error)
            await asyncio.sleep(backoff.delay())
        return False


def _has_room(waiting: Sequence[tuple[_Message, object]]) -> bool:
    """Whether another message may be published in addition to those that wait to be stored.

    None follows a frame that is left out until all before it are stored: the next message says then that it does not come.
    """
    size = sum(len(message.data) for message, _ in waiting)
    oversized = waiting and not waiting[-1][0].data
    return len(waiting) < layout.IN_FLIGHT and size < layout.IN_FLIGHT_BYTES and not oversized
