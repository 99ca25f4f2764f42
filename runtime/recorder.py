"""The recorder: session directory, rings, and the one switch that all profilers share."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.errors import OutputError
from stepscope.runtime.events import EVENT_DTYPE, Block
from stepscope.runtime.options import Options
from stepscope.runtime.session_directory import IDENTITY, PREFIX, process_identity, sweep
from stepscope.runtime.shedding import Shedding
from stepscope.runtime.spool import Spool

log = logging.getLogger("stepscope")

EVERYTHING = _core.RECORD_EVENTS | _core.RECORD_OPERATORS
"""What the recorder can record."""

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
    sampled: int
    """Those of `dropped` that `Options.overflow` = `sample` left out."""
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
            order = Shedding.of(options)
            _core.set_shedding(order.native, order.shares)
            self.wake_fd = _core.open(str(self.directory), slots, rings, options.overflow, options.block_seconds)
            self.spool = Spool(self.directory, options.queue_bytes)
        except OSError as error:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise OutputError(error.errno, f"cannot open a session in {self.directory}: {error.strerror}") from error
        # A signal handler may close a profiler while its thread is in here.
        self._lock = threading.RLock()
        self._wanted: set[int] = set()

    def want(self, profiler: int, on: bool) -> None:
        """Says whether profiler number `profiler` wants events; they are recorded while any of them does."""
        with self._lock:
            (self._wanted.add if on else self._wanted.discard)(profiler)
            _core.set_recording(EVERYTHING if self._wanted else 0)

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
        self.spool.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def _make_directory(wanted: str | None) -> Path:
    """A private directory, in memory where the system has a place for that."""
    places = [wanted] if wanted else ["/dev/shm", tempfile.gettempdir()]
    problems: list[str] = []
    for place in places:
        try:
            directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
        except OSError as error:
            problems.append(f"{place}: {error.strerror}")
            continue
        identity = os.open(directory / IDENTITY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(identity, "w") as file:
            json.dump(process_identity(), file)
        sweep(Path(place), directory)
        return directory
    raise OutputError(f"no directory for the session can be made ({'; '.join(problems)}); set Options.session_dir")


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
    if _recorder is not None:
        _recorder.spool.close()
    _recorder = None
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forget)
