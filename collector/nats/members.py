"""The collectors that share the streams of NATS: who is there, and how much each has to do."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from stepscope.exporters.nats import layout

_PREFIX = "collector."
"""No stream's id has a dot."""


class Members:
    """Values in the bucket of leases: each collector has one, which says how many streams it has, and vanishes with it."""

    def __init__(self, jetstream: JetStreamContext, bucket: KeyValue, seconds: float) -> None:
        """Args: JetStream; where they are; how long one holds there."""
        self._jetstream, self._bucket, self._seconds = jetstream, bucket, seconds
        self._key = f"{_PREFIX}{uuid.uuid4().hex}"
        self._told, self._at = -1, 0.0

    async def tell(self, streams: int) -> None:
        """Says that this collector is there, and how many streams it has, or cannot have for now.

        Raises:
            nats.errors.Error, TimeoutError: if NATS cannot be asked.
        """
        now = asyncio.get_running_loop().time()
        if streams != self._told or now - self._at > self._seconds / 3:
            await self._bucket.put(self._key, str(streams).encode())
            self._told, self._at = streams, now

    async def others(self, keys: Iterable[str]) -> list[int]:
        """What the other collectors have said, as far as they are there.

        Args:
            keys: of the bucket.

        Raises:
            nats.errors.Error, TimeoutError: if NATS cannot be asked.
        """
        names = [key for key in keys if key.startswith(_PREFIX) and key != self._key]
        found = await asyncio.gather(*map(self._of, names))
        return [streams for streams in found if streams is not None]

    async def leave(self) -> None:
        """This collector goes: others need not wait until that shows.

        Raises:
            nats.errors.Error, TimeoutError: if NATS cannot be asked.
        """
        await layout.forget(self._jetstream, layout.LEASES, self._key)

    async def _of(self, key: str) -> int | None:
        try:
            said = (await self._bucket.get(key)).value or b""
        except KeyNotFoundError:  # it has gone at this moment
            return None
        return int(said) if said.isdigit() and len(said) < 10 else 0
