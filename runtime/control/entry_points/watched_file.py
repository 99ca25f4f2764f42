"""A watched file: its latest valid content, decoded, and the status file next to it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.file_reading import Reading, create_once, read_bounded
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.files.private_files import replace_private
from stepscope.runtime.requests.armed import ArmedStatus

T = TypeVar("T")

log = logging.getLogger("stepscope")

LIMIT = 1 << 20
"""Size limit in bytes; a larger file is not read."""
RETRY_S = 0.25
"""Seconds for which invalid content must stay the same until it is reported: it may be half written."""
SHOWN = 8
"""Number of windows in the status file, the latest."""


class StatusFile:
    """An object of facts in a JSON file, which each change replaces in one step.

    If the file cannot be written, that is logged once.
    """

    def __init__(self, path: Path, *, enabled: bool) -> None:
        self.path = path
        self.enabled = enabled
        self._facts: dict[str, Any] = {}
        self._failed = False

    def put(self, **facts: Any) -> None:
        """Changes facts, and removes those that are `None`."""
        changed = {**self._facts, **facts}
        self._facts = {name: value for name, value in changed.items() if value is not None}
        if not self.enabled:
            return
        facts = {**self._facts, "pid": os.getpid(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        try:
            replace_private(self.path, msgspec.json.format(json_bytes(facts), indent=2) + b"\n")
        except OSError as error:
            if not self._failed:
                self._failed = True
                log.warning("%s cannot be written: %s", self.path, error)

    def put_windows(self, windows: Sequence[ArmedStatus]) -> None:
        """Writes the states of windows, if they have changed."""
        latest = list(windows[-SHOWN:])
        if latest != self._facts.get("windows", []):
            self.put(windows=latest)


class WatchedFile(Generic[T]):
    """Reads a file in each call of `look`, and decodes its content when it has changed.

    If the content is invalid, half written or too large, or the file was removed or is unreadable, `current` keeps the last
    valid value. The problem is logged once and written into a status file next to it, `<name>.status.json`.
    """

    def __init__(
        self,
        path: Path,
        decode: Callable[[bytes], T],
        *,
        default: bytes | None = None,
        on_change: Callable[[T], object] | None = None,
        status: bool = True,
        log_prefix: str = "",
    ) -> None:
        """
        Args:
            path: need not exist.
            decode: if it raises, the content is invalid; `line` and `column` of the exception are its place.
            default: content of a file that `create` makes; in a job one rank does it.
            on_change: called with each new value. Its exceptions are logged, and written into the status file.
            status: whether to write the status file; in a job one rank does it.
            log_prefix: begins each line of the log.
        """
        self.path = absolute(path)
        self.current: T | None = None
        """The latest valid value. It must not be changed."""
        self._decode, self._on_change = decode, on_change
        self._named = f"{log_prefix}{self.path}"
        self._default = default
        self.status = StatusFile(self.path.with_name(f"{self.path.name}.status.json"), enabled=status)
        self._good = ""
        """Digest of the content of `current`."""
        self._bad: tuple[str, str] | None = None
        """Digest and problem of the reported invalid content."""
        self._suspect: tuple[str, str] | None = None
        """The same of content that may be half written."""
        self._suspect_since = 0.0

    def create(self) -> None:
        """Creates the file if it is missing, in one step, and its directory.

        Raises:
            OSError: if it cannot be created.
        """
        if self._default is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            create_once(self.path, self._default)

    def look(self) -> bool:
        """Reads the file once. Reports invalid content only if it was the same for `RETRY_S` seconds. Never raises. Returns
        whether to look again soon, because the content may be half written."""
        reading = read_bounded(self.path, LIMIT)
        if reading.content is None:
            if reading.missing:
                self._forget(reading)
                return False
            return self._report(reading, reading.problem, 0, 0)
        if reading.digest == self._good:
            self._mark_valid()
            return False
        try:
            value = self._decode(reading.content)
        except Exception as error:  # any exception of the decoder means that the content is invalid
            line, column = getattr(error, "line", 0), getattr(error, "column", 0)
            return self._report(reading, str(error) or type(error).__name__, line, column)
        self._good, self.current = reading.digest, value
        try:
            if self._on_change is not None:
                self._on_change(value)
        except Exception as error:
            log.error("%s: what follows it failed", self._named, exc_info=error)
            self.status.put(error=error_text(error))
        self._mark_valid()
        self.status.put(state="ok", sha256=reading.digest)
        return False

    def _mark_valid(self) -> None:
        self._suspect = None
        if self._bad is not None:
            self._bad = None
            log.info("%s is valid again", self._named)
            self.status.put(state="ok", sha256=self._good, bad_sha256=None, reason=None, line=None, column=None)

    def _forget(self, reading: Reading) -> None:
        """A missing file is no error: `current` stays."""
        self._suspect = None
        reported = ("", reading.problem)
        if self._bad == reported:
            return
        self._bad = reported
        if self.current is not None:
            log.warning("%s: %s; the last valid content holds", self._named, reading.problem)
        if self.path.parent.is_dir():
            self.status.put(state="missing", reason=reading.problem, line=None, column=None)

    def _report(self, reading: Reading, problem: str, line: int, column: int) -> bool:
        found = (reading.digest, problem)
        if self._bad == found:
            return False
        now = time.monotonic()
        if self._suspect != found:
            self._suspect, self._suspect_since = found, now
        if now - self._suspect_since < RETRY_S:
            return True
        self._suspect, self._bad = None, found
        effect = "nothing was read before" if self.current is None else "the last valid content holds"
        log.error("%s cannot be followed: %s; %s", self._named, problem, effect)
        self.status.put(
            state="bad", reason=problem, line=line or None, column=column or None, bad_sha256=reading.digest
        )
        return False
