"""The recorder: session directory, rings, and the switch of recording, which all profilers share."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable
from functools import partial
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
from stepscope.runtime.memory_limits import MemoryLimits, memory_limits
from stepscope.runtime.options import Options
from stepscope.runtime.recording.joined_processes import Workers, drain_rings
from stepscope.runtime.recording.late_release import LateRelease
from stepscope.runtime.recording.recorder_statistics import RecorderStatistics
from stepscope.runtime.recovery.sweep import TIME_LIMIT_S, sweep
from stepscope.runtime.schedule.detail import EVERYTHING
from stepscope.runtime.session.directory import (
    ENVIRONMENT,
    end_session,
    make_session,
    release_session,
    remove_session,
)
from stepscope.runtime.session.system import IN_MEMORY, file_system_of
from stepscope.runtime.threads import greenlets
from stepscope.runtime.threads.native_threads import Lock

log = logging.getLogger("stepscope")

CHECK_S = 0.01
"""Seconds between two checks of the session directory: more than `sys.getswitchinterval()`, after which another thread gets the
interpreter's lock."""


OF_RINGS = ("memory_bytes", "ring_slots", "ring_bytes", "worker_ring_bytes", "overflow", "block_seconds", "session_dir")
"""Options of rings and session, which only the first profiler of a process decides. Rings have a share of `memory_bytes`."""


class Recorder:
    """Records the events of this process. The first profiler creates it; it is closed when Python exits.

    Its session directory exists while a profiler is open, and until all recorded events are delivered. So a process that has
    closed its profilers has no directory, even if it is killed. The next profiler creates it again, with the same path if that is
    free.
    """

    def __init__(self, options: Options, limits: MemoryLimits, last: Path | None = None) -> None:
        """Creates the session directory, `last` in the last place, and opens the native recorder in it. Raises `OutputError`
        if it cannot be created."""
        self._limits, self._last = limits, last
        self._options = msgspec.structs.replace(
            options, ring_bytes=limits.ring_bytes, worker_ring_bytes=limits.worker_ring_bytes
        )
        self._slots, self._rings = ring_sizes(options, limits.ring_bytes)
        self._overwrites = options.overflow == "drop_oldest"
        self.undelivered: dict[object, Path | None] = {}
        """Directories of runs with undelivered events, by the user of `recorder`; `None`: the run has no directory, so that its
        events cannot be recovered."""
        self._checked_at, self._was_removed = -CHECK_S, False
        self.on_disk = False
        """Whether the session directory exists."""
        self._make_directory(self._open)
        _warn_of_disk(self.directory)

    def _open(self, directory: Path) -> None:
        options = self._options
        self.wake_fd = _core.open(str(directory), self._slots, self._rings, options.overflow, options.block_seconds)

    def _open_again(self, directory: Path) -> None:
        _core.set_at_risk(0)  # earlier events were delivered
        _core.make_files(str(directory))

    def _make_directory(self, open_there: Callable[[Path], None], again: Path | None = None) -> None:
        options = self._options
        reserve_standard_descriptors()

        # Once in a process, unless room is short: the next ones that start look at further sessions.
        prepare = partial(sweep, seconds=TIME_LIMIT_S if again is None else 0.0)
        self.directory = make_session(options, prepare, open_there, self._last, again)
        self._was_removed = False
        self.workers = Workers(self.directory, self._limits.worker_ring_bytes)
        self.late_release = LateRelease(self.workers, self._crowded)
        self._outer_session = os.environ.get(ENVIRONMENT)
        os.environ[ENVIRONMENT] = str(self.directory)
        self.on_disk = True

    def ensure_directory(self, options: Options) -> None:
        """Creates the session directory if it does not exist, for a profiler that starts, where its options say. Raises
        `OutputError` if it cannot be created."""
        if not self.on_disk:
            self._options = msgspec.structs.replace(self._options, session_dir=options.session_dir)
            self._make_directory(self._open_again, self.directory)

    def delivered(self, user: object) -> None:
        """All events of a run are delivered. When this holds for all runs, the session directory is removed. If joined processes
        still run, it stays for them until this process ends."""
        with _making:
            self.undelivered.pop(user, None)
            if self.undelivered or not self.on_disk or _recorder is not self:
                return
            joins = _core.joins()
            if self.workers.any_running() or not _core.detach_files(joins):  # false if a process joined since
                return
            self._detach()
            self._remove_directory()

    def _detach(self) -> None:
        self.on_disk = False
        self.workers.close()
        if os.environ.get(ENVIRONMENT) == str(self.directory):
            os.environ.pop(ENVIRONMENT)
            os.environ.update({} if self._outer_session is None else {ENVIRONMENT: self._outer_session})

    def _remove_directory(self) -> None:
        for last in (False, False, True):  # a process that joins or leaves now changes the files there
            try:
                remove_session(self.directory)
                break
            except OSError as error:
                if is_missing(self.directory):
                    break
                if last:
                    log.warning(
                        "the session directory %s stays: %s; delete it when this process has ended",
                        *(self.directory, error.strerror or error),
                    )
        release_session(self.directory)

    def want(self, profiler: int, on: bool, what: int = EVERYTHING, *, waits: bool = False) -> None:
        """Switches recording for one profiler, by its number. Events that any profiler wants are recorded.

        Args:
            what: the kinds that it wants, `EVENTS` and `OPERATORS`. Others count as filtered out.
            waits: if it wants none now, whether it may want later those spans that are still open then.
        """
        if on:
            _core.want(profiler, EVERYTHING, what)
        else:
            _core.want(profiler, *((_core.RECORD_OPEN,) * 2 if waits else (0, 0)))

    def without_effect(self, options: Options) -> str:
        """Text on options of a later profiler that have no effect on rings and session; empty if there are none."""
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

    def drain(self) -> tuple[int, list[tuple[Block, bytes]]]:
        """Drains all rings, including those of joined processes. Returns a time such that all events that ended before it are
        drained, and none that began later; and blocks with their heaps of arguments."""
        _core.clear_wake()  # `wake_fd` is unreadable, until a ring requests a drain again
        self.workers.check_states()
        until = _core.now()
        blocks = [(np.frombuffer(events, EVENT_DTYPE), args) for events, args in drain_rings(_core.drain, until)]
        return until, blocks + self.workers.drain(until)

    def needs_drain(self) -> bool:
        """Whether rings must be drained even if the queues are not empty: an eighth of their capacity waits, or half of a ring if a
        thread cannot get a second one."""
        rings = _core.ring_statistics()
        single = self._overwrites or rings["rings"] >= self._rings
        return rings["waiting"] > (self._slots // 2 if single else self._slots * self._rings // 8)

    def _crowded(self) -> bool:
        """Whether three quarters of the slots are drained and not free. If rings overwrite the oldest events, threads do not wait
        for free slots."""
        unreleased = _core.unreleased()
        if self._overwrites or unreleased <= self._slots * 3 // 4:
            return False
        single = _core.ring_statistics()["rings"] >= self._rings
        return single or unreleased > self._slots * self._rings * 3 // 4

    def release_wanted(self) -> bool:
        """Whether slots are due, and so many that they are freed at once. Fewer can wait for the next drain. Any thread may call."""
        due = self.late_release.due()
        return due and (_core.unreleased() > self._slots // 4 or bool(self.workers.interval()))

    def open_spans(self) -> Block:
        """Open spans of all processes of the session, cut at the current time."""
        return join_blocks([np.frombuffer(_core.open_spans(), EVENT_DTYPE), *self.workers.open_spans()])

    def statistics(self) -> RecorderStatistics:
        """Accounts of all events of this process so far; `RecorderAccounts` has those of one profiler, with joined processes."""
        rings: dict[str, Any] = _core.ring_statistics()
        return RecorderStatistics(
            recording=bool(_core.recording()),
            cut=_core.counts(),
            workers=(),
            removed=self._removed(),
            unwatched=asyncio_tasks.unwatched.copy(),
            greenlets=greenlets.recorded,
            **rings,
        )

    def _removed(self) -> bool:
        # The check releases the interpreter's lock for a moment. A caller that polls all the time would starve the drain loop.
        now = time.monotonic()
        if now - self._checked_at >= CHECK_S:
            # Once it was removed, another directory of this name does not count.
            self._checked_at = now
            self._was_removed = self._was_removed or (self.on_disk and is_missing(self.directory))
        return self._was_removed

    def close(self) -> None:
        """Stops recording for ever, here and in joined processes, and removes the session directory.

        If a run is not delivered, the directory stays, and its path is logged.
        """
        _core.close()
        if not self.on_disk:
            return
        self._detach()
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


class RecorderAccounts:
    """Accounts of the recorder while one profiler is open. Other profilers may have used it before."""

    def __init__(self, recorder: Recorder) -> None:
        """Must be called on the drain loop, so that the counts are exact."""
        self._recorder = recorder
        self._before = recorder.statistics()
        self._workers = recorder.workers.open_accounts()
        self._last: RecorderStatistics | None = None

    def statistics(self) -> RecorderStatistics:
        """Accounts so far; of a closed profiler, those of its end. Any thread may call."""
        if self._last is not None:
            return self._last
        workers = self._recorder.workers.statistics(self._workers)
        return self._recorder.statistics().since(self._before, workers)

    def close(self) -> None:
        """Freezes the accounts. Must be called on the drain loop."""
        self._last = self.statistics()
        self._recorder.workers.close_accounts(self._workers)


def ring_sizes(options: Options, budget: int) -> tuple[int, int]:
    """Slots of a ring, and the number of rings that fit `budget` bytes."""
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


def recorder(
    options: Options,
    user: object = None,
    run: Path | None = None,
    last: Path | None = None,
    limits: MemoryLimits | None = None,
) -> Recorder:
    """Returns the recorder of the process, with a session directory.

    Args:
        options: as also `last` and `limits`, those of the first call count.
        user: identifies the caller for `Recorder.delivered`.
        run: directory of its run.
        last: the last place to try for the session directory.
        limits: of the rings. Default: for one exporter.

    Raises:
        OutputError: if no session directory can be created.
        ProfilerStateError: if the interpreter exits, and the recorder is closed.
    """
    global _recorder
    with _making:
        if _closed:
            raise ProfilerStateError("nothing can be recorded any more: the interpreter exits")
        if _recorder is None:
            _recorder = Recorder(options, limits or memory_limits(options, 1), last)
        else:
            _recorder.ensure_directory(options)
        if user is not None:
            _recorder.undelivered[user] = run
        return _recorder


def current() -> Recorder | None:
    """The recorder of this process, if any."""
    return _recorder


def inherited() -> Path | None:
    """In a forked child: the session of its parent, if it owns one."""
    return _inherited


def closed_for_good() -> bool:
    """Whether the interpreter exits, so that nothing can be recorded any more."""
    return _closed


def scratch_directory() -> Path | None:
    """Directory for large temporary files: that of the system, or else the parent of the session. `None` if there is neither."""
    temporary = temporary_directory()
    return temporary if temporary is not None or _recorder is None else _recorder.directory.parent


def close_recorder() -> None:
    """Closes the recorder of the process, if any. No other one can be opened."""
    global _closed
    _closed = True
    if _recorder is not None:
        _recorder.close()


def _forked() -> None:
    """The session belongs to the parent. `_core` has detached already."""
    global _recorder, _making, _inherited, _closed
    _inherited = _recorder.directory if _recorder is not None and _recorder.on_disk else None
    _recorder, _closed = None, False
    _making = Lock()


os.register_at_fork(after_in_child=_forked)
