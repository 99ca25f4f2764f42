"""The recorder: session directory, rings, and the one switch that all profilers share."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.runtime import _core, asyncio_tasks
from stepscope.runtime.detail import EVERYTHING
from stepscope.runtime.errors import OutputError
from stepscope.runtime.events import EVENT_DTYPE, Block, join_blocks
from stepscope.runtime.mounts import IN_MEMORY, file_system_of
from stepscope.runtime.options import Options
from stepscope.runtime.recorder_statistics import RecorderStatistics
from stepscope.runtime.recovery.sweep import sweep_beside
from stepscope.runtime.session import ENVIRONMENT, end_session, make_session, remove_session
from stepscope.runtime.shedding import Shedding
from stepscope.runtime.spool import Spool
from stepscope.runtime.workers import Workers

log = logging.getLogger("stepscope")

LOOK_EVERY = 0.01
"""Seconds between two looks for the session directory: more than `sys.getswitchinterval()`, after which a thread that wants
the interpreter gets it from one that does not let go of it."""

DRAIN_LIMIT = 1 << 18
"""Events taken at a time: a block of 16 MiB at most."""


class Recorder:
    """Records the events of this process. One per process, made by the first profiler, closed when Python exits."""

    def __init__(self, options: Options) -> None:
        """Makes the session directory and opens the native recorder in it.

        Raises:
            OutputError: if no directory for the session can be made.
        """
        self.directory = make_session(options, sweep_beside)
        _warn_of_disk(self.directory)
        try:
            slots, rings = ring_sizes(options, options.ring_bytes)
            order = Shedding.of(options)
            _core.set_shedding(order.native, order.shares)
            self.wake_fd = _core.open(str(self.directory), slots, rings, options.overflow, options.block_seconds)
            self._slots, self._rings, self._keeps_ring = slots, rings, options.overflow == "drop_oldest"
            self.spool = Spool(self.directory, options.queue_bytes)
        except OSError as error:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise OutputError(error.errno, f"cannot open a session in {self.directory}: {error.strerror}") from error
        self.workers = Workers(self.directory, options.worker_ring_bytes)
        self.undelivered: dict[object, Path] = {}
        """Directories of the runs of which it may hold something that nobody has yet, by their pipelines."""
        self._looked, self._gone = -LOOK_EVERY, False
        self._outer_session = os.environ.get(ENVIRONMENT)
        os.environ[ENVIRONMENT] = str(self.directory)

    def want(self, profiler: int, on: bool, what: int = EVERYTHING, *, waits: bool = False) -> None:
        """Says whether profiler number `profiler` wants events; what any profiler wants is recorded.

        Args:
            what: the kinds of events that it wants now, `EVENTS` and `OPERATORS`; the others count as left out.
            waits: it wants none now, and may later: then the spans that are still open.
        """
        if on:
            _core.want(profiler, EVERYTHING, what)
        else:
            _core.want(profiler, *((_core.RECORD_OPEN,) * 2 if waits else (0, 0)))

    def heard(self) -> None:
        """`wake_fd` is not readable any more, until a ring calls for a drain again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)

    def drain(self) -> tuple[int, list[tuple[Block, bytes]]]:
        """Takes what all rings hold, those of processes that joined included.

        Returns:
            A time such that every event that ended before it is in this or an earlier answer, and the blocks with
            their heaps of arguments.
        """
        self.heard()
        until = _core.now()
        blocks: list[tuple[Block, bytes]] = []
        more = True
        while more:
            events, args, more = _core.drain(DRAIN_LIMIT)
            if events:
                blocks.append((np.frombuffer(events, EVENT_DTYPE), args))
        others = self.workers.drain()
        for block, heap in others:
            _core.spool_write(block, heap)
        return until, blocks + others

    def pressing(self) -> bool:
        """Whether rings are to be drained although nobody takes it yet: an eighth of what they may hold waits, or half of
        one where a thread that fills its ring has no other."""
        rings = _core.ring_statistics()
        alone = self._keeps_ring or rings["rings"] >= self._rings
        return rings["waiting"] > (self._slots // 2 if alone else self._slots * self._rings // 8)

    def open_spans(self) -> Block:
        """Spans that have begun and not ended, in any process of the session, with `dur` up to now."""
        return join_blocks([np.frombuffer(_core.open_spans(), EVENT_DTYPE), *self.workers.open_spans()])

    def statistics(self) -> RecorderStatistics:
        """Accounts of all that was recorded so far; `RecorderAccounts` has those of one profiler."""
        rings: dict[str, Any] = _core.ring_statistics()
        return RecorderStatistics(
            recording=bool(_core.recording()),
            cut=_core.counts(),
            workers=self.workers.statistics(),
            removed=self._removed(),
            unwatched=asyncio_tasks.unwatched.copy(),
            **rings,
        )

    def _removed(self) -> bool:
        # Asking lets go of the interpreter for a moment: whoever asks all the time would keep the hub from ever getting it.
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY:
            self._looked, self._gone = now, not self.directory.exists()
        return self._gone

    def close(self) -> None:
        """Stops recording for good, here and in processes that joined, and removes the session directory.

        It stays, and a line of the log says where, while a run is not delivered.
        """
        _core.close()
        self.spool.close()
        self.workers.close()
        if os.environ.get(ENVIRONMENT) == str(self.directory):
            os.environ.pop(ENVIRONMENT)
            os.environ.update({} if self._outer_session is None else {ENVIRONMENT: self._outer_session})
        if self.undelivered:
            end_session(self.directory)
            runs = " ".join(shlex.quote(str(run)) for run in sorted(set(self.undelivered.values())))
            log.error(
                "what was recorded and not delivered is left in %s: `stepscope recover %s` brings it back",
                self.directory,
                runs,
            )
            return
        for _ in range(3):  # a process that joins at this moment may put something there
            with contextlib.suppress(OSError):
                remove_session(self.directory)
            shutil.rmtree(self.directory, ignore_errors=True)


def ring_sizes(options: Options, budget: int) -> tuple[int, int]:
    """Slots of a ring, and how many rings may hold `budget` bytes together."""
    slots = 1 << (options.ring_slots - 1).bit_length()
    return slots, max(budget // (slots * EVENT_DTYPE.itemsize), 1)


def _warn_of_disk(directory: Path) -> None:
    kind = file_system_of(directory)
    if kind and kind not in IN_MEMORY:
        log.warning(
            "the session is in %s, which is on %s and not in memory: whenever that disk is slow, training may wait for it in "
            "a span or in step(). Set Options.session_dir to a directory on a tmpfs, such as an emptyDir of medium Memory, "
            "unless the disk is fast and outliving the container is worth that",
            directory,
            kind,
        )


_recorder: Recorder | None = None
_inherited: Path | None = None
_making = threading.Lock()


def recorder(options: Options) -> Recorder:
    """The process's recorder; the options of the first caller count."""
    global _recorder
    with _making:
        if _recorder is None:
            _recorder = Recorder(options)
        return _recorder


def current() -> Recorder | None:
    """The recorder that this process has, if it has one."""
    return _recorder


def inherited() -> Path | None:
    """In a forked child: the session of its parent, if that has one of its own."""
    return _inherited


def close_recorder() -> None:
    """Closes the process's recorder, if there is one. A later one cannot be opened."""
    if _recorder is not None:
        _recorder.close()


def _forget() -> None:
    """In a forked child: the parent's session is not ours. `_core` has let go of it already."""
    global _recorder, _making, _inherited
    _inherited = None if _recorder is None else _recorder.directory
    if _recorder is not None:
        _recorder.spool.close()
    _recorder = None
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forget)
