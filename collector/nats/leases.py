"""Which collector takes which partitions: leases on them, and values that say which collectors are running."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from stepscope.exporters.nats import layout
from stepscope.exporters.nats.names import PARTITIONS

_PEER, _PARTITION = "collector.", "partition."
"""Beginnings of keys in the bucket."""


def room(count: int, others: Sequence[int]) -> int:
    """How many partitions a collector may acquire: up to its share, and one of the remainder if no other has fewer.

    Args:
        count: its number of partitions.
        others: the same of the others.
    """
    share, remainder = divmod(PARTITIONS, 1 + len(others))
    if count == share and remainder:
        return int(count <= min(others))
    return max(share - count, 0)


def surplus(count: int, others: Sequence[int]) -> int:
    """How many partitions a collector is to release: what is above its share, if another collector has at least two fewer.

    Args:
        count: its number of partitions.
        others: the same of the others.
    """
    if not others or count - min(others) < 2:
        return 0
    return max(count - PARTITIONS // (1 + len(others)), 0)


class Leases:
    """Leases on partitions: values in a key-value bucket that expire unless they are renewed.

    A collector that was paused may still take a partition whose lease another collector has by now. That does no harm: each writes
    to its own directory and has its own consumer. It stops when it tries to renew the lease.

    Methods raise nats.errors.Error or TimeoutError if NATS does not answer, unless they say otherwise.
    """

    def __init__(self, jetstream: JetStreamContext, bucket: KeyValue, name: str, seconds: float) -> None:
        self._jetstream, self._bucket, self._name, self._seconds = jetstream, bucket, name, seconds
        self._owner = uuid.uuid4().hex
        self._announced, self._announced_at = -1, 0.0
        self._renewed: dict[int, float] = {}
        """Time of the last renewal of each lease."""

    async def others(self) -> tuple[set[int], list[int]]:
        """Partitions on which nobody has a lease, and how many partitions each other running collector has announced."""
        keys = await layout.keys(self._jetstream, self._name)
        free = {number for number in range(PARTITIONS) if f"{_PARTITION}{number}" not in keys}
        peers = [key for key in keys if key.startswith(_PEER) and key != f"{_PEER}{self._owner}"]
        loads = await asyncio.gather(*map(self._load, peers))
        return free, [load for load in loads if load is not None]

    async def announce(self, count: int) -> None:
        """Announces that this collector is running, with the number of its partitions."""
        now = asyncio.get_running_loop().time()
        if count != self._announced or now - self._announced_at > self._seconds / 3:
            await self._bucket.put(f"{_PEER}{self._owner}", str(count).encode())
            self._announced, self._announced_at = count, now

    async def withdraw(self) -> None:
        """Removes the announcement, so that others need not wait until it expires."""
        await layout.forget(self._jetstream, self._name, f"{_PEER}{self._owner}")

    async def acquire(self, partition: int) -> bool:
        """Acquires the lease on a partition. Returns false if another collector has it."""
        try:
            await self._bucket.create(f"{_PARTITION}{partition}", self._owner.encode())
        except (KeyWrongLastSequenceError, KeyNotFoundError):  # the latter: it is released at this moment
            return False
        self._renewed[partition] = asyncio.get_running_loop().time()
        return True

    async def renew(self) -> set[int]:
        """Renews the leases for which it is time. Returns the partitions whose lease another collector has by now."""
        limit = asyncio.get_running_loop().time() - self._seconds / 3
        due = [partition for partition, at in self._renewed.items() if at <= limit]
        renewed = await asyncio.gather(*map(self._renew, due))
        return {partition for partition, is_renewed in zip(due, renewed, strict=True) if not is_renewed}

    async def release(self, partition: int) -> None:
        """Releases a lease, so that others need not wait until it expires. Raises nothing."""
        self._renewed.pop(partition, None)
        key = f"{_PARTITION}{partition}"
        with contextlib.suppress(NatsError, TimeoutError):  # it expires
            entry = await self._bucket.get(key)
            if entry.value == self._owner.encode():
                # Without a delete marker, which would look like a lease until it expires.
                await layout.forget(self._jetstream, self._name, key, entry.revision or 0)

    async def _renew(self, partition: int) -> bool:
        key, owner = f"{_PARTITION}{partition}", self._owner.encode()
        try:
            entry = await self._bucket.get(key)
            if entry.value != owner:
                return False
            await self._bucket.update(key, owner, entry.revision)
        except (KeyNotFoundError, KeyWrongLastSequenceError):  # it has expired
            return await self.acquire(partition)
        self._renewed[partition] = asyncio.get_running_loop().time()
        return True

    async def _load(self, key: str) -> int | None:
        try:
            value = (await self._bucket.get(key)).value or b""
        except KeyNotFoundError:  # it has expired at this moment
            return None
        return int(value) if value.isdigit() and len(value) < 10 else 0
