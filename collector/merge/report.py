"""The report of a merge."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from stepscope.collector.live.views import LiveFinding
from stepscope.collector.runs.job import Member
from stepscope.collector.runs.recording import UnreadableJournal
from stepscope.runtime.display.text_table import Column, human_count, human_time, printable, shorten, text_table
from stepscope.runtime.journal.frame_reader import Damage

_ABOUT_MEMBERS = """\
offset: added to the rank's times. drift: rate of the collector's clock against this one, in parts per million. bound: largest
remaining error of the rank's times, from this many round trips to the collector."""
_WIDEST = 40
_LOOKS = 256
"""Times at which the bound is computed: between them it hardly changes."""


class MemberReport(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a job: its clock, and its part of the trace."""

    member: str
    rank: int | None
    host: str
    pid: int
    stream: str
    offset_ns: int
    """ns between its wall clock at the begin of its run and the reference."""
    drift_ppm: float
    """The rate at which the reference gains on its clock, where it was merged."""
    drift_bound_ppm: float | None
    """The error bound of that rate: large after few seconds. `None`: nothing was measured."""
    bound_ns: float | None
    """The error bound of its aligned times; `None`: nothing was measured."""
    round_trips: int
    """Number of round trips from which the bound was made."""
    refused: int
    """Round trips that contradict themselves."""
    unsteady: int
    """Number of times that its clock changed its rate."""
    events: int
    machine: str
    """Members with the same one read the same clock."""
    ended: bool
    """Whether its stream was closed in order."""
    damage: str
    """Damage of its stream, as a sentence; empty: none."""


def member_report(member: Member, start: int, end: int, events: int, damage: Damage | None = None) -> MemberReport:
    """Describes a member.

    Args:
        start: where what is merged of it begins, by its clock, in ns.
    """
    recording = member.recording
    bound = float(member.model.error(np.linspace(start, end, _LOOKS).astype(np.int64)).max())
    drift, drift_bound = member.model.drift_ppm(start)
    found = [msgspec.structs.asdict(one) for one in (recording.damage, damage or Damage())]
    both = Damage(**{name: max(one[name] for one in found) for name in Damage.__struct_fields__})
    return MemberReport(
        member=member.label,
        rank=member.rank,
        host=recording.run.host,
        pid=recording.run.pid,
        stream=recording.id,
        offset_ns=member.reference(start) - recording.run.anchor.wall(start),
        drift_ppm=drift,
        drift_bound_ppm=drift_bound if math.isfinite(drift_bound) else None,
        bound_ns=bound if math.isfinite(bound) else None,
        round_trips=member.fitted.trips,
        refused=member.fitted.refused,
        unsteady=member.fitted.unsteady,
        events=events,
        machine=member.clock,
        ended=recording.ended,
        damage=both.harm(),
    )


def evicted(members: Sequence[Member]) -> list[str]:
    """A sentence: the events that collectors evicted when their disks were full."""
    of = [member for member in members if member.recording.discarded]
    if not of:
        return []
    events = sum(member.recording.discarded for member in of)
    more = f" and {len(of) - 3:,} more" if len(of) > 3 else ""
    return [f"{events:,} events were evicted for want of room: of {', '.join(one.label for one in of[:3])}{more}"]


class MergeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The merged members, and the error bounds of their order."""

    job: str
    clock: str
    """The collector's clock that all times are in; empty if none was compared with: then wall clocks count."""
    windows: list[int]
    events: int
    members: list[MemberReport]
    missing_ranks: str
    """Ranks that sent nothing at all, such as `1,3-5`; of many ranges the first. Empty: none is missing."""
    missing_count: int
    """The number of missing ranks."""
    absent: list[str]
    """Members that lack a window."""
    findings: list[LiveFinding]
    """Findings in the merged steps, those of `stepscope explain`, the most costly first."""
    unreadable: list[UnreadableJournal]
    """Journals that could not be read: what they have is not in the trace."""
    notes: list[str]
    written: str = ""
    """The file that was written, if it is not the one that was asked for: a journal replaces no other."""

    def text(self) -> str:
        """The report for a terminal."""
        ranks = len({member.rank for member in self.members if member.rank is not None})
        who = [f"job {printable(self.job)!r}", *([human_count(ranks, "rank")] if ranks else []), _windows(self.windows)]
        parts = [f"{', '.join(who)}: {human_count(self.events, 'event')}"]
        parts += [*map(_finding, self.findings), _members(self.members)]
        if len({member.machine for member in self.members}) == 1:
            if len(self.members) > 1:
                parts.append("All ranks ran on one machine and share its clock: their order is exact.")
        elif not self.clock:
            parts.append(
                "The clocks of these machines were not compared: times of different machines may be off by any amount. Ranks that send "
                "to a collector have it compare them: stepscope collect."
            )
        elif any(member.bound_ns is None for member in self.members):
            parts.append("Where no bound is known, times are those of the wall clock, which may be off by any amount.")
        if self.missing_ranks:
            these = f"{self.missing_count:,} ranks:" if self.missing_count > 1 else "rank"
            parts.append(f"missing: {these} {self.missing_ranks}")
        parts += [f"missing: {printable(text)}" for text in self.absent[:20]]
        return "\n\n".join([*parts, *self.not_merged(), *self.notes])

    def not_merged(self) -> list[str]:
        """A sentence on each journal that could not be read."""
        return [printable(f"not merged: {journal}") for journal in self.unreadable]


def _finding(finding: LiveFinding) -> str:
    lines = [finding.title, *(f"  {text}" for text in finding.evidence), f"  try: {finding.action}"]
    return "\n".join(printable(line) for line in lines)


def _members(members: Sequence[MemberReport]) -> str:
    head = [Column("rank", right=False), Column("host", right=False), Column("offset"), Column("drift ppm")]
    head += [Column("bound"), Column("round trips"), Column("events"), Column("stream", right=False)]
    rows = [
        [
            shorten(printable(member.member), _WIDEST),
            shorten(printable(member.host), _WIDEST),
            _signed(member.offset_ns),
            "" if member.drift_bound_ppm is None else f"{member.drift_ppm:+.1f} ± {member.drift_bound_ppm:.1f}",
            _bound(member.bound_ns),
            f"{member.round_trips:,}",
            f"{member.events:,}",
            shorten(printable(_state(member)), 60),
        ]
        for member in members
    ]
    return f"{text_table(head, rows)}\n{_ABOUT_MEMBERS}"


def _state(member: MemberReport) -> str:
    notes = [] if member.ended else ["no end: killed, or still running"]
    notes += [member.damage] if member.damage else []
    if member.unsteady:
        notes.append(f"clock unsteady {member.unsteady}x")
    if member.refused:
        notes.append(f"{member.refused} round trips refused")
    return "; ".join(notes) or "ended"


def _bound(ns: float | None) -> str:
    return "unknown" if ns is None else human_time(ns)


def _signed(ns: int) -> str:
    return ("-" if ns < 0 else "+") + human_time(abs(ns))


def _windows(windows: Sequence[int]) -> str:
    return f"window {windows[0]}" if len(windows) == 1 else f"{len(windows)} windows"
