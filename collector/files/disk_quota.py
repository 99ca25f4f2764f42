"""The limit of the disk: how many bytes streams may write until it is measured again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from stepscope.collector.errors import FullError

PATIENCE = 15.0
"""Seconds that a write waits for room."""


class DiskQuota:
    """Bounds what is written between two looks at the disk, so that no writer, however fast, runs past a limit.

    There is no limit at first. Who looks says when a look begins and what it found; what was written meanwhile may not be in
    that, and is taken off. A write for which there is no room waits for a look that begins after it came. Methods are for the
    loop.
    """

    def __init__(self) -> None:
        self._limit = self._slack = self._free = 0
        self._writing = 0
        """Bytes for which there was room and that are not written yet."""
        self._since = 0
        """Bytes that a look may have missed, which goes on or was the last."""
        self._begun = self._ended = self._offered = 0
        self._waiting: list[int] = []
        self._looked = asyncio.Condition()
        self.due = asyncio.Event()
        """Set when the disk is to be measured."""

    def bound(self, limit: int, slack: int) -> None:
        """From now on there is a limit; there is no room before the first look.

        Args:
            limit: bytes on disk of all that is written; 0: none.
            slack: bytes that are usually left after a look. When half of them are used, or half of what is left if that is
                less, another look is due.
        """
        self._limit, self._slack = limit, slack

    @property
    def used(self) -> int:
        """Bytes of the limit that were used at the last look, or reserved since it began."""
        return self._limit - self._free

    @property
    def wanted(self) -> int:
        """Bytes that writes wait for: of all together, as far as that is a quarter of the limit, and of each in any case."""
        return max(*self._waiting, min(sum(self._waiting), self._limit // 4)) if self._waiting else 0

    async def reserve(self, size: int) -> None:
        """Reserves so many bytes, which are written from now on until `wrote` is called. Raises `FullError` if there is
        none, and none can be made."""
        if not self._limit:
            return
        if self._free < size:
            await self._wait(size)
        self._free -= size
        self._since += size
        self._writing += size
        if self._free < min(self._slack, self._offered) // 2:
            self.due.set()

    def wrote(self, size: int) -> None:
        """So many bytes are written for which there was room, or never will be."""
        if self._limit:
            self._writing -= size

    @contextlib.asynccontextmanager
    async def writing(self, size: int) -> AsyncGenerator[None]:
        """There is room for so many bytes, which are written inside. Raises `FullError` if there is none, and none can
        be made."""
        await self.reserve(size)
        try:
            yield
        finally:
            self.wrote(size)

    def begin(self) -> None:
        """A look begins."""
        self.due.clear()
        self._begun += 1
        self._since = self._writing

    async def end(self, used: int) -> None:
        """A look has ended.

        Args:
            used: bytes on disk.
        """
        self._ended = self._begun
        self._free = self._offered = self._limit - used - self._since
        async with self._looked:
            self._looked.notify_all()

    async def look(self) -> None:
        """Returns when a look that began from now on has ended, or none does for long; at once if there is no limit."""
        if not self._limit:
            return
        awaited = self._begun + 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE), self._looked:
                while self._ended < awaited:
                    self.due.set()
                    await self._looked.wait()

    async def _wait(self, size: int) -> None:
        awaited = self._begun + 1
        self._waiting.append(size)
        try:
            async with asyncio.timeout(PATIENCE), self._looked:
                # Others may have taken the bytes that the last measurement found free.
                while self._free < size and (self._ended < awaited or self._offered >= size):
                    self.due.set()
                    await self._looked.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.remove(size)
        if self._free < size:
            raise FullError(
                f"the collector's limit of {self._limit} bytes on disk is met, and nothing that is left can be evicted"
            )
