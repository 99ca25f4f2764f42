"""Writes the messages of one stream to the collector's files, until the stream has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from nats.aio.msg import Msg

from stepscope.collector.files.store import Store
from stepscope.collector.files.stream_file import NewFrames, StreamFile
from stepscope.collector.live.stream import DIED_AFTER, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.nats.consumer import ACK_SECONDS, MAX_UNACKNOWLEDGED, Consumer
from stepscope.collector.nats.coordination import Session
from stepscope.collector.nats.fetching import BufferedMessage, FlowControlledFetch, ReorderBuffer
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import FormatError

GAP_SECONDS = 120.0
"""Seconds after the last message of an exporter until frames that JetStream never had count as lost. An exporter publishes every few
seconds as long as it is connected."""


class Ingest:
    """Writes one stream. Each frame is written once and in order, also if JetStream delivers it again, or a process was killed.

    A message is acknowledged when its frames are written. Messages that are out of order wait in a buffer for those before them.
    Frames count as lost only if JetStream, read from the beginning, does not have them, and the exporter does not have them either,
    or nothing has come from it for `GAP_SECONDS`.

    Args:
        session: where the stream is.
        store: where it is written.
        streams: notes what was written.
        hello: the `Hello` of the stream.
        refuse: called with the reason when a message is refused.
        gap_seconds: instead of `GAP_SECONDS`.
        silent_seconds: after so many seconds without a message the stream counts as not connected, and its file is closed until
            the next one.
        ack_seconds: instead of `ACK_SECONDS`.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        streams: Streams,
        hello: protocol.Hello,
        refuse: Callable[[str], object],
        *,
        gap_seconds: float = GAP_SECONDS,
        silent_seconds: float = DIED_AFTER,
        ack_seconds: float = ACK_SECONDS,
    ) -> None:
        self._store, self._streams, self._hello = store, streams, hello
        self._refuse, self._gap_seconds, self._silent_seconds = refuse, gap_seconds, silent_seconds
        identity = store.identity()
        self._consumer = Consumer(session.client, session.jetstream, identity, hello.stream, ack_seconds)
        self._buffer = ReorderBuffer()
        self._fetch = FlowControlledFetch(self._consumer, session.client.max_payload, self._buffer, session.budget)
        self._last_message = 0.0
        """When the exporter's last message came."""
        self.size = 0
        """Bytes of the stream's files."""
        self.is_idle = False
        """Whether the buffer is empty, and the last request got no message."""
        self.has_fetched = False
        """Whether any request succeeded."""

    async def run(self) -> None:
        """Returns when the stream has ended and all of it is written.

        Raises:
            nats.errors.Error: if JetStream cannot be used, or its stream was deleted.
            TimeoutError: if it does not answer.
            FormatError: if the file has another stream.
            FullError: if a limit is reached.
            OSError: if the file cannot be written.
        """
        task = asyncio.current_task()
        assert task is not None
        self._last_message = asyncio.get_running_loop().time()
        started = ended = False
        try:
            while not ended:
                async with self._store.stream(self._hello, task.cancel) as file:
                    with self._streams.connected(self._hello, self) as stream:
                        if not (started and file.next):
                            self._buffer.clear()  # all messages are delivered again
                            await self._consumer.start(again=not file.next)
                            started = True
                        ended = await self._write_until_silent(file, stream)
                while not ended and not len(self._buffer):
                    await self._receive()
        finally:
            try:
                await self._buffer.return_all()
            finally:
                self._fetch.release()
        await self._consumer.delete()

    async def _write_until_silent(self, file: StreamFile, stream: Stream) -> bool:
        """Writes messages as they come. Returns whether the stream has ended; false after `silent_seconds` without a message.

        The stream of a killed process must not count as connected for ever, nor its file as one that is being written.
        """
        while True:
            await self._write(file, stream)
            if file.ended:
                return True
            await self._receive()
            if self.is_idle and asyncio.get_running_loop().time() - self._last_message >= self._silent_seconds:
                return False

    async def _receive(self) -> None:
        messages = await self._fetch.fetch()
        if not messages:
            # If the consumer was deleted, no reply says so, and no message would ever come: this raises.
            info = await self._consumer.info()
            if not info.num_pending and not info.num_ack_pending:
                self._fetch.note_empty()
        for message in messages:
            try:
                if self._buffer.add(message):
                    self._last_message = asyncio.get_running_loop().time()
            except FormatError as error:
                await self._terminate(message, error)
        self.has_fetched = True
        self.is_idle = not messages and not len(self._buffer)

    async def _write(self, file: StreamFile, stream: Stream) -> None:
        await self._append(file, stream)
        self.size = file.size
        first = self._buffer.first
        if first is not None and not file.ended and await self._is_lost_before(first.frames.first):
            await self._append(file, stream, first)
        self._fetch.release_unused()

    async def _append(self, file: StreamFile, stream: Stream, after_gap: BufferedMessage | None = None) -> None:
        """Writes the messages that follow the end of the file, and acknowledges them. What the file has is only acknowledged.

        Args:
            file: the file of the stream.
            stream: counts what was written.
            after_gap: a message that is written although frames before it are missing.
        """
        while (first := self._buffer.first) is not None and (first is after_gap or first.frames.first <= file.next):
            try:
                new_frames = file.check(first.frames, first.payload)
            except FormatError as error:
                self._buffer.remove(first)
                await self._terminate(first.message, error)
                continue
            try:
                await self._store.write(file, new_frames, self._hello, partial(self._count, stream, new_frames))
            finally:
                await self._streams.noting.caught_up(stream)
            await first.message.ack()
            self._buffer.remove(first)

    async def _terminate(self, message: Msg, error: FormatError) -> None:
        """Has JetStream never deliver a message again: it would be no better the next time."""
        self._refuse(str(error))
        await message.term()

    async def _is_lost_before(self, first: int) -> bool:
        """Whether the frames that are missing before this number will not come any more."""
        loop = asyncio.get_running_loop()
        try:
            info = await self._consumer.info()
        except TimeoutError:
            self._last_message = loop.time()  # the exporter cannot reach NATS either
            return False
        if (info.num_ack_pending or 0) > len(self._buffer):
            return False  # messages that were delivered and got lost are delivered again
        if self._buffer.stored_before < first:
            # No message says that they were stored: they may follow, or may not be published yet.
            follows = (info.num_pending or 0) > 0 and len(self._buffer) < MAX_UNACKNOWLEDGED
            is_awaited = self._hello.oldest < first and loop.time() - self._last_message < self._gap_seconds
            if follows or is_awaited:
                return False
        if not self._consumer.from_beginning:
            # After a loss of power the file may have less than was acknowledged: read everything again.
            self._buffer.clear()
            await self._consumer.start(again=True)
            return False
        return True

    def _count(self, stream: Stream, new_frames: NewFrames) -> None:
        if new_frames.missing:
            stream.missed(new_frames.missing, new_frames.next - len(new_frames.frames))
        self._streams.noting.took(stream, new_frames.frames, len(new_frames.data), new_frames.next)
