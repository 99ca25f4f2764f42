"""The audit: a line for everything that somebody did to a collector, or tried."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import msgspec

log = logging.getLogger("stepscope.collector.audit")

REFUSED = "refused"
_MOST_BYTES = 8 << 20
_REFUSALS_PER_SECOND = 5


class Audit:
    """JSON lines in a file of the collector's directory, for this user only, and the logger `stepscope.collector.audit`.

    At 8 MiB the file becomes `audit.1.jsonl`, in place of the one before. Refusals are in `refused.jsonl`, likewise, so that
    who is refused cannot push out what was done; those beyond five a second are counted only. A line that cannot be written
    is counted.
    """

    def __init__(self, directory: Path) -> None:
        """Args: of the collector."""
        self._directory = directory
        self._second, self._refusals = 0, 0
        self.refused = 0
        """Requests that were refused."""
        self.failed = 0
        """Lines that could not be written."""

    def line(self, action: str, client: str, **facts: str | int) -> None:
        """Writes what was done, by whom, and what is to know of it. Tokens are never given here."""
        text = msgspec.json.encode({"time": time.time(), "action": action, "client": client, **facts})
        log.info("%s", text.decode())
        try:
            self._write("refused" if action == REFUSED else "audit", text + b"\n")
        except OSError:
            self.failed += 1

    def refuse(self, why: str, client: str, path: str, method: str = "") -> None:
        """A request was refused before anything of it was done."""
        self.refused += 1
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._refusals = second, 0
        self._refusals += 1
        if self._refusals <= _REFUSALS_PER_SECOND:
            asked = {"method": method[:20]} if method else {}
            self.line(REFUSED, client, why=why, path=path[:200], **asked, refused=self.refused)

    def _write(self, name: str, line: bytes) -> None:
        path = self._directory / f"{name}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
        try:
            if os.fstat(file).st_size + len(line) > _MOST_BYTES:
                os.replace(path, path.with_name(f"{name}.1.jsonl"))
                os.close(file)
                file = os.open(path, flags, 0o600)
            os.write(file, line)
        finally:
            os.close(file)
