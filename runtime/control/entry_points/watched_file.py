"""A watched file: its latest valid content, decoded."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable
from typing import Generic, TypeVar

from stepscope.runtime.accounting.error_log import ErrorLog, error_text
from stepscope.runtime.control import control_loop
from stepscope.runtime.control.entry_points.file_events import FileEvents
from stepscope.runtime.control.entry_points.status_file import StatusFile
from stepscope.runtime.files.file_reading import Reading, create_once, read_bounded
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.settings.arguments import got

T = TypeVar("T")

log = logging.getLogger("stepscope")

LIMIT = 1 << 20
"""Size limit in bytes; a larger file is not read."""
RETRY_S = 0.25
"""Seconds until content that cannot be decoded is read again: it may be half written."""
LEAST_POLL, MOST_POLL = 0.01, 86_400.0


class WatchedFile(Generic[T]):
    """Polls a file on the control thread, and decodes its content when it has changed.

    If the content is invalid, half written or too large, or the file was removed or is unreadable, `current` keeps the last
    valid value. The problem is logged once and written into a status file next to it, `<name>.status.json`. No method raises
    after `start()`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        decode: Callable[[bytes], T],
        *,
        default: bytes | None = None,
        create: bool = False,
        poll: float = 2.0,
        on_change: Callable[[T], object] | None = None,
        status: bool = True,
        limit: int = LIMIT,
    ) -> None:
        """
        Args:
            path: of the file; it need not exist.
            decode: decodes the content. If it raises, the content is invalid; `line` and `column` of the exception are its
                place.
            default: content of a new file.
            create: whether `start()` creates a missing file, in one step, and its directory. In a job one rank does it.
            poll: seconds between two looks. With `watchfiles` installed, changes are seen within a fraction of that.
            on_change: called with each new value on the control thread, and with the first one by `start()`. Its exceptions are
                logged and counted.
            status: whether to write the status file; in a job one rank does it.
            limit: size limit in bytes.

        Raises:
            TypeError: if the path is no path, or `poll` no number.
            ValueError: if `poll` is out of its range, or a file is to be created without a default.
        """
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be a str or a path, {got(path)}")
        if isinstance(poll, bool) or not isinstance(poll, int | float):
            raise TypeError(f"poll must be a number of seconds, {got(poll)}")
        if not (math.isfinite(poll) and LEAST_POLL <= poll <= MOST_POLL):
            raise ValueError(f"poll must be a number of seconds from {LEAST_POLL} to {MOST_POLL:g}, got {poll!r}")
        if create and default is None:
            raise ValueError("create=True needs default=..., what the new file is to hold")
        self.path = absolute(path)
        self.current: T | None = None
        """The latest valid value. It must not be changed."""
        self.problem = ""
        """Why the present content is invalid; empty if it is valid, or there is no file."""
        self.raised: ErrorLog[Exception] = ErrorLog(contexts=True)
        """Exceptions of `on_change`."""
        self._decode, self._on_change = decode, on_change
        self._default, self._create = default, create
        self._poll, self._limit = float(poll), limit
        self.status = StatusFile(self.path.with_name(f"{self.path.name}.status.json"), enabled=status)
        self._good = ""
        """Digest of the content of `current`."""
        self._bad: tuple[str, str] | None = None
        """Digest and problem of the reported invalid content."""
        self._suspect: tuple[str, str] | None = None
        self._loop: control_loop.ControlLoop | None = None
        self._running: Callable[[], None] | None = None
        self._wake: asyncio.Event | None = None
        self._pid = 0

    def start(self) -> None:
        """Reads the file, and continues until `close()`. A second call has no effect.

        Raises:
            OSError: if the file is to be created and cannot be.
            RuntimeError: if the system gives no further thread.
        """
        if self._running is not None:
            return
        if self._create and self._default is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            create_once(self.path, self._default)
        self._pid = os.getpid()
        self.look(patient=True)
        self._loop = control_loop.acquire()
        self._running = self._loop.start(self._watch, f"watching {self.path.name}")

    def close(self) -> None:
        """Stops reading the file; `current` stays. No effect a second time, or in a forked child."""
        running, loop, self._running, self._loop = self._running, self._loop, None, None
        if running is None or loop is None or self._pid != os.getpid():
            return
        running()
        control_loop.release(loop)

    def look_soon(self) -> None:
        """Makes the control thread read the file now. Any thread may call."""
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and self._pid == os.getpid():
            loop.call_soon(wake.set)

    def look(self, *, patient: bool = False) -> bool:
        """Reads the file once, on this thread.

        Args:
            patient: report invalid content only if it was the same at the previous look.

        Returns:
            Whether to look again soon, because the content may be half written.
        """
        reading = read_bounded(self.path, self._limit)
        if reading.content is None:
            if reading.missing:
                self._forget(reading)
                return False
            return self._report(reading, reading.problem, 0, 0, patient)
        if reading.digest == self._good:
            self._mark_valid()
            return False
        try:
            value = self._decode(reading.content)
        except Exception as error:  # any exception of the decoder means that the content is invalid
            line, column = getattr(error, "line", 0), getattr(error, "column", 0)
            return self._report(reading, str(error) or type(error).__name__, line, column, patient)
        self._good, self.current = reading.digest, value
        self._notify(value)
        self._mark_valid()
        self.status.put(state="ok", sha256=reading.digest)
        return False

    def _notify(self, value: T) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(value)
        except Exception as error:
            log.error("what follows %s failed", self.path, exc_info=error)
            self.raised.record("on_change", error)
            self.status.put(error=error_text(error))

    def _mark_valid(self) -> None:
        self._suspect = None
        if self._bad is not None:
            self._bad, self.problem = None, ""
            log.info("%s is well again", self.path)
            self.status.put(state="ok", sha256=self._good, bad_sha256=None, reason=None, line=None, column=None)

    def _forget(self, reading: Reading) -> None:
        """A missing file is no error: `current` stays."""
        self._suspect = None
        reported = ("", reading.problem)
        if self._bad == reported:
            return
        self._bad, self.problem = reported, ""
        if self.current is not None:
            log.warning("%s: %s; the last valid content holds", self.path, reading.problem)
        if self.path.parent.is_dir():
            self.status.put(state="missing", reason=reading.problem, line=None, column=None)

    def _report(self, reading: Reading, problem: str, line: int, column: int, patient: bool) -> bool:
        found = (reading.digest, problem)
        if self._bad == found:
            return False
        if patient and self._suspect != found:
            self._suspect = found
            return True
        self._suspect, self._bad, self.problem = None, found, problem
        effect = "nothing was read before" if self.current is None else "the last valid content holds"
        log.error("%s cannot be followed: %s; %s", self.path, problem, effect)
        self.status.put(
            state="bad", reason=problem, line=line or None, column=column or None, bad_sha256=reading.digest
        )
        return False

    def _events(self) -> FileEvents:
        return FileEvents(self.path.parent, lambda name: name == self.path.name, self.look_soon)

    async def _watch(self) -> None:
        self._wake = asyncio.Event()
        events = self._events()
        notified = events.start()
        try:
            while True:
                again = self.look(patient=True)
                if not notified or not events.running:  # the directory may have come, or come anew
                    events.close()
                    events = self._events()
                    notified = events.start()
                try:
                    await asyncio.wait_for(self._wake.wait(), min(self._poll, RETRY_S) if again else self._poll)
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            events.close()
