"""Consumers in JetStream, requests for their messages, and failures to read them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

from stepscope.exporters.network.backoff import Backoff

AVAILABLE_SECONDS = 0.1
"""Time limit of a request for all available messages."""
_GRACE = 2.0
"""Seconds that the last reply to a request may be late."""

log = logging.getLogger("stepscope.collector")

FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds until what failed is tried again, of `Backoff`."""


class Fetched(msgspec.Struct, frozen=True):
    """The reply to a request for messages."""

    messages: list[Msg]
    has_larger: bool
    """Whether the next message has more bytes than the request allowed."""


class Consumer:
    """A durable consumer of a stream. Methods raise what JetStream does."""

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
        """Creates the consumer; one that exists continues where it is.

        A consumer with unacknowledged messages was left by a collector that was killed. It is replaced by one that begins with
        these messages, so that nobody waits until JetStream delivers them again.

        Args:
            again: begin with the first message that JetStream has.
        """
        config: Any = self._config
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
        await untyped.add_consumer(self._stream, config)

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


class _Failure(msgspec.Struct):
    text: str
    retry_at: float
    backoff: Backoff


class Retries:
    """Failures of streams, of partitions and of the connection, and when to try again. Each text is logged once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._failures: dict[str, _Failure] = {}

    def fail(self, what: str, error: BaseException) -> None:
        """Notes a failure. The time until the next try grows.

        Args:
            what: what failed, such as `stream ...`; empty: the connection.
        """
        before = self._failures.get(what)
        if isinstance(error, TimeoutError) and before is not None:
            text = before.text  # it says more
        else:
            text = f"{type(error).__name__}: {error}"[:500]
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY) if before is None else before.backoff
        self._failures[what] = _Failure(text, time.monotonic() + backoff.delay(), backoff)
        if before is None or before.text != text:
            failed = f"{what} of {self._where}" if what else self._where
            log.error("%s cannot be read, and is tried again: %s", failed, ascii(text)[1:-1])

    def succeed(self, what: str) -> None:
        """Forgets a failure."""
        self._failures.pop(what, None)

    def wait(self, what: str) -> float:
        """Seconds until something is to be tried again; 0 if it has not failed."""
        failure = self._failures.get(what)
        return 0.0 if failure is None else max(failure.retry_at - time.monotonic(), 0.0)

    @property
    def problem(self) -> str:
        """The failure of the connection, or else any; empty if there is none. One that was not tried again counts no more."""
        limit = time.monotonic() - 2 * LONGEST_DELAY
        self._failures = {what: failure for what, failure in self._failures.items() if failure.retry_at > limit}
        if "" in self._failures:
            return self._failures[""].text
        return next((f"{what}: {failure.text}" for what, failure in self._failures.items()), "")
