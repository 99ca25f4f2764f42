"""Joined processes: the owner of the session drains their rings."""

from __future__ import annotations

import errno
import logging
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError, SessionError
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EVENT_DTYPE, NO_STEP, Block, Kind, empty_block
from stepscope.runtime.files.private_files import is_missing
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.recording.recorder_statistics import WorkerAccounts, WorkerStatistics
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.session.directory import Identity, parts, read_identity

log = logging.getLogger("stepscope")

DRAIN_LIMIT = 1 << 18
"""Events per call of the native drain: a block of 16 MiB at most."""

POLL_S = 0.25
"""Longest time between two drains while there are joined processes, in seconds."""

CHECK_NS = 50_000_000
"""Nanoseconds between two checks whether a process still runs."""

MAX_LIVING = 1024
"""Limit of living joined processes. Further ones wait until others have ended."""

ENDED_PROCESS_FILES_NS = 5_000_000_000
"""Nanoseconds that the files of an ended process stay after its last drain: if this process is killed before a journal has the
events, recovery finds them there."""

READ_TIMEOUT_NS = 60_000_000_000
"""Nanoseconds after its end was seen that the events of a process wait for descriptors or memory to read them."""

_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_DROPPED = strings.intern("dropped")


def drain_rings(
    drain: Callable[[int, int], tuple[bytearray, bytes, bool]], until: int
) -> list[tuple[bytes | bytearray, bytes]]:
    """Calls a native drain until it has all events that began by `until`, in ns. Returns blocks with their arguments."""
    blocks: list[tuple[bytes | bytearray, bytes]] = []
    more = True
    while more:
        events, args, more = drain(DRAIN_LIMIT, until)
        if events:
            blocks.append((events, args))
    return blocks


class Worker:
    """One joined process, with its rings."""

    def __init__(self, directory: Path, identity: Identity) -> None:
        """Raises `FormatError` or `OSError` if the directory cannot be used."""
        self.directory = directory
        self.identity = identity
        self.seen_ns = 0
        """When it last was known to run."""
        self.running = self.joined = True
        self._attached_ns = _core.now()
        self._drained_ns = 0
        self._refused = self._lost = 0
        self._drained: list[tuple[bytes | bytearray, bytes]] = []
        self._files = SessionFiles(directory)
        self.rings = _core.Attached(str(directory))
        self._ids = IdMap()

    def check_state(self) -> None:
        """Checks from time to time whether it still runs, and is still joined."""
        now = _core.now()
        if now - self.seen_ns > CHECK_NS:
            # A process that leaves removes its directory. But a missing session may have been deleted by others.
            self.joined = not is_missing(self.directory / "process.json") or is_missing(self.directory.parent)
            self.running = self.identity.running
            self.seen_ns = now if self.running else self.seen_ns

    def drain(self, until: int) -> list[tuple[Block, bytes]]:
        """Drains from its rings what began by `until`, in ns. If the files with its names cannot be read now, the events wait."""
        if self._drained and self._waits_for_names():
            return []  # further events wait in the rings, which are bounded
        self._drained += drain_rings(self.rings.drain, until)
        self._count_refused()
        # A name is written to its file before its event. So after the drain, the file has all names.
        if not self._drained or self._waits_for_names():
            return []
        drained, self._drained = self._drained, []
        return [self._localised(events, args) for events, args in drained]

    def waits(self) -> bool:
        """After it has ended, whether to wait for events that cannot be read now, for lack of descriptors or memory."""
        rings = self.rings.statistics()
        try:
            unread = bool(self._drained) or rings["waiting"] > 0 or rings["rings"] < self._files.ring_count()
        except OSError:
            unread = True
        return unread and self._has_time()

    def _waits_for_names(self) -> bool:
        """Reads new names. Returns whether to wait until they can be read."""
        self._files.unread = False
        self._files.load_ids(self._ids)
        return self._files.unread and self._has_time()

    def _has_time(self) -> bool:
        """Whether events that cannot be read now may wait: it runs, or was seen or found a short time ago."""
        return self.running or _core.now() - max(self.seen_ns, self._attached_ns) < READ_TIMEOUT_NS

    def drop_waiting(self) -> list[tuple[Block, bytes]]:
        """Counts the remaining events of its rings as dropped, and returns a gap for them."""
        self._lost = self.rings.statistics()["waiting"]
        if not self._lost:
            return []
        return [self._localised(self._gap(self._lost), b"")]

    def open_spans(self, until: int) -> Block:
        """Spans that are open at the time `until`, cut there."""
        spans = self.rings.open_spans(until)
        self._files.load_ids(self._ids)
        return self._localised(spans, b"")[0]

    def open_at_end(self, until: int) -> Block:
        """Open spans of an ended process, cut at `until`, or at the begin of the last one if that is later."""
        begins = np.frombuffer(self.rings.open_spans(_core.now()), EVENT_DTYPE)["ts"]
        return self.open_spans(max([until, *begins.tolist()]))

    def statistics(self, state: str) -> WorkerStatistics:
        rings = self.rings.statistics()
        refused = self._refused
        rings["produced"] += refused
        rings["dropped"] += refused + self._lost
        rings["waiting"] -= self._lost
        name = self._files.process_name or f"process {self.identity.pid}"
        state = "broken" if rings["broken"] and state == "recording" else state
        return WorkerStatistics(pid=self.identity.pid, name=name, state=state, without_ring=refused, **rings)

    def close(self) -> None:
        self._files.close()

    def _count_refused(self) -> None:
        """Adds a gap for events, since the last drain, of threads without a ring."""
        count = _core.take_refused(self.identity.pid)
        if count:
            self._refused += count
            self._drained.append((self._gap(count), b""))
        self._drained_ns = _core.now()

    def _gap(self, count: int) -> bytes:
        """A gap for `count` events that were lost since the last drain."""
        now, before = _core.now(), self._drained_ns
        gap = empty_block(1)
        gap["ts"], gap["dur"] = before or now, now - before if before else 0
        gap["kind"], gap["id"], gap["name"], gap["step"] = Kind.GAP, count, _DROPPED, NO_STEP
        gap["track"] = self._files.process_track
        return gap.tobytes()

    def _localised(self, events: bytes | bytearray, args: bytes) -> tuple[Block, bytes]:
        """Converts events to ids of this process."""
        block: Block = np.frombuffer(bytearray(events), EVENT_DTYPE)
        heap = bytearray(args)
        gaps = block["kind"] == int(Kind.GAP)
        names = block["name"][gaps]
        self._ids.localise(block, heap)
        block["name"][gaps] = names  # gaps have names of this process
        block.flags.writeable = False
        return block, bytes(heap)


class Workers:
    """All joined processes. Used on the drain loop's thread; any thread may call `statistics`."""

    def __init__(self, session: Path, ring_bytes: int) -> None:
        """Args: directory of the session; limit of the rings of one process, in bytes."""
        self._session = session
        self._ring_bytes = ring_bytes
        self._living: dict[Path, Worker] = {}
        self._examined: set[Path] = set()
        self._accounts: list[WorkerAccounts] = []
        self._to_remove: deque[tuple[int, Path]] = deque()
        self._joins = 0
        self._most = 0
        self._failure: OSError | None = None

    def interval(self) -> tuple[float, ...]:
        """Longest time to the next drain, in seconds; empty without joined processes.

        A joined process cannot wake this one, so it is drained more often while it records much.
        """
        if not self._living:
            return () if self._failure is None else (POLL_S,)
        return (POLL_S / 16 if self._most > self._ring_bytes / 8 else POLL_S,)

    def are_watched(self) -> bool:
        """Whether somebody must look from time to time, even while nothing is recorded: at processes that may end, or at files of
        ended ones."""
        return bool(self._living or self._to_remove or self._failure is not None)

    def check_states(self) -> None:
        """Finds new joined processes, and those that have ended. A drain until a later time has all events of the latter."""
        self._attach()
        for worker in self._living.values():
            worker.check_state()

    def drain(self, until: int) -> list[tuple[Block, bytes]]:
        """Drains the rings of all joined processes, as `_core.drain` does, and adds open spans of ended ones.

        An error, such as a lack of descriptors, affects one process only; `check` raises it.
        """
        self._most = 0
        blocks: list[tuple[Block, bytes]] = []
        for worker in list(self._living.values()):
            drained = worker.drain(until)
            self._most = max(self._most, sum(events.nbytes + len(args) for events, args in drained))
            blocks += drained
            if not worker.running:
                blocks += [] if worker.waits() else self._end(worker, drained)
            elif not worker.joined:
                self._remove(worker, "left")
        while self._to_remove and self._to_remove[0][0] < _core.now():
            shutil.rmtree(self._to_remove.popleft()[1], ignore_errors=True)
        return blocks

    def joined(self) -> bool:
        """Whether there are joined processes that are not known to have ended."""
        self._attach()
        return bool(self._living)

    def any_running(self) -> bool:
        """Whether a joined process runs, drained or not."""
        try:
            found = parts(self._session)
        except OSError:
            return True
        for directory in found:
            try:
                if read_identity(directory).running:
                    return True
            except SessionError:  # it has ended, and removed its directory
                continue
        return False

    def check(self) -> None:
        """Raises:
        OSError: if the last drain could not find joined processes. The next one tries again.
        """
        if self._failure is not None:
            raise self._failure

    def open_spans(self) -> list[Block]:
        """Open spans of living processes, cut at the current time."""
        now = _core.now()
        return [worker.open_spans(now) for worker in self._living.values()]

    def statistics(self, accounts: WorkerAccounts) -> tuple[WorkerStatistics, ...]:
        """Accounts of each process since `open_accounts` returned them, ended ones first."""
        return accounts.statistics(self._recording())

    def open_accounts(self) -> WorkerAccounts:
        accounts = WorkerAccounts(self._recording())
        self._accounts.append(accounts)
        return accounts

    def close_accounts(self, accounts: WorkerAccounts) -> None:
        """Closes accounts. They do not change any more."""
        self._accounts.remove(accounts)

    def mark(self) -> None:
        """Marks how far their rings were drained."""
        for worker in self._living.values():
            worker.rings.mark()

    def release(self) -> None:
        """Frees the slots of their rings up to the marks."""
        for worker in self._living.values():
            worker.rings.release()

    def close(self) -> None:
        for worker in list(self._living.values()):
            self._remove(worker, "ended")

    def _attach(self) -> None:
        joins, self._failure = _core.joins(), None
        if joins == self._joins or len(self._living) >= MAX_LIVING:
            return
        try:
            found = parts(self._session)
            self._examined.intersection_update(found)  # names of removed directories are not reused
            for directory in found:
                if directory not in self._examined:
                    if len(self._living) >= MAX_LIVING:
                        return  # the next call continues
                    self._attach_process(directory)
        except OSError as error:
            self._failure = error
        else:
            self._joins = joins

    def _attach_process(self, directory: Path) -> None:
        """Raises `OSError` if descriptors or memory are short now."""
        try:
            self._living[directory] = Worker(directory, read_identity(directory))
        except (SessionError, FormatError, OSError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if isinstance(cause, OSError) and cause.errno in _SHORTAGE:
                raise cause from None
            if not is_missing(directory):
                log.warning("a process that joined cannot be followed: %s", error)
        self._examined.add(directory)

    def _end(self, worker: Worker, last: list[tuple[Block, bytes]]) -> list[tuple[Block, bytes]]:
        """Removes an ended process, and returns its open spans and a gap for lost events.

        A span may have ended and still be on the stack, if the process died between the record and the pop.
        """
        ended = [events for events, _ in last]
        latest = max([worker.seen_ns, *(int((events["ts"] + events["dur"]).max()) for events in ended)])
        spans = worker.open_at_end(latest)
        for events in ended:
            spans = spans[~np.isin(spans["id"], events["id"])]
        gap = worker.drop_waiting()
        if gap:
            log.warning(
                "what process %d recorded last could not be read for want of descriptors or memory", worker.identity.pid
            )
        self._to_remove.append((_core.now() + ENDED_PROCESS_FILES_NS, worker.directory))
        self._remove(worker, "ended")
        return gap + ([(spans, b"")] if len(spans) else [])

    def _recording(self) -> dict[Path, WorkerStatistics]:
        return {worker.directory: worker.statistics("recording") for worker in list(self._living.values())}

    def _remove(self, worker: Worker, state: str) -> None:
        last = worker.statistics(state)
        for accounts in self._accounts:
            accounts.end(worker.directory, last)
        del self._living[worker.directory]
        worker.close()
