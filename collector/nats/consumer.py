"""Consumers in JetStream, and requests for their messages."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

AVAILABLE_SECONDS = 0.1
"""Time limit of a request for all available messages."""
_GRACE = 2.0
"""Seconds that the last reply to a request may be late."""


class Fetched(msgspec.Struct, frozen=True):
    """The reply to a request for messages."""

    messages: list[Msg]
    has_larger: bool
    """Whether the next message has more bytes than the request allowed."""


class Consumer:
    """A consumer of a stream. Methods raise what JetStream does."""

    def __init__(self, client: Client, jetstream: JetStreamContext, stream: str, config: ConsumerConfig) -> None:
        self._client: Any = client
        self._jetstream, self._stream, self._config = jetstream, stream, config
        self._name = config.durable_name or ""
        self._subscription: Subscription | None = None
        self._received: asyncio.Queue[Msg] = asyncio.Queue()
        """Replies to requests. `Subscription.next_msg` would take three turns of the loop for each."""
        self._requests = 0
        self.from_beginning = False
        """Whether it delivers all messages of its subjects that JetStream has."""

    async def start(self, *, again: bool) -> None:
        """Creates the consumer; one that is durable continues where it is.

        A durable consumer with unacknowledged messages was left by a collector that was killed. It is replaced by one that begins
        with these messages, so that nobody waits until JetStream delivers them again.

        Args:
            again: begin with the first message that JetStream has.
        """
        config: Any = self._config
        if config.durable_name:
            with contextlib.suppress(NotFoundError):
                info = await self.info()
                if not again and not info.num_ack_pending:
                    self.from_beginning = False
                    return
                await self._jetstream.delete_consumer(self._stream, self._name)
                if not again and info.ack_floor is not None:
                    first = info.ack_floor.stream_seq + 1
                    config = config.evolve(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first)
        self.from_beginning = config.opt_start_seq is None
        untyped: Any = self._jetstream
        created: ConsumerInfo = await untyped.add_consumer(self._stream, config)
        self._name = created.name

    async def info(self) -> ConsumerInfo:
        """State of the consumer."""
        found: ConsumerInfo = await self._jetstream.consumer_info(self._stream, self._name)
        return found

    async def close(self) -> None:
        """Expects no more messages. Idempotent."""
        if self._subscription is not None:
            with contextlib.suppress(NatsError):  # the connection may be lost
                await self._subscription.unsubscribe()
            self._subscription = None

    async def fetch_available(self, count: int, max_bytes: int) -> Fetched:
        """Fetches messages that JetStream has already, or gets soon.

        Args:
            count: number of messages at most.
            max_bytes: bytes of all messages at most.
        """
        # JetStream does not always say where messages end that are there at once (`no_wait`), so the request has a time limit.
        return await self._fetch(count, max_bytes, AVAILABLE_SECONDS)

    async def fetch_next(self, max_bytes: int, seconds: float) -> Fetched:
        """Fetches one message, or waits for it.

        Args:
            max_bytes: its bytes at most.
        """
        return await self._fetch(1, max_bytes, seconds)

    async def _fetch(self, count: int, max_bytes: int, seconds: float) -> Fetched:
        if self._subscription is None:
            self._inbox = self._client.new_inbox()
            self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._receive)
        self._requests += 1
        inbox = f"{self._inbox}.{self._requests}"
        request = msgspec.json.encode({"batch": count, "max_bytes": max_bytes, "expires": int(seconds * 1e9)})
        await self._client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}", request, inbox)
        messages: list[Msg] = []
        has_larger = False
        with contextlib.suppress(TimeoutError):  # no reply, or the one that ends the request was lost
            async with asyncio.timeout(seconds + _GRACE):
                while len(messages) < count:
                    message = await self._received.get()
                    if message.reply:  # also one that is late for an earlier request
                        messages.append(message)
                    elif message.subject == inbox:  # a status, which says why no more messages come
                        has_larger = "MaxBytes" in (message.headers or {}).get("Description", "")
                        break
        return Fetched(messages, has_larger)

    async def _receive(self, message: Msg) -> None:
        self._received.put_nowait(message)
