"""The durable JetStream consumer of one stream and one directory, and requests for its messages."""

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
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

from stepscope.exporters.nats import layout

MAX_UNACKNOWLEDGED = 4 * layout.IN_FLIGHT
"""Messages that may be delivered and not acknowledged: more than those between a missing one and the first whose header says that
it was stored."""
ACK_SECONDS = 10.0
"""Seconds after which JetStream delivers a message again that was not acknowledged."""
INACTIVE_SECONDS = 86_400.0
"""Seconds after which JetStream deletes the consumer of a collector that does not come back."""
_GRACE = 2.0
"""Seconds that the last reply to a request may be late."""


class Fetched(msgspec.Struct, frozen=True):
    """The reply to a request for messages."""

    messages: list[Msg]
    has_larger: bool
    """Whether the next message has more bytes than the request allowed."""


class Consumer:
    """How far one stream was written to one directory, as JetStream stores it. Methods raise what JetStream does.

    Args:
        client: the connection.
        jetstream: its JetStream.
        identity: identity of the directory.
        stream: id of the stream.
        ack_seconds: instead of `ACK_SECONDS`.
    """

    def __init__(
        self,
        client: Client,
        jetstream: JetStreamContext,
        identity: str,
        stream: str,
        ack_seconds: float = ACK_SECONDS,
    ) -> None:
        self._client: Any = client
        self._jetstream, self._stream, self._ack_seconds = jetstream, stream, ack_seconds
        self.name = f"collect-{identity}-{stream}"
        self.from_beginning = False
        """Whether it delivers all messages of the stream that JetStream has."""

    async def start(self, *, again: bool) -> None:
        """Creates the consumer, or continues where it is.

        A consumer with unacknowledged messages was left by a collector that was killed. It is replaced by one that begins with
        these messages, so that nobody waits until JetStream delivers them again.

        Args:
            again: begin with the first message that JetStream has.
        """
        config = ConsumerConfig(
            name=self.name,
            durable_name=self.name,
            filter_subject=f"{layout.SUBJECTS}.{self._stream}",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_seconds,
            max_ack_pending=MAX_UNACKNOWLEDGED,
            inactive_threshold=INACTIVE_SECONDS,
        )
        self.from_beginning = False
        try:
            info = await self.info()
        except NotFoundError:
            pass
        else:
            if not again and not info.num_ack_pending:
                return
            await self.delete()
            if not again and info.ack_floor is not None:
                config.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
                config.opt_start_seq = info.ack_floor.stream_seq + 1
        self.from_beginning = config.opt_start_seq is None
        await layout.consumer(self._jetstream, config)

    async def info(self) -> ConsumerInfo:
        """State of the consumer."""
        found: ConsumerInfo = await self._jetstream.consumer_info(layout.STREAM, self.name)
        return found

    async def delete(self) -> None:
        """Deletes the consumer. Idempotent."""
        with contextlib.suppress(NotFoundError):
            await self._jetstream.delete_consumer(layout.STREAM, self.name)

    async def fetch_available(self, count: int, max_bytes: int) -> Fetched:
        """Fetches messages that JetStream has already.

        Args:
            count: number of messages at most.
            max_bytes: bytes of all messages at most.
        """
        return await self._fetch({"batch": count, "max_bytes": max_bytes, "no_wait": True}, count, 0.0)

    async def fetch_next(self, max_bytes: int, seconds: float) -> Fetched:
        """Fetches one message, or waits for it.

        Args:
            max_bytes: its bytes at most.
            seconds: time to wait.
        """
        return await self._fetch({"batch": 1, "max_bytes": max_bytes, "expires": int(seconds * 1e9)}, 1, seconds)

    async def _fetch(self, request: dict[str, object], count: int, seconds: float) -> Fetched:
        # Each request has its own inbox. A message that is late for it is not acknowledged, so JetStream delivers it again.
        inbox = self._client.new_inbox()
        subscription: Subscription = await self._client.subscribe(inbox)
        messages: list[Msg] = []
        has_larger = False
        try:
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{layout.STREAM}.{self.name}"
            await self._client.publish(subject, msgspec.json.encode(request), inbox)
            with contextlib.suppress(TimeoutError):  # no reply, or the one that ends the request was lost
                async with asyncio.timeout(seconds + _GRACE):
                    while len(messages) < count:
                        message = await subscription.next_msg(None)
                        if not message.reply:  # a status, which says why no more messages come
                            has_larger = "MaxBytes" in (message.headers or {}).get("Description", "")
                            break
                        messages.append(message)
        finally:
            with contextlib.suppress(NatsError):  # the connection may be lost
                await subscription.unsubscribe()
        return Fetched(messages, has_larger)
