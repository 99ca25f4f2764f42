"""The recorder: session directory, rings, and the one switch that all profilers share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.detail import EVERYTHING
from stepscope.runtime.errors import OutputError
from stepscope.runtime.events import EVENT_DTYPE, Block
from stepscope.runtime.options import Options

log = logging.getLogger("stepscope")

KEPT_LEFTOVERS = 8
"""Sessions of killed processes that are kept for `stepscope recover`; older ones are removed."""

DRAIN_LIMIT = 1 << 18
"""Events taken at a time: a block of 16 MiB at most."""


class RecorderStatistics(msgspec.Struct, frozen=True):
    """Accounts of the process's rings. `produced` = `drained` + `dropped` + `waiting`."""

    recording: bool
    rings: int
    threads: int
    """Threads alive that have recorded something."""
    produced: int
    drained: int
    dropped: int
    waiting: int
    bytes: int
    """Bytes of events and arguments drained."""
    cut: dict[str, int]
    """What was shortened or refused, by kind."""


class Recorder:
    """Records the events of this process. One per process, made by the first profiler, closed when Python exits."""

    def __init__(self, options: Options) -> None:
        """Makes the session directory and opens the native recorder in it.

        Raises:
            OutputError: if no directory for the session can be made.
        """
        self.directory = _make_directory(options.session_dir)
        slots = 1 << (options.ring_slots - 1).bit_length()
        try:
            rings = max(options.ring_bytes // (slots * EVENT_DTYPE.itemsize), 1)
            self.wake_fd = _core.open(str(self.directory), slots, rings, options.overflow)
        except OSError as error:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise OutputError(error.errno, f"cannot open a session in {self.directory}: {error.strerror}") from error

    def want(self, profiler: int, on: bool, what: int = EVERYTHING) -> None:
        """Says whether profiler number `profiler` wants events; what any profiler wants is recorded.

        Args:
            what: the kinds of events that it wants now, `EVENTS` and `OPERATORS`; the others count as left out.
        """
        _core.want(profiler, EVERYTHING if on else 0, what if on else 0)

    def drain(self) -> tuple[int, list[tuple[Block, bytes]]]:
        """Takes what all rings hold.

        Returns:
            A time such that every event that ended before it is in this or an earlier answer, and the blocks with
            their heaps of arguments.
        """
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        until = _core.now()
        blocks: list[tuple[Block, bytes]] = []
        more = True
        while more:
            events, args, more = _core.drain(DRAIN_LIMIT)
            if events:
                blocks.append((np.frombuffer(events, EVENT_DTYPE), args))
        return until, blocks

    def open_spans(self) -> Block:
        """Spans that have begun and not ended, with `dur` up to now."""
        return np.frombuffer(_core.open_spans(), EVENT_DTYPE)

    def statistics(self) -> RecorderStatistics:
        """Accounts of the rings so far."""
        rings: dict[str, Any] = _core.ring_statistics()
        return RecorderStatistics(recording=bool(_core.recording()), cut=_core.counts(), **rings)

    def close(self) -> None:
        """Stops recording for good and removes the session directory."""
        _core.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def _make_directory(wanted: str | None) -> Path:
    """A private directory, in memory where the system has a place for that."""
    places = [wanted] if wanted else ["/dev/shm", tempfile.gettempdir()]
    problems: list[str] = []
    for place in places:
        try:
            directory = Path(tempfile.mkdtemp(prefix=f"stepscope-{os.getpid()}-", dir=place))
        except OSError as error:
            problems.append(f"{place}: {error.strerror}")
            continue
        (directory / "process.json").write_text(json.dumps(process_identity()))
        _sweep(Path(place), directory)
        return directory
    raise OutputError(f"no directory for the session can be made ({'; '.join(problems)}); set Options.session_dir")


def _sweep(place: Path, own: Path) -> None:
    """Removes what processes left that were killed long ago, but for the latest: a job that crashes and restarts for
    ever must not fill the memory with rings."""
    left: list[tuple[float, Path]] = []
    for directory in place.glob("stepscope-*"):
        try:
            about = directory.lstat()
            if directory == own or not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                continue
            identity = json.loads((directory / "process.json").read_text())
            if process_identity(int(identity["pid"])) != identity:
                left.append((about.st_mtime, directory))
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.debug("%s is left alone: %s", directory, error)
    for _, directory in sorted(left)[:-KEPT_LEFTOVERS]:
        shutil.rmtree(directory, ignore_errors=True)


def process_identity(pid: int | None = None) -> dict[str, int]:
    """Process id and start time (clock ticks since boot), which together name a process for good.

    Source: proc(5), /proc/[pid]/stat, field 22.
    """
    pid = pid or os.getpid()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text()
        start = int(fields.rpartition(")")[2].split()[19])
    except OSError:
        start = 0
    return {"pid": pid, "start_time": start}


def _running_task() -> tuple[str, int] | None:
    """Name and number of the running asyncio task; the native core asks once per task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else (task.get_name(), id(task) & 0x7FFFFFFF)


_core.set_task_lookup(_running_task)

_recorder: Recorder | None = None
_making = threading.Lock()


def recorder(options: Options) -> Recorder:
    """The process's recorder; the options of the first caller count."""
    global _recorder
    with _making:
        if _recorder is None:
            _recorder = Recorder(options)
        return _recorder


def close_recorder() -> None:
    """Closes the process's recorder, if there is one. A later one cannot be opened."""
    if _recorder is not None:
        _recorder.close()


def _forget() -> None:
    """In a forked child: the parent's session is not ours. `_core` has let go of it already."""
    global _recorder, _making
    _recorder = None
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forget)
