"""Asks a consumer of JetStream for messages: no more than so many bytes at once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

GRACE = 2.0
"""Seconds that the last answer to a request may take on its way."""


class Pulled(msgspec.Struct, frozen=True):
    """What came of a request."""

    messages: list[Msg]
    larger: bool
    """Whether it ended because the message that follows would have been too many bytes."""


class Pull:
    """Requests to one consumer. Each has an inbox of its own: what comes too late for one is not taken for the next, and is
    sent again by JetStream, as nothing of it was confirmed."""

    def __init__(self, client: Client, stream: str, consumer: str) -> None:
        """Args: the connection; names of JetStream's stream and of the consumer."""
        self._client: Any = client
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"

    async def waiting(self, count: int, most: int) -> Pulled:
        """Messages that are there already.

        Args:
            count: so many at most.
            most: bytes of all together.

        Raises:
            nats.errors.Error: if the connection is closed.
        """
        return await self._ask({"batch": count, "max_bytes": most, "no_wait": True}, count, 0.0)

    async def next(self, most: int, seconds: float) -> Pulled:
        """The message that is there, or the first that comes.

        Args:
            most: its bytes.
            seconds: how long to wait for it.

        Raises:
            nats.errors.Error: if the connection is closed.
        """
        return await self._ask({"batch": 1, "max_bytes": most, "expires": int(seconds * 1e9)}, 1, seconds)

    async def _ask(self, request: dict[str, object], count: int, seconds: float) -> Pulled:
        inbox = self._client.new_inbox()
        subscription: Subscription = await self._client.subscribe(inbox)
        messages: list[Msg] = []
        larger = False
        try:
            await self._client.publish(self._subject, msgspec.json.encode(request), inbox)
            with contextlib.suppress(TimeoutError):  # nobody has answered, or what ends the answer was lost
                async with asyncio.timeout(seconds + GRACE):
                    while len(messages) < count:
                        message = await subscription.next_msg(None)
                        if not message.reply:  # nothing that could be confirmed: it says why no more comes
                            larger = "MaxBytes" in (message.headers or {}).get("Description", "")
                            break
                        messages.append(message)
        finally:
            with contextlib.suppress(NatsError):  # the connection may be lost
                await subscription.unsubscribe()
        return Pulled(messages, larger)
