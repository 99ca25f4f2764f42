"""The connection to NATS: publishes the journal until JetStream has stored all of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging

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
from stepscope.exporters.stream.shipper import Chunk
from stepscope.exporters.stream.transport import Feed, LinkSettings, Transport
from stepscope.runtime.errors import FormatError
from stepscope.runtime.loop_threads.ending_tasks import end_tasks

log = logging.getLogger("stepscope")

HELLO_SECONDS = 5.0
"""Between two `Hello`s before summaries, by which collectors know whose these are."""


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
        hello = self._feed.hello
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
        await layout.put(jetstream, self._names.hellos, names.key, protocol.encode(self._feed.hello))
        stored = await layout.stored_before(jetstream, self._names, names.frames)
        self._shipper.resume(max(stored, self._shipper.confirmed.number))
        self._changed.set()  # that may have been all

    async def _request(self, client: Client, subject: str, ping: bytes) -> None:
        """Asks whichever collector takes the stream for its clock; perhaps none does now."""
        with contextlib.suppress(NatsError, TimeoutError, FormatError):
            reply = await client.request(subject, ping, timeout=self._settings.timeout)
            header, _ = protocol.decode(reply.data)
            if isinstance(header, protocol.Pong):
                self._compared(header)

    async def _repeat_hello(self, jetstream: JetStreamContext, key: str) -> None:
        """Sends `Hello` again before the server deletes it: collectors need it as long as the stream has messages."""
        delay = layout.HELLO_SPARE_S / 2
        while True:
            await asyncio.sleep(delay)
            try:
                await layout.put(jetstream, self._names.hellos, key, protocol.encode(self._feed.hello))
                delay = layout.HELLO_SPARE_S / 2
            except (NatsError, TimeoutError) as error:
                await self._note_error(error)
                delay = self._settings.longest_delay

    async def _publish_summaries(self, client: Client, subject: str) -> None:
        """Publishes summaries as they come, and `Hello` before them. While the connection is lost they wait, and the oldest are dropped."""
        clock = asyncio.get_running_loop().time
        due = 0.0
        while True:
            self._summarized.clear()
            while client.is_connected and (summary := self._next_summary()) is not None:
                try:
                    if clock() >= due:
                        await client.publish(subject, protocol.encode(self._feed.hello))
                        due = clock() + HELLO_SECONDS
                    await client.publish(subject, summary)
                except NatsError as error:
                    await self._note_error(error)
            await self._summarized.wait()

    async def _ordered(self, message: Msg) -> None:
        """Carries out a command, and sends the answer."""
        try:
            order, _ = protocol.decode(message.data)
        except FormatError as error:
            log.warning("%s: a command cannot be read, and is ignored: %s", self.where, error)
            return
        if isinstance(order, protocol.Order):
            self._take_order(order, message.respond)

    async def _publish_all(self, jetstream: JetStreamContext, subject: str, stream: str) -> None:
        """Publishes one message after the other, so that JetStream has the frames of a stream in their order."""
        while True:
            self._news.clear()
            chunk = self._shipper.next_chunk(min(self._max_bytes, self._settings.message_bytes))
            if chunk is None:
                await self._news.wait()
                continue
            if len(chunk.data) > self._max_bytes:
                self._leave_out(chunk)
            else:
                await self._publish(jetstream, subject, stream, chunk)
                self._last_error = ""
            self._confirm(chunk.end.number)

    def _leave_out(self, chunk: Chunk) -> None:
        if not self._shipper.left_out:
            log.error(
                "%s: frame %d has %s bytes, and the server's max_payload leaves room for %s: such frames are left out; "
                "set a larger max_payload",
                self.where, chunk.begin.number, f"{len(chunk.data):,}", f"{self._max_bytes:,}",
            )  # fmt: skip
        self._shipper.skip_chunk(chunk)

    async def _publish(self, jetstream: JetStreamContext, subject: str, stream: str, chunk: Chunk) -> None:
        """Publishes until JetStream says that it is stored; a repetition is known by its id, and stored once."""
        first = chunk.begin.number
        data = protocol.encode(protocol.Frames(first, chunk.count, chunk.segment, chunk.begin.at), chunk.data)
        headers = {"Nats-Msg-Id": f"{stream}:{first}:{chunk.end.number}"}
        backoff = Backoff(self._settings.first_delay, self._settings.longest_delay)
        while True:
            try:
                await jetstream.publish(
                    subject, data, timeout=self._settings.timeout, stream=self._names.stream, headers=headers
                )
                return
            except (ConnectionClosedError, NoStreamResponseError, MaxPayloadError):
                raise  # the server has closed it, the stream was deleted, or another server takes less: connect again
            except (NatsError, TimeoutError) as error:
                await self._note_error(error)
            await self._pause(backoff, backoff.delay())
