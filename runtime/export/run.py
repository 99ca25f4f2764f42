"""The facts of a run, for exporters, and its metadata."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import msgspec

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events.clock import ClockAnchor, ClockSync, wall_clock
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.files.paths import readable
from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.session.note import NoteOutput, note_nothing
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.documented import Documented
from stepscope.runtime.threads import locks
from stepscope.runtime.windows.step_feed import StepFeed

log = logging.getLogger("stepscope")


class Metadata:
    """A thread-safe mapping of JSON-like values."""

    def __init__(self, initial: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        self._lock = locks.reentrant()
        for key, value in (initial or {}).items():
            self.add(key, value)

    def add(self, key: str, value: Any) -> None:
        """Adds or replaces a value. Values that JSON does not support become the name of their type (`plain`).

        Raises:
            TypeError: if the key is no str.
        """
        _check_str("key", key)
        reduced = plain(value)
        with self._lock:
            self._values[readable(key)] = reduced

    def add_json(self, key: str, text: str) -> None:
        """Adds a value from JSON text. Text that is no JSON, or nested too deeply, is logged and stored as a string.

        Raises:
            TypeError: if key or text is no str.
        """
        _check_str("key", key)
        _check_str("value", text)
        value: Any = text
        try:
            value = plain(msgspec.json.decode(text))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            log.warning("metadata %r is not JSON (%s); it is kept as text", key, error)
        with self._lock:
            self._values[readable(key)] = value

    def snapshot(self) -> dict[str, Any]:
        """The current values."""
        with self._lock:
            return dict(self._values)


def _check_str(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} of metadata must be a str, {got(value)}")


class LiveJournal(Protocol):
    """The journal of a run while it is written, for exporters that send it. Any thread may call."""

    path: Path
    """Its first file, once it is open."""
    end: int
    """Position up to which the kernel has the frames."""
    changed: LoopCondition
    """Notified after each write, and when the file is opened or closed."""
    failed: bool
    """Whether the file could not be created."""
    written: int
    """Events written so far."""
    lost: int
    """Events that were counted as written, and that the system refused."""
    dropped: int
    """Events that were left out because of the size limit."""
    deleted_unsent: int
    """Events of segments that were deleted before all followers had sent them."""

    @property
    def is_open(self) -> bool:
        """Whether frames can be appended."""
        ...

    def write_sync(self, sync: ClockSync) -> None:
        """Appends a comparison with another clock."""
        ...

    def add_facts(self, facts: object) -> None:
        """Appends facts of steps, as an exporter sends them, before the next events or at the end. Waits for nothing."""
        ...

    def limit_segments(self, segment_bytes: int) -> None:
        """Begins new segments after at most so many bytes."""
        ...

    def follow(self, follower: object) -> None:
        """Keeps segments that this follower has not sent."""
        ...

    def advance(self, follower: object, position: int, *, delete: bool = False) -> None:
        """Notes up to which position a follower has sent the journal, and may delete segments that all have sent."""
        ...


class Run(Documented, frozen=True, kw_only=True):
    """The run of one profiler, for its exporters."""

    name: str
    """Value of `trace(name=...)`."""
    output_dir: Path
    """Directory of this run, which exists."""
    pid: int
    """Process id of the run."""
    host: str
    """Name of the machine."""
    rank: int | None
    """Rank in a distributed job; `None` outside one."""
    world_size: int | None
    """Number of ranks of the job; `None` outside one."""
    anchor: ClockAnchor
    """Wall and monotonic clock, read together when the run was opened."""
    metadata: Callable[[], Mapping[str, Any]]
    """Returns the metadata so far; values are JSON-like."""
    ledger: Callable[[], Ledger] = Ledger
    """Returns the accounts of the run so far: windows, events between windows, and outputs."""
    note_output: NoteOutput = note_nothing
    """An exporter calls it with `True` before it begins a file that may be incomplete after a crash, and with `False` when the file
    is complete. So `stepscope recover` finds journals, and writes traces again. It writes a small file."""
    job: str = ""
    """The launcher's name of the job of this run; empty without one."""
    clock: str = ""
    """Name of the machine's monotonic clock: runs with the same name share the clock. Empty = unknown."""
    id: str = ""
    """Random id of this run, which its journals and its note contain. Empty = unknown."""
    control: Callable[[Command], Future[Answer]] | None = None
    """Handles commands for the profiler; any thread may call. `None` if the profiler accepts none from exporters."""
    journal: LiveJournal | None = None
    """The journal of all windows that this run writes; `None` if it writes none."""
    steps: StepFeed | None = None
    """The facts of its steps, which an exporter may `follow` and `unfollow`; `None` for a run of another process."""

    def wall(self, monotonic_ns: int) -> int:
        """Unix time in ns at a monotonic time of this run, including changes of the wall clock since.

        For a run of another process, only the anchor counts.
        """
        at = self.anchor.wall(monotonic_ns)
        return at + wall_clock.change(self.anchor.monotonic_ns, monotonic_ns) if self.pid == os.getpid() else at


def refuse_another_run(exporter: object, before: Run | None) -> None:
    """To be called first in `open`, with the run for which an exporter was opened before, if any.

    Raises:
        ClosedError: if there is one.
    """
    if before is not None:
        raise ClosedError(
            f"this {type(exporter).__name__} was opened for the run {before.name!r} before; make another one for each run"
        )
