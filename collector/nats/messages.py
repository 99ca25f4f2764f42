"""What is taken of one stream from JetStream: no more than there is room for in memory."""

from __future__ import annotations

from nats.aio.client import Client
from nats.aio.msg import Msg

from stepscope.collector.intake import FREE, Grant, Intake
from stepscope.collector.nats.consumer import IN_HAND
from stepscope.collector.nats.hand import Hand
from stepscope.collector.nats.pull import Pull, Pulled
from stepscope.exporters.nats import layout

FETCH = 64
"""Messages taken at once."""
LARGEST = 4
"""Messages of the largest size for which there is room when messages are taken."""
LISTEN_SECONDS = 5.0
"""How long nothing may come until it is asked for again."""
HELD_SECONDS = 1.0
"""The same while others may have to wait for the room."""


class Messages:
    """Takes messages, and asks for leave before it takes more than a small one.

    Who waits for leave holds nothing, so streams never wait for each other: what is in hand, because something before it is
    missing, is given back first if there is not enough room besides. Next time there is twice as much for both.
    """

    def __init__(self, client: Client, consumer: str, hand: Hand, intake: Intake) -> None:
        """
        Args:
            client: the connection.
            consumer: name of the consumer.
            hand: where messages are put; it says how many bytes are held.
            intake: bounds what is held of all streams.
        """
        self._pull = Pull(client, layout.STREAM, consumer)
        self._hand, self._intake = hand, intake
        self._largest: int = client.max_payload + layout.OVERHEAD
        self._grant: Grant | None = None
        self._more = False
        """Whether there are more, as far as is known."""
        self._large = False
        """Whether one is there for which leave is needed."""

    async def take(self) -> list[Msg]:
        """The next messages; none if none came for a while.

        Raises:
            nats.errors.Error: if the connection is closed.
        """
        if not (self._more or self._large or len(self._hand)):
            # Streams of which nothing comes hold no leave, however many they are.
            return self._noted(await self._pull.next(FREE, LISTEN_SECONDS))
        room = await self._room()
        pulled = await (self._pull.waiting(FETCH, room) if self._more else self._pull.next(room, HELD_SECONDS))
        if pulled.larger and not pulled.messages:
            self._largest *= 2  # the server has taken larger messages once
        return self._noted(pulled)

    def written(self) -> None:
        """What was taken is written, but for what is in hand."""
        if not len(self._hand):
            self.release()

    def release(self) -> None:
        """Nothing is held any more. Idempotent."""
        if self._grant is not None:
            self._grant.release()
            self._grant = None

    def none(self) -> None:
        """JetStream has nothing that was not taken."""
        self._large = False

    def _noted(self, pulled: Pulled) -> list[Msg]:
        messages = pulled.messages
        if messages:
            last = messages[-1].metadata
            # What is sent again is not counted among those that are there.
            self._more = last.num_pending > 0 or last.num_delivered > 1
        else:
            self._more = False
        if any(len(message.data) > FREE for message in messages):
            self._large = False
        if pulled.larger:
            self._large = True
        return messages

    async def _room(self) -> int:
        """Bytes for which there is leave beside what is in hand: enough for any message."""
        most = self._intake.limit // 4
        wanted = max(self._largest, min(LARGEST * self._largest, most))
        if self._grant is not None:
            room = self._grant.size - self._hand.nbytes
            if room >= self._largest:
                return room
            wanted = min(2 * self._grant.size, IN_HAND * self._largest)
            await self._hand.give_back()
            self.release()
        self._grant = await self._intake.leave(wanted)
        return wanted - self._hand.nbytes
