"""Where the rows of a member are drawn in a trace that others share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from stepscope.collector.runs.job import Member
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.journal.ids import MAX_TRACKS, IdMap
from stepscope.runtime.journal.records import TrackRecord

Sharing = Literal["job", "rank"]
"""Members with a part of the trace: all of a job, or the processes that were the same rank one after the other."""

PROCESSES = 100_000
"""Process numbers that each member has in a trace of the job."""
DEVICES = 50_000
"""Its devices begin here."""
THREADS = 10_000_000
"""Added to the thread numbers of a rank that was started again, once for each start; Linux has none above 2 ** 22."""


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

    @property
    def pid(self) -> int:
        """The number of the member's own process."""
        return self._pid(self._member.recording.run.pid)

    def add_tracks(self, records: Iterable[TrackRecord]) -> None:
        """Learns tracks, and places them."""
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
