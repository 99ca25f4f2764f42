"""Processes of Python with limits of memory, time and size, for work that would fill the collector's memory; and their
turns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence

import msgspec

from stepscope.collector.downloads import confined
from stepscope.collector.problems import ProblemError

CHUNK = 1 << 18
AT_ONCE = 2
"""Processes of a kind at once: each takes a core."""
WAITING = 16
"""Requests of a kind that may wait for their turn."""


class Turns:
    """The turns of requests of one kind: `AT_ONCE` of them go on at once, and `WAITING` others wait."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncGenerator[None]:
        """A context in which one request has its turn.

        Raises:
            ProblemError: 503 if too many wait already.
        """
        if self._waiting >= WAITING:
            raise ProblemError(503, f"too many {self._what} are waiting; try again later", {"Retry-After": "10"})
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()


class ProcessBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one process."""

    memory_bytes: int = 4 << 30
    file_bytes: int = 0
    """Largest size of a file that it writes; 0: no limit."""
    seconds: float = 1800.0
    """Limit of its run time, and of its processor time."""


@contextlib.asynccontextmanager
async def bounded(
    arguments: Sequence[str], bounds: ProcessBounds, *, output: bool = False
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Starts Python with these arguments, within bounds. It is killed at the end of the block if it still runs, and with the
    collector.

    Args:
        output: whether what it writes to standard output is wanted.
    """
    limits = (os.getpid(), bounds.memory_bytes, int(bounds.seconds) + 1, bounds.file_bytes)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", confined.__file__, *map(str, limits), sys.executable),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE if output else asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=CHUNK,
    )
    ending = asyncio.get_running_loop().call_later(bounds.seconds, _kill, process)
    try:
        yield process
    finally:
        ending.cancel()
        _kill(process)
        await process.wait()


def ended(status: int, bounds: ProcessBounds) -> str:
    """The reason why a process ended without an answer."""
    if status in (-signal.SIGKILL, -signal.SIGXCPU):
        return f"it was ended, as it may take {bounds.seconds:g} seconds at most, or the machine had no memory left"
    return f"its process ended with {status}"


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
