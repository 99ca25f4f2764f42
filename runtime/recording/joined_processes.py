"""Processes that joined the session, as seen by the process that drains their rings."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections import deque
from pathlib import Path

import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError, SessionError
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EVENT_DTYPE, NO_STEP, Block, Kind, empty_block
from stepscope.runtime.files.private_files import is_missing
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.recording.joined_accounts import WorkerAccounts, WorkerStatistics
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.session.directory import Identity, parts, read_identity

log = logging.getLogger("stepscope")

DRAIN_LIMIT = 1 << 18
"""Events taken at a time."""

LOOK = 0.25
"""Seconds between two drains while processes have joined, at most."""

LOOK_AGAIN = 50_000_000
"""Nanoseconds between two looks whether a process still runs."""

LIVING = 1024
"""Processes whose rings are drained at the same time; further ones wait until others have ended."""

GRACE = 5_000_000_000
"""Nanoseconds that the files of a process outlast its last drain: if this process is killed before a journal has what
was drained, recovery finds it there."""

PATIENCE = 60_000_000_000
"""Nanoseconds that what a process left waits for descriptors or memory to read it."""

_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_DROPPED = strings.intern("dropped")


class Worker:
    """One process that joined: its rings, in this process's ids."""

    def __init__(self, directory: Path, identity: Identity) -> None:
        """Raises `FormatError` or `OSError` if the directory cannot be used."""
        self.directory = directory
        self.identity = identity
        self.seen_ns = 0
        """When it was known to run, the last time."""
        self.running = self.taking_part = True
        self._drained_ns = 0
        self._refused = self._lost = 0
        self._denied = ""
        self._taken: list[tuple[bytes, bytes]] = []
        self._unnamed_since = 0
        self._files = SessionFiles(directory)
        self._rings = _core.Attached(str(directory))
        self._ids = IdMap()

    def look(self) -> None:
        """Looks whether it still runs, and takes part; drains may be frequent, so not every time."""
        now = _core.now()
        if now - self.seen_ns > LOOK_AGAIN:
            # One that leaves removes its directory; that of the session somebody else may have removed.
            self.taking_part = not is_missing(self.directory / "process.json") or is_missing(self.directory.parent)
            self.running = self.identity.running
            self.seen_ns = now if self.running else self.seen_ns

    def drain(self) -> list[tuple[Block, bytes]]:
        """Takes what its rings hold; what it is called comes from a file, for which it waits if that cannot be read now."""
        more = True
        while more:
            events, args, more = self._rings.drain(DRAIN_LIMIT)
            if events:
                self._taken.append((events, args))
        self._taken += self._without_ring()
        if not self._taken:
            return []
        # A name is in its file before it is in a ring; so read after the ring, the file has them all.
        self._files.unread = False
        self._files.load_ids(self._ids)
        now = _core.now()
        if self._files.unread and now - (self._unnamed_since or now) < PATIENCE:
            self._unnamed_since = self._unnamed_since or now
            return []
        self._unnamed_since = 0
        taken, self._taken = self._taken, []
        return [self._localised(events, args) for events, args in taken]

    def mark(self) -> None:
        """Notes how far its rings were drained."""
        self._rings.mark()

    def release(self) -> None:
        """Frees the slots of its rings up to there."""
        self._rings.release()

    def held_up(self) -> bool:
        """Whether a drain left something, because descriptors or memory had run out, once it records no more."""
        rings = self._rings.statistics()
        try:
            return bool(self._taken) or rings["waiting"] > 0 or rings["rings"] < self._files.ring_count()
        except OSError:
            return True

    def give_up(self) -> list[tuple[Block, bytes]]:
        """A gap for what cannot be taken from its rings, which counts as dropped from now on."""
        self._lost = self._rings.statistics()["waiting"]
        if not self._lost:
            return []
        return [self._localised(self._gap(self._lost), b"")]

    def open_spans(self, until: int) -> Block:
        """Spans that have begun by `until` and not ended, with `dur` up to then."""
        spans = self._rings.open_spans(until)
        self._files.load_ids(self._ids)
        return self._localised(spans, b"")[0]

    def left_open(self, until: int) -> Block:
        """Those of one that has ended, with `dur` up to `until`, or to when the last of them began if that was later."""
        begins = np.frombuffer(self._rings.open_spans(_core.now()), EVENT_DTYPE)["ts"]
        return self.open_spans(max([until, *begins.tolist()]))

    def statistics(self, state: str) -> WorkerStatistics:
        """Accounts so far."""
        rings = self._rings.statistics()
        refused = self._refused
        rings["produced"] += refused
        rings["dropped"] += refused + self._lost
        rings["waiting"] -= self._lost
        name = self._files.process_name or f"process {self.identity.pid}"
        state = "broken" if rings["broken"] and state == "recording" else state
        return WorkerStatistics(
            pid=self.identity.pid, name=name, state=state, without_ring=refused, denied=self._denied, **rings
        )

    def close(self) -> None:
        """Lets go of its files."""
        self._files.close()

    def _without_ring(self) -> list[tuple[bytes, bytes]]:
        """A gap for what threads recorded since the last drain that could have no ring."""
        count = _core.take_refused(self.identity.pid)
        self._refused += count
        if count:
            self._denied = _reason(_core.denied(self.identity.pid))
        gap = [(self._gap(count), b"")] if count else []
        self._drained_ns = _core.now()
        return gap

    def _gap(self, count: int) -> bytes:
        """So many events of its own, lost since the last drain."""
        now, before = _core.now(), self._drained_ns
        gap = empty_block(1)
        gap["ts"], gap["dur"] = before or now, now - before if before else 0
        gap["kind"], gap["id"], gap["name"], gap["step"] = Kind.GAP, count, _DROPPED, NO_STEP
        gap["track"] = self._files.process_track
        return gap.tobytes()

    def _localised(self, events: bytes, args: bytes) -> tuple[Block, bytes]:
        """In this process's ids, as far as they were loaded."""
        block: Block = np.frombuffer(bytearray(events), EVENT_DTYPE)
        heap = bytearray(args)
        gaps = block["kind"] == int(Kind.GAP)
        names = block["name"][gaps]
        self._ids.localise(block, heap)
        block["name"][gaps] = names  # gaps are made here
        block.flags.writeable = False
        return block, bytes(heap)


def _reason(error: int) -> str:
    """Why a process that joined could have no file for a ring."""
    if error in (errno.EACCES, errno.EPERM):
        return "it changed its user after it had joined, and cannot write to the session any more"
    return os.strerror(error) if error else ""


class Workers:
    """All of them. Used by the drain loop's thread; `statistics` from any."""

    def __init__(self, session: Path, ring_bytes: int) -> None:
        """Args: directory of the session; what the rings of one process may hold, in bytes."""
        self._session = session
        self._ring_bytes = ring_bytes
        self._living: dict[Path, Worker] = {}
        self._known: set[Path] = set()
        self._all = WorkerAccounts({})
        self._accounts = [self._all]
        self._leaving: deque[tuple[int, Path]] = deque()
        self._joins = 0
        self._most = 0
        self._held_up: dict[Path, int] = {}
        self._failure: OSError | None = None

    def interval(self) -> tuple[float, ...]:
        """Longest time to the next drain, in seconds; empty while nobody has joined.

        A process that joined cannot wake this one, so one that records much is looked after more often.
        """
        if not self._living:
            return () if self._failure is None else (LOOK,)
        return (LOOK / 16 if self._most > self._ring_bytes / 8 else LOOK,)

    def drain(self) -> list[tuple[Block, bytes]]:
        """Takes what the rings of all of them hold, and spans that were open in one that has ended.

        What cannot be read, as where no descriptor is left, does not keep back the rest; `check` says what it was.
        """
        self._attach()
        self._most = 0
        blocks: list[tuple[Block, bytes]] = []
        for worker in list(self._living.values()):
            worker.look()  # before the drain, which so has what it recorded before its end
            taken = worker.drain()
            self._most = max(self._most, sum(events.nbytes + len(args) for events, args in taken))
            blocks += taken
            if not worker.running:
                blocks += [] if self._waits_for(worker) else self._end(worker, taken)
            elif not worker.taking_part:
                self._forget(worker, "left")
        while self._leaving and self._leaving[0][0] < _core.now():
            shutil.rmtree(self._leaving.popleft()[1], ignore_errors=True)
        return blocks

    def joined(self) -> bool:
        """Whether a process has joined, and lives as far as is known."""
        self._attach()
        return bool(self._living)

    def any_running(self) -> bool:
        """Whether a process that has joined runs, drained or not."""
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
        OSError: what kept the last drain from finding processes that have joined; the next one tries again.
        """
        if self._failure is not None:
            raise self._failure

    def open_spans(self) -> list[Block]:
        """Spans that are open in processes that live, with `dur` up to now."""
        now = _core.now()
        return [worker.open_spans(now) for worker in self._living.values()]

    def statistics(self, accounts: WorkerAccounts | None = None) -> tuple[WorkerStatistics, ...]:
        """Accounts of each, those that have ended first; `accounts` of `open_accounts` give them from then on."""
        return (self._all if accounts is None else accounts).statistics(self._recording())

    def open_accounts(self) -> WorkerAccounts:
        """Accounts that begin now."""
        accounts = WorkerAccounts(self._recording())
        self._accounts.append(accounts)
        return accounts

    def close_accounts(self, accounts: WorkerAccounts) -> None:
        """Nothing is told to these accounts any more."""
        self._accounts.remove(accounts)

    def mark(self) -> None:
        """Notes how far their rings were drained."""
        for worker in self._living.values():
            worker.mark()

    def release(self) -> None:
        """Frees the slots of their rings up to there."""
        for worker in self._living.values():
            worker.release()

    def close(self) -> None:
        """Lets go of all."""
        for worker in list(self._living.values()):
            self._forget(worker, "ended")

    def _attach(self) -> None:
        joins, self._failure = _core.joins(), None
        if joins == self._joins or len(self._living) >= LIVING:
            return
        try:
            found = parts(self._session)
            self._known.intersection_update(found)  # nobody gets the name of one that is gone
            for directory in found:
                if directory not in self._known:
                    if len(self._living) >= LIVING:
                        return  # to look again
                    self._follow(directory)
        except OSError as error:
            self._failure = error
        else:
            self._joins = joins

    def _follow(self, directory: Path) -> None:
        """Raises `OSError` if there are not enough descriptors or memory for it now."""
        try:
            self._living[directory] = Worker(directory, read_identity(directory))
        except (SessionError, FormatError, OSError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if isinstance(cause, OSError) and cause.errno in _SHORTAGE:
                raise cause from None
            if not is_missing(directory):
                log.warning("a process that joined cannot be followed: %s", error)
        self._known.add(directory)

    def _waits_for(self, worker: Worker) -> bool:
        """Whether something of one that has ended cannot be read yet, for a time."""
        now = _core.now()
        return worker.held_up() and now - self._held_up.setdefault(worker.directory, now) < PATIENCE

    def _end(self, worker: Worker, last: list[tuple[Block, bytes]]) -> list[tuple[Block, bytes]]:
        """What it left open. A span that has ended is on the stack still if the process died between its record and
        the pop."""
        ended = [events for events, _ in last]
        latest = max([worker.seen_ns, *(int((events["ts"] + events["dur"]).max()) for events in ended)])
        spans = worker.left_open(latest)
        for events in ended:
            spans = spans[~np.isin(spans["id"], events["id"])]
        gap = worker.give_up()
        if gap:
            log.warning(
                "what process %d recorded last could not be read for want of descriptors or memory", worker.identity.pid
            )
        self._leaving.append((_core.now() + GRACE, worker.directory))
        self._forget(worker, "ended")
        return gap + ([(spans, b"")] if len(spans) else [])

    def _recording(self) -> dict[Path, WorkerStatistics]:
        return {worker.directory: worker.statistics("recording") for worker in list(self._living.values())}

    def _forget(self, worker: Worker, state: str) -> None:
        last = worker.statistics(state)
        for accounts in self._accounts:
            accounts.end(worker.directory, last)
        del self._living[worker.directory]
        self._held_up.pop(worker.directory, None)
        worker.close()
