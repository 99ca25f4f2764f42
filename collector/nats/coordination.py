"""What the collectors that use one NATS share there: leases on streams, and values that say which collectors are running."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from stepscope.collector.memory_budget import MemoryBudget
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.limits import NatsLimits

_PEER_PREFIX = "collector."
"""No stream's id has a dot."""


class Leases:
    """Leases on streams: values in a key-value bucket that expire unless they are renewed.

    A collector that was paused may still ingest a stream whose lease another collector has by now. That does no harm: each writes
    to its own directory and has its own consumer. It stops when it tries to renew the lease.

    Methods raise nats.errors.Error or TimeoutError if NATS does not answer, unless they say otherwise.

    Args:
        jetstream: the JetStream of the bucket.
        bucket: the bucket of leases.
        seconds: time after which a value in the bucket expires.
        failed: called when a lease could not be renewed.
    """

    def __init__(
        self,
        jetstream: JetStreamContext,
        bucket: KeyValue,
        seconds: float,
        failed: Callable[[Exception], Awaitable[None]],
    ) -> None:
        self._jetstream, self._bucket, self._seconds, self._failed = jetstream, bucket, seconds, failed
        self._owner = uuid.uuid4().hex.encode()

    async def keys(self) -> set[str]:
        """The keys of the bucket: leased streams, and running collectors."""
        return await layout.keys(self._jetstream, layout.LEASES)

    async def acquire(self, stream: str) -> bool:
        """Acquires the lease on a stream. Returns false if another collector has it."""
        try:
            await self._bucket.create(stream, self._owner)
        except (KeyWrongLastSequenceError, KeyNotFoundError):  # the latter: it is released at this moment
            return False
        return True

    async def renew(self, stream: str) -> None:
        """Renews a lease again and again; returns when it is lost. If NATS does not answer, it calls `failed` and tries again."""
        while True:
            await asyncio.sleep(self._seconds / 3)
            try:
                entry = await self._bucket.get(stream)
                if entry.value != self._owner:
                    return
                await self._bucket.update(stream, self._owner, entry.revision)
            except (KeyNotFoundError, KeyWrongLastSequenceError):
                if not await self.acquire(stream):
                    return
            except (NatsError, TimeoutError) as error:
                await self._failed(error)

    async def release(self, stream: str) -> None:
        """Releases a lease, so that others need not wait until it expires. Raises nothing."""
        with contextlib.suppress(NatsError, TimeoutError):  # it expires
            entry = await self._bucket.get(stream)
            if entry.value == self._owner:
                # Without a delete marker, which would look like a lease until it expires.
                await layout.forget(self._jetstream, layout.LEASES, stream, entry.revision or 0)


class Peers:
    """The running collectors: each has a value in the bucket of leases with its number of streams, which expires with it.

    Methods raise nats.errors.Error or TimeoutError if NATS does not answer.

    Args:
        jetstream: the JetStream of the bucket.
        bucket: the bucket of leases.
        seconds: time after which a value in the bucket expires.
    """

    def __init__(self, jetstream: JetStreamContext, bucket: KeyValue, seconds: float) -> None:
        self._jetstream, self._bucket, self._seconds = jetstream, bucket, seconds
        self._key = f"{_PEER_PREFIX}{uuid.uuid4().hex}"
        self._announced, self._announced_at = -1, 0.0

    async def announce(self, streams: int) -> None:
        """Announces that this collector is running, with the number of streams that it ingests, or cannot ingest for now."""
        now = asyncio.get_running_loop().time()
        if streams != self._announced or now - self._announced_at > self._seconds / 3:
            await self._bucket.put(self._key, str(streams).encode())
            self._announced, self._announced_at = streams, now

    async def loads(self, keys: Iterable[str]) -> list[int]:
        """Numbers of streams that the other running collectors announced.

        Args:
            keys: keys of the bucket.
        """
        peers = [key for key in keys if key.startswith(_PEER_PREFIX) and key != self._key]
        loads = await asyncio.gather(*map(self._load, peers))
        return [load for load in loads if load is not None]

    async def leave(self) -> None:
        """Removes the value of this collector, so that others need not wait until it expires."""
        await layout.forget(self._jetstream, layout.LEASES, self._key)

    async def _load(self, key: str) -> int | None:
        try:
            value = (await self._bucket.get(key)).value or b""
        except KeyNotFoundError:  # it has expired at this moment
            return None
        return int(value) if value.isdigit() and len(value) < 10 else 0


class Session(NamedTuple):
    """JetStream over one connection, with what exporters and collectors share there."""

    client: Client
    jetstream: JetStreamContext
    hellos: KeyValue
    ended: KeyValue
    leases: Leases
    peers: Peers
    budget: MemoryBudget
    """Bounds the bytes of messages in memory, from NATS and from WebSockets."""

    @classmethod
    async def open(
        cls,
        client: Client,
        budget: MemoryBudget,
        limits: NatsLimits,
        lease_seconds: float,
        failed: Callable[[Exception], Awaitable[None]],
    ) -> Session:
        """Opens the stream and the buckets; creates those that do not exist.

        Args:
            client: the connection.
            budget: bounds the bytes of messages in memory.
            limits: limits of the stream, if it is created.
            lease_seconds: time after which a lease expires, if the bucket of leases is created.
            failed: called when a lease could not be renewed.

        Raises:
            nats.errors.Error: if something does not exist and cannot be created.
            TimeoutError: if the server does not answer.
        """
        jetstream = layout.jetstream(client)
        max_age = await layout.stream(jetstream, limits)
        hellos = await layout.hellos(jetstream, max_age)
        # Whether a stream has ended matters as long as JetStream has messages of it.
        ended = await layout.bucket(jetstream, layout.ENDED, max_age or None)
        bucket = await layout.bucket(jetstream, layout.LEASES, lease_seconds)
        seconds = (await bucket.status()).ttl or lease_seconds
        leases = Leases(jetstream, bucket, seconds, failed)
        return cls(client, jetstream, hellos, ended, leases, Peers(jetstream, bucket, seconds), budget)
