"""The recorder: session directory, rings, and the one switch that all profilers share."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.annotations import asyncio_tasks
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.events.record import EVENT_DTYPE, Block, join_blocks
from stepscope.runtime.files.descriptors import reserve_standard_descriptors
from stepscope.runtime.files.paths import temporary_directory
from stepscope.runtime.files.private_files import is_missing
from stepscope.runtime.options import Options
from stepscope.runtime.recording.joined_processes import Workers
from stepscope.runtime.recording.late_release import LateRelease
from stepscope.runtime.recording.recorder_statistics import RecorderStatistics
from stepscope.runtime.recovery.sweep import sweep_in_background
from stepscope.runtime.schedule.detail import EVERYTHING
from stepscope.runtime.session.directory import (
    ENVIRONMENT,
    end_session,
    make_session,
    mark_delivered,
    release_session,
    remove_session,
    unmark_delivered,
)
from stepscope.runtime.session.system import IN_MEMORY, file_system_of
from stepscope.runtime.threads import greenlets
from stepscope.runtime.threads.native_threads import Lock

log = logging.getLogger("stepscope")

LOOK_EVERY = 0.01
"""Seconds between two looks for the session directory: more than `sys.getswitchinterval()`, after which a thread that wants
the interpreter gets it from one that does not let go of it."""

DRAIN_LIMIT = 1 << 18
"""Events taken at a time: a block of 16 MiB at most."""


OF_RINGS = ("ring_slots", "ring_bytes", "worker_ring_bytes", "overflow", "block_seconds", "session_dir")
"""Options that the first profiler of a process decides on, as far as rings and the session are concerned."""


class Recorder:
    """Records the events of this process. One per process, made by the first profiler, closed when Python exits.

    Its session directory is there while a profiler is open, and until all that was recorded is delivered. So a process that has
    closed its profilers leaves nothing behind, however it ends. The next profiler makes it again, under the same name where that
    is free and in the same place.
    """

    def __init__(self, options: Options, last: Path | None = None) -> None:
        """Makes the session directory and opens the native recorder in it.

        Args:
            options: sizes, and where the directory is to be.
            last: where it is made if it cannot be elsewhere.

        Raises:
            OutputError: if no directory for the session can be made.
        """
        self._options, self._last = options, last
        self.late_release: LateRelease
        self._slots, self._rings = ring_sizes(options, options.ring_bytes)
        self._keeps_ring = options.overflow == "drop_oldest"
        self.undelivered: dict[object, Path | None] = {}
        """Directories of the runs of which it may hold something that nobody has yet, by whom `recorder` was called for; `None`:
        the run has none, and what it holds can be recovered by nobody."""
        self._looked, self._gone = -LOOK_EVERY, False
        self.on_disk = False
        """Whether it has a session directory now."""
        self._make_directory(self._open)
        _warn_of_disk(self.directory)

    def _open(self, directory: Path) -> None:
        options = self._options
        self.wake_fd = _core.open(str(directory), self._slots, self._rings, options.overflow, options.block_seconds)

    def _open_again(self, directory: Path) -> None:
        _core.set_at_risk(0)  # what came before was delivered
        _core.make_files(str(directory))

    def _make_directory(self, open_there: Callable[[Path], None], again: Path | None = None) -> None:
        options = self._options
        reserve_standard_descriptors()

        self.directory = make_session(options, sweep_in_background, open_there, self._last, again)
        self._gone = False
        self.workers = Workers(self.directory, options.worker_ring_bytes)
        self.late_release = LateRelease(self.workers, self._crowded)
        self._outer_session = os.environ.get(ENVIRONMENT)
        os.environ[ENVIRONMENT] = str(self.directory)
        self.on_disk = True

    def go_on(self, options: Options) -> None:
        """Makes a session directory, if there is none, for a profiler that starts. Nothing is recorded meanwhile.

        Args:
            options: of that profiler; they say where the directory is to be.

        Raises:
            OutputError: if none can be made.
        """
        if self.on_disk:
            unmark_delivered(self.directory)
        else:
            self._options = msgspec.structs.replace(self._options, session_dir=options.session_dir)
            self._make_directory(self._open_again, self.directory)

    def delivered(self, user: object) -> None:
        """Everything of a run is delivered: when that is so of all, the session directory is removed. If processes that have
        joined still run, it stays for them; a mark says then that nobody needs it once this process has ended."""
        with _making:
            self.undelivered.pop(user, None)
            if self.undelivered or not self.on_disk or _recorder is not self:
                return
            joins = _core.joins()
            if self.workers.any_running() or not _core.detach_files(joins):  # the latter: one has joined since
                mark_delivered(self.directory)
                return
            self._let_go()
            self._remove_directory()

    def _let_go(self) -> None:
        self.on_disk = False
        self.workers.close()
        if os.environ.get(ENVIRONMENT) == str(self.directory):
            os.environ.pop(ENVIRONMENT)
            os.environ.update({} if self._outer_session is None else {ENVIRONMENT: self._outer_session})

    def _remove_directory(self) -> None:
        for last in (False, False, True):  # a process that joins at this moment may put something there
            try:
                remove_session(self.directory)
            except OSError as error:
                if is_missing(self.directory):
                    break
                # A process that leaves at this moment removes its own files: the rest of the session is still there.
                if last:
                    log.warning(
                        "the session directory %s stays: %s; delete it when this process has ended",
                        *(self.directory, error.strerror or error),
                    )
            else:
                break
        release_session(self.directory)

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

    def without_effect(self, options: Options) -> str:
        """A sentence on what the options of a later profiler ask of rings in vain; empty if there is nothing."""
        default = Options()
        values = [(name, getattr(options, name), getattr(self._options, name)) for name in OF_RINGS]
        different = [
            f"Options.{name}={value!r} (it is {used!r})"
            for name, value, used in values
            if value not in (used, getattr(default, name))
        ]
        if not different:
            return ""
        return (
            f"without effect on rings and session: {', '.join(different)}; the first profiler of a process decides on them: give "
            "it these options, in a new process if it was made already"
        )

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
        return until, blocks + self.workers.drain()

    def pressing(self) -> bool:
        """Whether rings are to be drained although nobody takes it yet: an eighth of what they may hold waits, or half of
        one where a thread that fills its ring has no other."""
        rings = _core.ring_statistics()
        alone = self._keeps_ring or rings["rings"] >= self._rings
        return rings["waiting"] > (self._slots // 2 if alone else self._slots * self._rings // 8)

    def _crowded(self) -> bool:
        """Whether three quarters of the rings were drained and are not free. Where the oldest is overwritten, nobody waits for
        room."""
        unreleased = _core.unreleased()
        if self._keeps_ring or unreleased <= self._slots * 3 // 4:
            return False
        alone = _core.ring_statistics()["rings"] >= self._rings
        return alone or unreleased > self._slots * self._rings * 3 // 4

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
            greenlets=greenlets.recorded,
            **rings,
        )

    def _removed(self) -> bool:
        # Asking lets go of the interpreter for a moment: whoever asks all the time would keep the drain loop from ever getting it.
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY:
            # One that was removed does not count as there again, whoever makes another of its name.
            self._looked, self._gone = now, self._gone or (self.on_disk and is_missing(self.directory))
        return self._gone

    def close(self) -> None:
        """Stops recording for good, here and in processes that joined, and removes the session directory.

        It stays, and a line of the log says where, while a run is not delivered.
        """
        _core.close()
        if not self.on_disk:
            return
        self._let_go()
        undelivered = {run for run in self.undelivered.values() if run is not None}
        if undelivered:
            end_session(self.directory)
            runs = " ".join(shlex.quote(str(run)) for run in sorted(undelivered))
            log.error(
                "what was recorded and not delivered is left in %s: `stepscope recover %s` brings it back",
                self.directory,
                runs,
            )
            return
        self._remove_directory()


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
_closed = False
_making = Lock()


def recorder(options: Options, user: object = None, run: Path | None = None, last: Path | None = None) -> Recorder:
    """The process's recorder, with a session directory; the options of the first caller count.

    Args:
        options: for the first call.
        user: who records from now on, until `Recorder.delivered`.
        run: directory of its run.
        last: where the session directory is made if it cannot be elsewhere; for the first call.

    Raises:
        OutputError: if no directory for the session can be made.
        ProfilerStateError: if the interpreter exits, and has closed the recorder.
    """
    global _recorder
    with _making:
        if _closed:
            raise ProfilerStateError("nothing can be recorded any more: the interpreter exits")
        if _recorder is None:
            _recorder = Recorder(options, last)
        else:
            _recorder.go_on(options)
        if user is not None:
            _recorder.undelivered[user] = run
        return _recorder


def current() -> Recorder | None:
    """The recorder that this process has, if it has one."""
    return _recorder


def inherited() -> Path | None:
    """In a forked child: the session of its parent, if that has one of its own."""
    return _inherited


def closed_for_good() -> bool:
    """Whether the process is ending, so that nothing can be recorded any more."""
    return _closed


def scratch_directory() -> Path | None:
    """Where a large file may be for a moment: the system's place for temporary files; where none can be written, beside the
    session. `None` if there is neither."""
    temporary = temporary_directory()
    return temporary if temporary is not None or _recorder is None else _recorder.directory.parent


def close_recorder() -> None:
    """Closes the process's recorder, if there is one. A later one cannot be opened."""
    global _closed
    _closed = True
    if _recorder is not None:
        _recorder.close()


def _forget() -> None:
    """In a forked child: the parent's session is not ours. `_core` has let go of it already."""
    global _recorder, _making, _inherited, _closed
    _inherited = _recorder.directory if _recorder is not None and _recorder.on_disk else None
    _recorder, _closed = None, False
    _making = Lock()


os.register_at_fork(after_in_child=_forget)
