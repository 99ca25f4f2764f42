"""Writes what JetStream has of one stream into the collector's file, until the stream has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from stepscope.collector.nats_hand import Hand, Held
from stepscope.collector.store import Store
from stepscope.collector.stream import Stream
from stepscope.collector.stream_file import StreamFile
from stepscope.collector.streams import Streams
from stepscope.exporters.collector import protocol
from stepscope.exporters.nats import layout
from stepscope.runtime.errors import FormatError

FETCH = 64
"""Messages taken at once."""
IN_HAND = 4 * layout.IN_FLIGHT
"""Messages that may be taken and not confirmed: more than those between a missing one and the first that tells that it was
stored."""
FETCH_SECONDS = 5.0
"""How long nothing may come until it is asked for again."""
ACK_SECONDS = 10.0
"""After which JetStream sends again what was not confirmed."""
GAP_SECONDS = 120.0
"""How long nothing must have come from an exporter until frames are given up that JetStream never had: it publishes every few
seconds as long as it is connected."""
FORGOTTEN_SECONDS = 86_400.0
"""After which JetStream forgets how far a directory is whose collector does not come back."""


class Intake:
    """Takes one stream. Its frames are written once each and in order, whatever JetStream sends again, and whoever was killed.

    A message is confirmed when its frames are written. Those that came out of order wait for the ones before them. Frames are
    given up only when JetStream, read from the beginning, does not have them, and the exporter does not have them either, or
    nothing has come from it for `GAP_SECONDS`.
    """

    def __init__(
        self,
        jetstream: JetStreamContext,
        store: Store,
        streams: Streams,
        hello: protocol.Hello,
        refuse: Callable[[str], object],
        *,
        gap_seconds: float = GAP_SECONDS,
        ack_seconds: float = ACK_SECONDS,
    ) -> None:
        """
        Args:
            jetstream: where the stream comes from.
            store: where it is kept.
            streams: is told what was taken.
            hello: which stream it is.
            refuse: is told why a message was given up.
            gap_seconds: in place of `GAP_SECONDS`.
            ack_seconds: in place of `ACK_SECONDS`.
        """
        self._jetstream, self._store, self._streams, self._hello = jetstream, store, streams, hello
        self._refuse, self._gap_seconds, self._ack_seconds = refuse, gap_seconds, ack_seconds
        self._consumer = f"collect-{store.identity()}-{hello.stream}"
        self._hand = Hand()
        self._subscription: JetStreamContext.PullSubscription | None = None
        self._whole = False
        """Whether everything was asked for that JetStream has of the stream."""
        self._heard = 0.0
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
        async with self._store.stream(self._hello, task.cancel) as file:
            with self._streams.connected(self._hello, self) as stream:
                try:
                    while not file.ended:
                        await self._take(file, stream)
                finally:
                    # In this order: what is given back must not come here again.
                    await self._unsubscribe()
                    await self._hand.give_back()
        with contextlib.suppress(NotFoundError):
            await self._jetstream.delete_consumer(layout.STREAM, self._consumer)

    async def _take(self, file: StreamFile, stream: Stream) -> None:
        if self._subscription is None:
            self._subscription = await self._subscribe(beginning=not file.next)
        try:
            messages = await self._subscription.fetch(FETCH, timeout=1.0 if len(self._hand) else FETCH_SECONDS)
        except TimeoutError:
            messages = []
            # Nobody says so if there is no consumer any more: nothing would ever come.
            await self._jetstream.consumer_info(layout.STREAM, self._consumer)
        for message in messages:
            try:
                if self._hand.add(message):
                    self._heard = asyncio.get_running_loop().time()
            except FormatError as error:
                await self._terminate(message, error)
        await self._append(file, stream)
        self.works = True
        self.idle = not messages and not len(self._hand)
        first = self._hand.first
        if first is not None and not file.ended and await self._is_gone(first.frames.first):
            stream.missed(first.frames.first - file.next)
            file.skip(first.frames.first)
            await self._append(file, stream)

    async def _append(self, file: StreamFile, stream: Stream) -> None:
        """Writes those that follow what is there, and confirms them; what is there already is only confirmed."""
        while (held := self._hand.first) is not None and held.frames.first <= file.next:
            try:
                addition = file.check(held.frames.first, held.frames.count, held.payload)
            except FormatError as error:
                self._hand.drop(held)
                await self._terminate(held.message, error)
                continue
            await self._store.write(file, addition, self._hello)
            stream.took(addition.frames, len(addition.data), file.next)
            if file.ended and self._hello.supersedes not in ("", self._hello.stream):
                self._streams.replace(self._hello.supersedes)
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
            info = await self._jetstream.consumer_info(layout.STREAM, self._consumer)
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
        if not self._whole:
            # The file may have less than was once confirmed, after a loss of power: it is read from the beginning.
            self._hand.clear()
            await self._unsubscribe()
            self._subscription = await self._subscribe(beginning=True)
            return False
        return True

    async def _subscribe(self, *, beginning: bool) -> JetStreamContext.PullSubscription:
        """Goes on where the directory is, or begins with all that JetStream has.

        A consumer that has anything in hand was left by a collector that was killed: one that begins there takes its place,
        so that nobody waits until JetStream sends that again by itself.
        """
        config = ConsumerConfig(
            name=self._consumer,
            durable_name=self._consumer,
            filter_subject=f"{layout.SUBJECTS}.{self._hello.stream}",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_seconds,
            max_ack_pending=IN_HAND,
            inactive_threshold=FORGOTTEN_SECONDS,
        )
        there, self._whole = True, False
        try:
            info = await self._jetstream.consumer_info(layout.STREAM, self._consumer)
        except NotFoundError:
            there = False
        else:
            if beginning or info.num_ack_pending:
                with contextlib.suppress(NotFoundError):
                    await self._jetstream.delete_consumer(layout.STREAM, self._consumer)
                there = False
                if not beginning and info.ack_floor is not None:
                    config.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
                    config.opt_start_seq = info.ack_floor.stream_seq + 1
        if not there:
            self._whole = config.opt_start_seq is None
            await layout.consumer(self._jetstream, config)
        return await self._jetstream.pull_subscribe_bind(self._consumer, layout.STREAM)

    async def _unsubscribe(self) -> None:
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            with contextlib.suppress(NatsError):  # the connection may be lost
                await subscription.unsubscribe()
