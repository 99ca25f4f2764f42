"""The audit: a line for each action, or attempt, of a client."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from concurrent.futures import Future
from pathlib import Path

import msgspec

from stepscope.collector.errors import StuckError
from stepscope.collector.files.blocking_pool import BlockingPool

log = logging.getLogger("stepscope.collector.audit")
program_log = logging.getLogger("stepscope.collector")

REFUSED = "refused"
MOST_WAITING = 4096
"""Lines that wait for the disk; further ones are counted only."""
_MOST_BYTES = 8 << 20
_REFUSALS_PER_SECOND = 5
_WARNINGS_PER_MINUTE = 10


class Audit:
    """JSON lines in a file of the collector's directory, for this user only, and the logger `stepscope.collector.audit`.

    At 8 MiB the file becomes `audit.1.jsonl`, in place of the one before. Refusals are in `refused.jsonl`, likewise, so that
    who is refused cannot push out what was done; those beyond five a second are counted only; ten a minute are warnings of the
    logger `stepscope.collector`. Lines are written by a thread
    of their own, in their order; one that cannot be written, or for which there is no room while the disk hangs, is counted.
    """

    def __init__(self, directory: Path) -> None:
        """Args: of the collector."""
        self._directory = directory
        self._disk = BlockingPool(1)
        self._second, self._refusals = 0, 0
        self._minute, self._logged = 0, 0
        self._unwritten = self._omitted = 0
        self.refused = 0
        """Requests that were refused."""

    @property
    def failed(self) -> int:
        """Lines that could not be written."""
        return self._unwritten + self._omitted

    def line(self, action: str, client: str, **facts: str | int) -> None:
        """Writes a line about an action: who did it, and its facts. Callers never pass tokens."""
        text = msgspec.json.encode({"time": time.time(), "action": action, "client": client, **facts})
        log.info("%s", text.decode())
        if self._disk.waiting >= MOST_WAITING:
            self._omitted += 1
            return
        path = self._directory / f"{'refused' if action == REFUSED else 'audit'}.jsonl"
        self._disk.submit(lambda: _append(path, text + b"\n")).add_done_callback(self._written)

    def refuse(self, why: str, client: str, path: str, method: str = "") -> None:
        """Writes a line about a request that was refused before anything of it was done."""
        self.refused += 1
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._refusals = second, 0
        self._refusals += 1
        if second // 60 != self._minute:
            self._minute, self._logged = second // 60, 0
        self._logged += 1
        if self._logged <= _WARNINGS_PER_MINUTE:
            program_log.warning("%s is refused: %s", client or "somebody", ascii(f"{why} {path[:200]}".strip())[1:-1])
        if self._refusals <= _REFUSALS_PER_SECOND:
            request = {"method": method[:20]} if method else {}
            self.line(REFUSED, client, why=why, path=path[:200], **request, refused=self.refused)

    async def flush(self, seconds: float) -> bool:
        """Waits until the lines so far are written or have failed, so many seconds at most. Returns whether they have."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wrap_future(self._disk.submit(lambda: None))
        except (TimeoutError, StuckError):
            return False
        return True

    def _written(self, done: Future[None]) -> None:
        self._unwritten += done.exception() is not None


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path, flags, 0o600)
    try:
        if os.fstat(file).st_size + len(line) > _MOST_BYTES:
            os.replace(path, path.with_suffix(".1.jsonl"))
            os.close(file)
            file = os.open(path, flags, 0o600)
        os.write(file, line)
    finally:
        os.close(file)
