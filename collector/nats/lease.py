"""Leases: which of several collectors takes a stream."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from stepscope.exporters.nats import layout


class Leases:
    """Values in a key-value bucket that vanish when they are not renewed: who has written one has the stream.

    A collector that is late may still believe that it has a stream which another one has by now. That does no harm, as
    each writes to a directory of its own and knows by itself how far it is; when it looks again it lets go.
    """

    def __init__(
        self,
        jetstream: JetStreamContext,
        bucket: KeyValue,
        seconds: float,
        failed: Callable[[Exception], Awaitable[None]],
    ) -> None:
        """Args: JetStream; where they are; how long one holds there; is told when NATS cannot be asked."""
        self._jetstream, self._bucket, self._seconds, self._failed = jetstream, bucket, seconds, failed
        self._name = uuid.uuid4().hex.encode()

    async def keys(self) -> set[str]:
        """The streams that somebody has, and what else is in the bucket.

        Raises:
            nats.errors.Error, TimeoutError: if NATS cannot be asked.
        """
        return await layout.keys(self._jetstream, layout.LEASES)

    async def take(self, stream: str) -> bool:
        """Takes a stream that nobody has; false if somebody does."""
        try:
            await self._bucket.create(stream, self._name)
        except (KeyWrongLastSequenceError, KeyNotFoundError):  # somebody has it, or let go of it at this moment
            return False
        return True

    async def hold(self, stream: str) -> None:
        """Renews a lease; returns when it is lost."""
        while True:
            await asyncio.sleep(self._seconds / 3)
            try:
                entry = await self._bucket.get(stream)
                if entry.value != self._name:
                    return
                await self._bucket.update(stream, self._name, entry.revision)
            except (KeyNotFoundError, KeyWrongLastSequenceError):
                if not await self.take(stream):
                    return
            except (NatsError, TimeoutError) as error:
                await self._failed(error)

    async def give_back(self, stream: str) -> None:
        """Lets others have a stream at once, unless one of them has it already."""
        with contextlib.suppress(NatsError, TimeoutError):  # it vanishes by itself
            entry = await self._bucket.get(stream)
            if entry.value == self._name:
                # Without a mark, which would look like a lease until it vanishes.
                await layout.forget(self._jetstream, layout.LEASES, stream, entry.revision or 0)
