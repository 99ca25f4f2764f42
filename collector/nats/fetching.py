"""Fetches the messages of one stream, no more than there is memory for, and puts them into order."""

from __future__ import annotations

import contextlib

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from stepscope.collector.memory_budget import FREE, Grant, MemoryBudget
from stepscope.collector.nats.consumer import MAX_UNACKNOWLEDGED, Consumer, Fetched
from stepscope.exporters.nats import layout
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import FormatError

FETCH_COUNT = 64
"""Messages in one request."""
MAX_LARGEST = 4
"""A request for all available messages has room for so many of the largest size."""
IDLE_SECONDS = 5.0
"""Seconds that a request waits for a message."""
BUSY_SECONDS = 1.0
"""The same while the stream has a grant of memory, for which others may have to wait."""


class BufferedMessage(msgspec.Struct, frozen=True):
    """A message that was decoded, and is not acknowledged yet."""

    message: Msg
    frames: protocol.Frames
    payload: memoryview


class ReorderBuffer:
    """Messages that were delivered and are not acknowledged, in the order of their frames."""

    def __init__(self) -> None:
        self._messages: dict[int, BufferedMessage] = {}
        self._newest = 0
        self.nbytes = 0
        """Bytes of all messages."""
        self.stored_before = 0
        """All frames before this number were stored, or are nowhere, according to the messages so far."""

    def add(self, message: Msg) -> bool:
        """Adds a message. One that was delivered again replaces its first delivery.

        Returns:
            Whether it is newer than all messages before: not one that was delivered again.

        Raises:
            FormatError: if it is no message of an exporter.
        """
        header, payload = protocol.decode(message.data)
        if not isinstance(header, protocol.Frames):
            raise FormatError(f"{type(header).__name__} is not for a stream")
        stored_before = layout.oldest(message.headers)
        number = message.metadata.sequence.stream
        self._remove(number)
        self._messages[number] = BufferedMessage(message, header, payload)
        self.nbytes += len(message.data)
        self.stored_before = max(self.stored_before, stored_before)
        newest, self._newest = self._newest, max(self._newest, number)
        return number > newest

    @property
    def first(self) -> BufferedMessage | None:
        """The message with the first frames."""
        return min(self._messages.values(), key=lambda buffered: buffered.frames.first, default=None)

    def remove(self, buffered: BufferedMessage) -> None:
        """Removes a message."""
        self._remove(buffered.message.metadata.sequence.stream)

    def clear(self) -> None:
        """Removes everything, for a consumer that begins again."""
        self._messages.clear()
        self.nbytes = self.stored_before = 0

    async def return_all(self) -> None:
        """Removes all messages, and lets JetStream deliver them again at once."""
        with contextlib.suppress(NatsError):  # JetStream delivers them again after a while
            for buffered in self._messages.values():
                await buffered.message.nak()
        self._messages.clear()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def _remove(self, number: int) -> None:
        before = self._messages.pop(number, None)
        if before is not None:
            self.nbytes -= len(before.message.data)


class FlowControlledFetch:
    """Fetches messages, and waits for a grant of memory before it fetches more than one small message.

    While it waits for a grant it holds no memory, so streams never wait for each other: if there is not enough room beside the
    messages in the buffer, it returns them to JetStream first. The next grant is twice as large.

    Args:
        consumer: the consumer of the stream.
        max_payload: bytes of a message that the server takes.
        buffer: counts the bytes of messages in memory.
        budget: bounds the bytes of messages in memory, of all streams.
    """

    def __init__(self, consumer: Consumer, max_payload: int, buffer: ReorderBuffer, budget: MemoryBudget) -> None:
        self._consumer, self._buffer, self._budget = consumer, buffer, budget
        self._largest = max_payload + layout.OVERHEAD
        self._grant: Grant | None = None
        self._has_more = False
        """Whether JetStream has more messages, as far as is known."""
        self._has_large = False
        """Whether the next message needs a grant."""

    async def fetch(self) -> list[Msg]:
        """Fetches the next messages; none if none came for a while.

        Raises:
            nats.errors.Error: if the connection is closed.
        """
        if not (self._has_more or self._has_large or len(self._buffer)):
            # Streams without messages have no grant, however many they are.
            return self._note(await self._consumer.fetch_next(FREE, IDLE_SECONDS))
        room = await self._room()
        if self._has_more:
            fetched = await self._consumer.fetch_available(FETCH_COUNT, room)
        else:
            fetched = await self._consumer.fetch_next(room, BUSY_SECONDS)
        if fetched.has_larger and not fetched.messages:
            self._largest *= 2  # the server had a larger max_payload once
        return self._note(fetched)

    def release_unused(self) -> None:
        """Releases the grant if the buffer is empty."""
        if not len(self._buffer):
            self.release()

    def release(self) -> None:
        """Releases the grant. Idempotent."""
        if self._grant is not None:
            self._grant.release()
            self._grant = None

    def note_empty(self) -> None:
        """Notes that JetStream has no message that was not delivered."""
        self._has_large = False

    def _note(self, fetched: Fetched) -> list[Msg]:
        messages = fetched.messages
        if messages:
            last = messages[-1].metadata
            # JetStream does not count messages that it is to deliver again.
            self._has_more = last.num_pending > 0 or last.num_delivered > 1
        else:
            self._has_more = False
        if any(len(message.data) > FREE for message in messages):
            self._has_large = False
        if fetched.has_larger:
            self._has_large = True
        return messages

    async def _room(self) -> int:
        """Bytes that may be fetched beside the buffer, after waiting for a grant: enough for any message."""
        wanted = max(self._largest, min(MAX_LARGEST * self._largest, self._budget.limit // 4))
        if self._grant is not None:
            room = self._grant.size - self._buffer.nbytes
            if room >= self._largest:
                return room
            wanted = min(2 * self._grant.size, MAX_UNACKNOWLEDGED * self._largest)
            await self._buffer.return_all()
            self.release()
        self._grant = await self._budget.acquire(wanted)
        return wanted - self._buffer.nbytes
