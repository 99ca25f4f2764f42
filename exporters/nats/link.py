"""The connection to NATS: publishes the backlog until JetStream has stored all of it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator

import msgspec
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from stepscope.exporters.collector import protocol
from stepscope.exporters.collector.backlog import Backlog
from stepscope.exporters.collector.connecting import LinkStatistics
from stepscope.exporters.collector.settings import LinkSettings
from stepscope.exporters.nats import layout
from stepscope.runtime.journal import format as fmt

log = logging.getLogger("stepscope")

IN_FLIGHT = 64
"""Messages that may be published and not confirmed."""


class _Message(msgspec.Struct):
    """One publication. It is repeated as it is until it is confirmed: its id stands for these frames and no others."""

    next: int
    id: str
    data: bytes


class NatsLink:
    """Runs on the exporter's loop, beside its calls."""

    def __init__(
        self,
        servers: list[str],
        settings: LinkSettings,
        backlog: Backlog,
        hello: Callable[[], protocol.Hello],
        **access: object,
    ) -> None:
        """
        Args:
            servers: their URLs.
            settings: times and sizes.
            backlog: what to send.
            hello: which stream this is.
            access: how to get in, as `nats.connect` has it.
        """
        self._servers, self._settings, self._access = servers, settings, access
        self._backlog, self._hello = backlog, hello
        self._news, self._confirmed = asyncio.Event(), asyncio.Event()
        self._connections = self._frames = 0
        self._connected = False
        self._last_error = ""
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """There is something to send."""
        self._news.set()

    def start(self) -> None:
        """Begins to connect."""
        self._task = asyncio.create_task(self._run(), name="stepscope nats link")

    async def settled(self) -> bool:
        """Waits until everything is stored."""
        while len(self._backlog):
            self._confirmed.clear()
            await self._confirmed.wait()
        return True

    async def close(self) -> None:
        """Ends the connection in order. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def abort(self) -> None:
        """Ends it at once. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        delay = self._settings.first_delay
        while True:
            try:
                await self._connection()
            except (OSError, NatsError, TimeoutError) as error:
                self._note(error)
            self._connected = False
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._settings.longest_delay)

    async def _note_error(self, error: Exception) -> None:
        self._note(error)

    def _note(self, error: BaseException) -> None:
        if not self._last_error:
            log.warning("NATS cannot be reached, and is tried again: %s", error)
        self._last_error = f"{type(error).__name__}: {error}"

    async def _lost(self) -> None:
        self._connected = False

    async def _back(self) -> None:
        self._connected = True
        self._connections += 1

    async def _connection(self) -> None:
        client = await layout.connect(
            self._servers,
            connect_timeout=self._settings.timeout,
            max_reconnect_attempts=-1,
            reconnect_time_wait=self._settings.first_delay,
            error_cb=self._note_error,
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
            await self._publish_all(jetstream, hello.stream, client.max_payload - layout.OVERHEAD)
        finally:
            await client.close()

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
                    self._frames = message.next
                    self._last_error = ""
                    self._backlog.confirm(message.next)
                    self._confirmed.set()
        finally:
            for _, task in waiting:
                task.cancel()
            await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)

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
                self._note(error)
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._settings.longest_delay)

    def statistics(self) -> LinkStatistics:
        """What it has been through so far."""
        return LinkStatistics(self._connected, self._connections, self._frames, False, self._last_error)


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
