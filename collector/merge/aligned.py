"""The events of a member with the reference's times, on rows of their own in a trace of several members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from stepscope.collector.merge.plan import Stretch
from stepscope.collector.runs.evicted import beyond
from stepscope.collector.runs.job import Member
from stepscope.runtime.events.record import Block, EventBatch, Kind
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.journal.frame_reader import Damage
from stepscope.runtime.journal.ids import MAX_TRACKS, IdMap
from stepscope.runtime.journal.index import ROWS
from stepscope.runtime.journal.reader import JournalItem, JournalReader
from stepscope.runtime.journal.records import TrackRecord

_FLOWS = (int(Kind.FLOW_START), int(Kind.FLOW_STEP), int(Kind.FLOW_END))
_WHOLE_BITS = 53
"""Bits of the integers that JSON keeps exactly."""
_FLOW_BITS = 40
"""Bits of a flow's number; fewer in a job of more than 8,190 members."""

Sharing = Literal["job", "rank"]
"""The members in one trace: all of a job, or the processes that were the same rank one after the other."""

PROCESSES = 100_000
"""Process numbers that each member has in a trace of the job."""
DEVICES = 50_000
"""Numbers of its devices begin here."""
THREADS = 10_000_000
"""Added to the thread numbers of a rank that was started again, once for each start; Linux has none above 2 ** 22."""


class AlignedEvents:
    """Iterates over the batches of some windows of one member, aligned, placed and numbered as in the merged trace."""

    def __init__(self, stretches: Sequence[tuple[Stretch, int]], sharing: Sharing, members: int) -> None:
        """Args: windows of one member, each with its index in the merged trace; who shares that; how many members the job
        has, whose numbers are below."""
        self._members = members
        self._stretches: dict[int, list[tuple[Stretch, int]]] = {}
        for stretch, index in stretches:
            self._stretches.setdefault(stretch.source, []).append((stretch, index))
        self.member = stretches[0][0].member
        """The member's stream."""
        self._model = self.member.model
        self._reader = JournalReader(self.member.recording.path, Placement(self.member, sharing))

    @property
    def damage(self) -> Damage:
        """Damage that was found so far."""
        return beyond(self._reader.damage, self.member.recording.gaps)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._reader.close()

    def __iter__(self) -> Iterator[EventBatch]:
        rows = np.array([its[0][0].row for its in self._stretches.values()], ROWS)
        every = len(rows) == len(self.member.recording.marks)
        parts = [stretch for its in self._stretches.values() for stretch, _ in its]
        if any(not part.whole for part in parts):
            items: Iterator[JournalItem] = self._reader.batches(rows, self._other_frames(parts))
        else:
            items = self._reader.items() if every else self._reader.batches(rows)
        for item in items:
            if isinstance(item, EventBatch):
                for stretch, index in self._stretches.get(item.window, ()):
                    batch = self._aligned(item, stretch, index)
                    if len(batch):
                        yield batch

    def _other_frames(self, parts: Sequence[Stretch]) -> list[tuple[int, int]]:
        """Frames without any event of the steps of some windows; none of a window that has several parts here."""
        index = self._reader.index()
        if index is None:
            return []
        counts = Counter(part.source for part in parts)
        found: list[tuple[int, int]] = []
        for part in parts:
            if counts[part.source] == 1 and not part.whole:
                numbers = [step.number for step in part.steps]
                found += index.without(part.row, (min(numbers), max(numbers)), (part.start_ns, part.end_ns))
        return found

    def _aligned(self, batch: EventBatch, stretch: Stretch, index: int) -> EventBatch:
        events = batch.events if stretch.whole else _within(batch.events, stretch)
        if len(self._stretches[stretch.source]) > 1:
            events = events.copy()
        # No other object refers to the decoded events, so they may be changed.
        events.flags.writeable = True
        if self._model.align(events):
            renumber_flows(events, self.member.number, self._members)
        events.flags.writeable = False
        return EventBatch(batch.source, index, events, batch.args)


def _within(events: Block, stretch: Stretch) -> Block:
    """The events of some steps, and those of no step that lie in their time, at least in part."""
    numbers = [step.number for step in stretch.steps]
    step, starts, lasting = events["step"], events["ts"], np.maximum(events["dur"], 0)
    of_steps = (step >= min(numbers)) & (step <= max(numbers))
    ends = starts + lasting
    in_time = (starts < stretch.end_ns) & ((ends > stretch.start_ns) | (starts >= stretch.start_ns))
    inside: Block = events[of_steps | ((step < 0) & in_time)]
    return inside


def renumber_flows(events: Block, member: int, members: int) -> None:
    """Flows join what has their number, in whatever process: those of two members get numbers that never meet, in place.

    Args:
        members: how many there are; below 2 ** 21.
    """
    flows = np.flatnonzero(np.isin(events["kind"], _FLOWS))
    bits = min(_FLOW_BITS, _WHOLE_BITS - members.bit_length())
    ids = events["id"][flows]
    high = ids >> np.uint64(bits)
    # Large ones, such as hashes, are folded.
    folded = (ids ^ (high * np.uint64(0x9E3779B1))) & np.uint64((1 << bits) - 1)
    events["id"][flows] = folded | np.uint64((member + 1) << bits)


class Placement(IdMap):
    """Gives the tracks of a member numbers that no other member has, and names that say whose they are.

    In a trace of the job each member has a range of process numbers: its processes come first, in the order in which they
    appear, its devices are processes of their own. In a trace of one rank, devices keep their numbers, which tools
    for one rank expect, and the processes of a later start get other thread numbers.
    """

    def __init__(self, member: Member, sharing: Sharing) -> None:
        # No two members share a row, so none is looked for: there may be thousands of ranks.
        super().__init__(reuse=False)
        self._member = member
        self._sharing = sharing
        self._processes: dict[int, int] = {member.recording.run.pid: 0}
        self._devices: set[int] = set()

    def add_tracks(self, records: Iterable[TrackRecord]) -> None:
        """Reads the tracks of a member, and places them."""
        placed: list[TrackRecord] = []
        for record in records:
            if record.kind == TrackKind.STREAM:
                placed += self._stream(record)
            else:
                placed.append(self._row(record))
        super().add_tracks(placed)

    def _row(self, record: TrackRecord) -> TrackRecord:
        name, tid = record.name, record.tid
        if record.kind == TrackKind.PROCESS:
            run = self._member.recording.run
            unnamed = record.pid == run.pid and name == "process"
            name = f"{self._member.label}: {run.name if unnamed else name}"
        elif self._sharing == "rank":
            tid += THREADS * self._member.start
        return msgspec.structs.replace(record, pid=self._pid(record.pid), tid=tid, name=name)

    def _stream(self, record: TrackRecord) -> list[TrackRecord]:
        if self._sharing == "rank":
            return [record]
        pid = self._member.number * PROCESSES + PROCESSES + DEVICES + record.pid % DEVICES
        # An id that the file cannot have for a track of its own.
        owner = MAX_TRACKS - 1 - record.pid % DEVICES
        rows = [msgspec.structs.replace(record, pid=pid, parent=owner)]
        if record.pid not in self._devices:
            self._devices.add(record.pid)
            name = f"{self._member.label}: device {record.pid}"
            rows.insert(0, TrackRecord(owner, int(TrackKind.PROCESS), pid, 0, 0, name))
        return rows

    def _pid(self, pid: int) -> int:
        if self._sharing == "rank":
            return pid
        number = self._processes.setdefault(pid, len(self._processes))
        # A file that claims more processes than there is room for: they are drawn as one.
        return self._member.number * PROCESSES + PROCESSES + min(number, DEVICES - 1)
