"""The connection to NATS: publishes the backlog until JetStream has stored all of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from stepscope.exporters.collector import protocol
from stepscope.exporters.collector.backlog import Backlog
from stepscope.exporters.collector.connecting import Connecting
from stepscope.exporters.collector.settings import LinkSettings
from stepscope.exporters.nats import layout
from stepscope.runtime.ending_tasks import end_tasks
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import ClockSync

IN_FLIGHT = 64
"""Messages that may be published and not confirmed."""


class _Message(msgspec.Struct):
    """One publication. It is repeated as it is until it is confirmed: its id stands for these frames and no others."""

    next: int
    id: str
    data: bytes


class NatsLink(Connecting):
    """A connection to NATS, which its client makes again when it is lost; publishes until all is stored."""

    def __init__(
        self,
        servers: list[str],
        settings: LinkSettings,
        backlog: Backlog,
        hello: Callable[[], protocol.Hello],
        *,
        synced: Callable[[ClockSync], object] = lambda _: None,
        **access: object,
    ) -> None:
        """
        Args:
            servers: their URLs.
            settings: times and sizes.
            backlog: what to send.
            hello: which stream this is.
            synced: is given each comparison with the clock of the collector that takes the stream.
            access: how to get in, as `nats.connect` has it.
        """
        super().__init__(f"NATS at {', '.join(servers)}", settings, backlog, hello, synced=synced)
        self._servers, self._access = servers, access

    def _reason(self, failure: Exception) -> tuple[str, bool]:
        if isinstance(failure, NatsError):
            return f"{type(failure).__name__}: {failure}", False
        return super()._reason(failure)

    async def _told(self, error: Exception) -> None:
        """What the client is up to while it connects again."""
        self._fail(self._reason(error)[0][:500])

    async def _lost(self) -> None:
        self._connected = False

    async def _back(self) -> None:
        self._established()

    async def _connection(self) -> None:
        client = await layout.connect(
            self._servers,
            connect_timeout=self._settings.timeout,
            max_reconnect_attempts=-1,
            reconnect_time_wait=self._settings.first_delay,
            error_cb=self._told,
            disconnected_cb=self._lost,
            reconnected_cb=self._back,
            **self._access,
        )
        await self._back()
        try:
            jetstream = layout.jetstream(client, self._settings.timeout)
            hello = self._hello()
            await layout.stream(jetstream)
            hellos = await layout.bucket(jetstream, layout.HELLOS)
            await hellos.put(hello.stream, protocol.encode(hello))
            self._backlog.resume(self._backlog.oldest)
            comparing = asyncio.create_task(self._compare_clocks(lambda ping: self._ask(client, hello.stream, ping)))
            try:
                await self._publish_all(jetstream, hello.stream, client.max_payload - layout.OVERHEAD)
            finally:
                await end_tasks(comparing)
        finally:
            await client.close()

    async def _ask(self, client: Client, stream: str, ping: bytes) -> None:
        """Asks whichever collector takes the stream for its clock; perhaps none does now."""
        with contextlib.suppress(NatsError, TimeoutError, FormatError):
            reply = await client.request(f"{layout.CLOCKS}.{stream}", ping, timeout=self._settings.timeout)
            header, _ = protocol.decode(reply.data)
            if isinstance(header, protocol.Pong):
                self._compared(header)

    async def _publish_all(self, jetstream: JetStreamContext, stream: str, most: int) -> None:
        waiting: deque[tuple[_Message, asyncio.Task[bool]]] = deque()
        most = min(most, self._settings.message_bytes)
        try:
            while True:
                self._news.clear()
                while len(waiting) < IN_FLIGHT:
                    messages = self._compose(stream, most)
                    if not messages:
                        break
                    for message in messages:
                        waiting.append((message, asyncio.create_task(self._publish(jetstream, stream, message))))
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

    def _compose(self, stream: str, most: int) -> list[_Message]:
        """What to publish next, in messages that the server takes: divided between frames where need be."""
        pieces = self._backlog.take(most)
        if not pieces:
            return []
        number = pieces[0].first
        messages: list[_Message] = []
        for part, count in _divided(b"".join(piece.read() for piece in pieces), most):
            data = protocol.encode(protocol.Frames(number, count), part)
            messages.append(_Message(number + count, f"{stream}:{number}:{number + count}", data))
            number += count
        return messages

    async def _publish(self, jetstream: JetStreamContext, stream: str, message: _Message) -> bool:
        """Publishes until JetStream says that it is stored; a repetition is known by its id, and stored once."""
        delay = self._settings.first_delay
        while True:
            try:
                await jetstream.publish(
                    f"{layout.SUBJECTS}.{stream}",
                    message.data,
                    timeout=self._settings.timeout,
                    stream=layout.STREAM,
                    headers={"Nats-Msg-Id": message.id},
                )
                return True
            except (NatsError, TimeoutError) as error:
                await self._told(error)
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._settings.longest_delay)


def _divided(data: bytes, most: int) -> Iterator[tuple[memoryview, int]]:
    """Frames in parts of at most `most` bytes, each with the number of its frames; a frame is never divided."""
    view, start, at, count = memoryview(data), 0, 0, 0
    while at < len(data):
        length = fmt.FRAME_HEADER.unpack_from(data, at)[5]
        end = at + fmt.FRAME_HEADER.size + length
        if count and end - start > most:
            yield view[start:at], count
            start, count = at, 0
        at, count = end, count + 1
    if count:
        yield view[start:], count
