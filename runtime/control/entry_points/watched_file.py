"""A file that is watched: its latest valid content, decoded, for whoever wants to look at no cost."""

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
from stepscope.runtime.control.entry_points.file_reading import Reading, create_once, read_bounded
from stepscope.runtime.control.entry_points.status_file import StatusFile
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.settings.arguments import got

T = TypeVar("T")

log = logging.getLogger("stepscope")

LIMIT = 1 << 20
"""Bytes of a file that is read; a larger one is refused unread."""
RETRY_S = 0.25
"""Seconds until content that cannot be decoded is looked at again: who writes it may be half way."""
LEAST_POLL, MOST_POLL = 0.01, 86_400.0


class WatchedFile(Generic[T]):
    """Reads a file again and again, on the control thread, and keeps what it last held that could be decoded.

    The content decides, not its time: it is decoded when it differs from the last, and only then. A file that cannot be
    decoded, is half written, too large, removed, replaced or unreadable changes nothing but what is said of it: once in
    the log, and in a status file beside it, `<name>.status.json`. Nothing raises after construction.
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
            decode: makes a value of its content; what it raises is the reason why the content is bad. An exception with
                `line` and `column` says where.
            default: what the file holds if `create` makes it.
            create: whether `start()` makes a file that is missing, in one step, and its directory; an existing one is
                never touched. In a job one rank does it.
            poll: seconds between two looks. Where `watchfiles` is installed changes are seen within a fraction of that.
            on_change: called with each new value on the control thread, with the first one by `start()`. What it raises
                is logged, and counted in the status file.
            status: whether the status file is written; in a job one rank does it.
            limit: bytes that the file may have.

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
        """The latest valid value; reading it costs what reading an attribute costs. The value must not be changed."""
        self.problem = ""
        """Why the present content is not the current value; empty if it is, or there is no file."""
        self.raised: ErrorLog[Exception] = ErrorLog(contexts=True)
        """By `on_change`."""
        self._decode, self._on_change = decode, on_change
        self._default, self._create = default, create
        self._poll, self._limit = float(poll), limit
        self.status = StatusFile(self.path.with_name(f"{self.path.name}.status.json"), enabled=status)
        self._good = ""
        """Digest of the content that `current` was made of."""
        self._bad: tuple[str, str] | None = None
        """Digest and problem of the bad content that was reported."""
        self._suspect: tuple[str, str] | None = None
        self._loop: control_loop.ControlLoop | None = None
        self._running: Callable[[], None] | None = None
        self._wake: asyncio.Event | None = None
        self._pid = 0

    def start(self) -> None:
        """Looks at the file, and goes on looking until `close()`. Starting twice changes nothing.

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
        """Looks no more; what it knew stays. Closing twice, or in a forked child, changes nothing."""
        running, loop, self._running, self._loop = self._running, self._loop, None, None
        if running is None or loop is None or self._pid != os.getpid():
            return
        running()
        control_loop.release(loop)

    def look_soon(self) -> None:
        """Has the file looked at now; from any thread."""
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and self._pid == os.getpid():
            loop.call_soon(wake.set)

    def look(self, *, patient: bool = False) -> bool:
        """Reads the file once, here.

        Args:
            patient: report content that cannot be decoded only when it was the same at an earlier look.

        Returns:
            Whether a look soon afterwards is wanted: the content may be half written.
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
        except Exception as error:  # whatever a decoder raises is what is wrong with the content
            line, column = getattr(error, "line", 0), getattr(error, "column", 0)
            return self._report(reading, str(error) or type(error).__name__, line, column, patient)
        self._good, self.current = reading.digest, value
        self._mark_valid()
        self.status.put(state="ok", sha256=reading.digest)
        self._notify(value)
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
        """A file that is not there is no mistake: what was known before holds, if there was something."""
        self._suspect = None
        known = ("", reading.problem)
        if self._bad == known:
            return
        self._bad, self.problem = known, ""
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
        holds = "nothing was read before" if self.current is None else "the last valid content holds"
        log.error("%s cannot be followed: %s; %s", self.path, problem, holds)
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
