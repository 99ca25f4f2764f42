"""Writes what JetStream has of one stream into the collector's file, until the stream has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from nats.aio.msg import Msg

from stepscope.collector.files.store import Store
from stepscope.collector.files.stream_file import Addition, StreamFile
from stepscope.collector.live.stream import DIED_AFTER, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.nats.consumer import ACK_SECONDS, IN_HAND, Consumer
from stepscope.collector.nats.hand import Hand, Held
from stepscope.collector.nats.messages import Messages
from stepscope.collector.nats.place import Place
from stepscope.exporters.collector import protocol
from stepscope.runtime.errors import FormatError

GAP_SECONDS = 120.0
"""How long nothing must have come from an exporter until frames are given up that JetStream never had: it publishes every few
seconds as long as it is connected."""


class Intake:
    """Takes one stream. Its frames are written once each and in order, whatever JetStream sends again, and whoever was killed.

    A message is confirmed when its frames are written. Those that came out of order wait for the ones before them. Frames are
    given up only when JetStream, read from the beginning, does not have them, and the exporter does not have them either, or
    nothing has come from it for `GAP_SECONDS`.
    """

    def __init__(
        self,
        place: Place,
        store: Store,
        streams: Streams,
        hello: protocol.Hello,
        refuse: Callable[[str], object],
        *,
        gap_seconds: float = GAP_SECONDS,
        silent_seconds: float = DIED_AFTER,
        ack_seconds: float = ACK_SECONDS,
    ) -> None:
        """
        Args:
            place: where the stream comes from.
            store: where it is kept.
            streams: is told what was taken.
            hello: which stream it is.
            refuse: is told why a message was given up.
            gap_seconds: in place of `GAP_SECONDS`.
            silent_seconds: after which nothing has come it is no longer connected, and its file is closed until something does.
            ack_seconds: in place of `ACK_SECONDS`.
        """
        self._store, self._streams, self._hello = store, streams, hello
        self._refuse, self._gap_seconds, self._silent_seconds = refuse, gap_seconds, silent_seconds
        self._consumer = Consumer(place.jetstream, store.identity(), hello.stream, ack_seconds)
        self._hand = Hand()
        self._messages = Messages(place.client, self._consumer.name, self._hand, place.intake)
        self._heard = 0.0
        self.size = 0
        """Bytes of its file."""
        self.idle = False
        """Whether nothing is in hand, and nothing came when it was last asked for."""
        self.works = False
        """Whether it could be taken from so far."""

    async def run(self) -> None:
        """Returns when the stream has ended and all of it is written.

        Raises:
            nats.errors.Error: if JetStream cannot be used, or its stream was deleted.
            TimeoutError: if it does not answer.
            FormatError: if the file holds another stream.
            FullError: if a limit is met.
            OSError: if it cannot be written.
        """
        task = asyncio.current_task()
        assert task is not None
        self._heard = asyncio.get_running_loop().time()
        begun = ended = False
        try:
            while not ended:
                async with self._store.stream(self._hello, task.cancel) as file:
                    with self._streams.connected(self._hello, self) as stream:
                        if not (begun and file.next):
                            self._hand.clear()  # all of it comes again
                            await self._consumer.begin(again=not file.next)
                            begun = True
                        ended = await self._present(file, stream)
                while not ended and not len(self._hand):
                    await self._receive()
        finally:
            try:
                await self._hand.give_back()
            finally:
                self._messages.release()
        await self._consumer.delete()

    async def _present(self, file: StreamFile, stream: Stream) -> bool:
        """Writes what comes until the stream has ended, or nothing has come for as long as its process may live.

        Who was killed must not count as connected for ever, nor its file as one that is being written.
        """
        while True:
            await self._write(file, stream)
            if file.ended:
                return True
            await self._receive()
            if self.idle and asyncio.get_running_loop().time() - self._heard >= self._silent_seconds:
                return False

    async def _receive(self) -> None:
        messages = await self._messages.take()
        if not messages:
            # Nobody says so if there is no consumer any more: nothing would ever come.
            info = await self._consumer.info()
            if not info.num_pending and not info.num_ack_pending:
                self._messages.none()
        for message in messages:
            try:
                if self._hand.add(message):
                    self._heard = asyncio.get_running_loop().time()
            except FormatError as error:
                await self._terminate(message, error)
        self.works = True
        self.idle = not messages and not len(self._hand)

    async def _write(self, file: StreamFile, stream: Stream) -> None:
        await self._append(file, stream)
        self.size = file.size
        first = self._hand.first
        if first is not None and not file.ended and await self._is_gone(first.frames.first):
            await self._append(file, stream, first)
        self._messages.written()

    async def _append(self, file: StreamFile, stream: Stream, after_gap: Held | None = None) -> None:
        """Writes those that follow what is there, and confirms them; what is there already is only confirmed.

        Args:
            file: of the stream.
            stream: counts what was written.
            after_gap: a message that is written although the frames before it are missing.
        """
        while (held := self._hand.first) is not None and (held is after_gap or held.frames.first <= file.next):
            try:
                addition = file.check(held.frames, held.payload)
            except FormatError as error:
                self._hand.drop(held)
                await self._terminate(held.message, error)
                continue
            try:
                await self._store.write(file, addition, self._hello, partial(self._took, stream, addition))
            finally:
                await self._streams.noting.caught_up(stream)
            await self._confirm(held)

    async def _confirm(self, held: Held) -> None:
        await held.message.ack()
        self._hand.drop(held)

    async def _terminate(self, message: Msg, error: FormatError) -> None:
        """Has JetStream never send a message again: it would be no better the next time."""
        self._refuse(str(error))
        await message.term()

    async def _is_gone(self, first: int) -> bool:
        """Whether frames that are missing before this one will not come any more."""
        loop = asyncio.get_running_loop()
        try:
            info = await self._consumer.info()
        except TimeoutError:
            self._heard = loop.time()  # who cannot be asked cannot have sent anything
            return False
        if (info.num_ack_pending or 0) > len(self._hand):
            return False  # what was sent and got lost is sent again
        if self._hand.oldest < first:
            # No message that was taken tells that they were stored before it: they may follow, or may not be published yet.
            follows = (info.num_pending or 0) > 0 and len(self._hand) < IN_HAND
            comes = self._hello.oldest < first and loop.time() - self._heard < self._gap_seconds
            if follows or comes:
                return False
        if not self._consumer.whole:
            # The file may have less than was once confirmed, after a loss of power: it is read from the beginning.
            self._hand.clear()
            await self._consumer.begin(again=True)
            return False
        return True

    def _took(self, stream: Stream, addition: Addition) -> None:
        if addition.missing:
            stream.missed(addition.missing, addition.next - len(addition.frames))
        self._streams.noting.took(stream, addition.frames, len(addition.data), addition.next)
