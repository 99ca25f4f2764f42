"""Messages of JetStream that a collector has in hand: taken, and not confirmed yet."""

from __future__ import annotations

import contextlib

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from stepscope.exporters.collector import protocol
from stepscope.exporters.nats import layout
from stepscope.runtime.errors import FormatError


class Held(msgspec.Struct, frozen=True):
    """A message, read."""

    message: Msg
    frames: protocol.Frames
    payload: memoryview


class Hand:
    """Keeps messages in the order of their frames, whatever order they come in."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._newest = 0
        self.nbytes = 0
        """Of all of them."""
        self.oldest = 0
        """What is before this frame was stored before one of the messages that were taken."""

    def add(self, message: Msg) -> bool:
        """Takes a message; one that came again takes the place of its first coming.

        Returns:
            Whether it is newer than all before, and not sent again.

        Raises:
            FormatError: if it is none of an exporter.
        """
        header, payload = protocol.decode(message.data)
        if not isinstance(header, protocol.Frames):
            raise FormatError(f"{type(header).__name__} is not for a stream")
        oldest = (message.headers or {}).get(layout.OLDEST, "0")
        if not (oldest.isascii() and oldest.isdecimal() and len(oldest) < 20):
            raise FormatError(f"its header {layout.OLDEST} is no number")
        number = message.metadata.sequence.stream
        self._remove(number)
        self._held[number] = Held(message, header, payload)
        self.nbytes += len(message.data)
        self.oldest = max(self.oldest, int(oldest))
        before, self._newest = self._newest, max(self._newest, number)
        return number > before

    @property
    def first(self) -> Held | None:
        """The one with the first frames."""
        return min(self._held.values(), key=lambda held: held.frames.first, default=None)

    def drop(self, held: Held) -> None:
        """One is done with."""
        self._remove(held.message.metadata.sequence.stream)

    def clear(self) -> None:
        """Forgets all that was taken: it is begun anew."""
        self._forget()
        self.oldest = 0

    async def give_back(self) -> None:
        """Lets JetStream give all of them to others at once."""
        with contextlib.suppress(NatsError):  # it does so by itself after a while
            for held in self._held.values():
                await held.message.nak()
        self._forget()

    def __len__(self) -> int:
        return len(self._held)

    def _remove(self, number: int) -> None:
        before = self._held.pop(number, None)
        if before is not None:
            self.nbytes -= len(before.message.data)

    def _forget(self) -> None:
        self._held.clear()
        self.nbytes = 0
