"""Compares the ranks of a job: slow steps, and who comes last to collectives."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.collector.merge.plan import MergedWindow
from stepscope.collector.runs.job import Job, Member
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.windows.step_facts import COLLECTIVE_PREFIX
from stepscope.runtime.windows.step_statistics import begins_with_startup

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

COLLECTIVE = re.compile(COLLECTIVE_PREFIX + r"(?!:)\w")
"""How torch calls collectives where they begin on the host."""
MAX_ENTRIES = 2_000_000
"""Collectives of all ranks together that are compared; further ones are counted."""
SHOWN = 10

_ENTRY = np.dtype([("window", "<i8"), ("name", "<u4"), ("step", "<i8"), ("member", "<i4"), ("at", "<i8")])


class SlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that took long."""

    window: int
    step: int
    member: str
    """The member with the longest time. A rank measures its steps by its own clock, so this is sure."""
    duration_ns: int
    median_ns: int
    """The median of the members' times."""
    last: str
    """The member that began it last; empty if only one did."""
    spread_ns: int
    """From the first to the last beginning."""
    bound_ns: float | None
    """The error bound of the spread; `None`: unknown."""
    sure: bool
    """Whether it is sure who began last."""


class Lateness(msgspec.Struct, frozen=True, kw_only=True):
    """How often a member came last to collectives that others were in, too."""

    member: str
    entered: int
    last: int
    """Times it came last, as the aligned times say."""
    sure: int
    """Of these, those where clocks cannot be off by so much."""
    waited_ns: int
    """The sum of the times that the others waited for it then."""


class Contests(msgspec.Struct, frozen=True):
    """Outcomes of many contests, one row each."""

    first: Ints
    """Row number of the entry that came first; likewise the last."""
    last: Ints
    spread: Ints
    """ns between the two."""
    bound: Floats
    """The error bound of the spread, in ns."""
    sure: Bools
    """Whether the last one was later than all others by more than the clocks may be off."""
    waited: Floats
    """ns for which the others waited for the last, on average."""


class Order:
    """Gathers what can be compared while the events of a merge go by."""

    def __init__(self, job: Job, windows: Sequence[MergedWindow]) -> None:
        self._members = job.members
        self._windows = windows
        self._clocks = clock_numbers(job.members)
        self._is_collective = np.zeros(1, np.bool_)
        """By the id of a name."""
        self._names = 0
        """Up to which of this process's names that is known."""
        self._entries: list[NDArray[np.void]] = []
        self._count = 0
        self._omitted = 0

    def add(self, batch: EventBatch, member: Member) -> None:
        """Takes the collectives of a batch, whose times are aligned."""
        events = batch.events
        self._learn_names()
        if len(self._is_collective) == 1:
            return
        # Names with higher ids are none.
        where = np.flatnonzero(self._is_collective.take(events["name"], mode="clip"))
        where = where[events["kind"][where] == int(Kind.SPAN)]
        room = MAX_ENTRIES - self._count
        if len(where) > room:
            self._omitted += len(where) - room
            where = where[:room]
        if not len(where):
            return
        entries = np.zeros(len(where), _ENTRY)
        entries["window"], entries["member"] = batch.window, member.number
        for field in ("name", "step"):
            entries[field] = events[field][where]
        entries["at"] = events["ts"][where]
        self._entries.append(entries)
        self._count += len(entries)

    def slowest_steps(self) -> list[SlowStep]:
        """The steps that took longest, the longest first. Where optimizers end steps, step 0 is startup and left out."""
        found = [step for window in self._windows for step in self._steps(window)]
        return sorted(found, key=lambda step: -step.duration_ns)[:SHOWN]

    def collectives(self) -> list[Lateness]:
        """Members by what others waited for them, the one that was waited for most first."""
        entries: NDArray[np.void] = np.concatenate(self._entries) if self._entries else np.zeros(0, _ENTRY)
        if not len(entries):
            return []
        entries = self._latest_start(entries)
        # The n-th collective of a name in a step of one member is that of the others.
        entries = entries[np.lexsort([entries[key] for key in ("at", "member", "step", "name", "window")])]
        per_member = _numbers(entries, ("window", "name", "step", "member"))
        nth = np.arange(len(entries)) - np.searchsorted(per_member, per_member)
        order = np.lexsort([nth, *(entries[key] for key in ("step", "name", "window"))])
        entries, nth = entries[order], nth[order]
        groups = np.cumsum(
            (np.diff(_numbers(entries, ("window", "name", "step")), prepend=0) != 0) | (np.diff(nth, prepend=0) != 0)
        )
        members = entries["member"].astype(np.int64)
        _, outcome = decide(groups, members, entries["at"], self._errors(members, entries["at"]), self._clocks)
        number = len(self._members)
        entered = np.bincount(members, minlength=number)
        last = np.bincount(outcome.last, minlength=number)
        sure = np.bincount(outcome.last[outcome.sure], minlength=number)
        waited = np.bincount(outcome.last, outcome.waited, minlength=number)
        rows = [
            Lateness(
                member=member.label,
                entered=int(entered[member.number]),
                last=int(last[member.number]),
                sure=int(sure[member.number]),
                waited_ns=round(float(waited[member.number])),
            )
            for member in self._members
            if entered[member.number]
        ]
        return sorted(rows, key=lambda row: -row.waited_ns)

    def notes(self) -> list[str]:
        """Sentences: comparisons that were left out."""
        if not self._omitted:
            return []
        return [f"{self._omitted:,} collectives were not compared: more than {MAX_ENTRIES:,} are not held in memory"]

    def _learn_names(self) -> None:
        self._names, added = strings.since(self._names)
        found = [name for name, text in added if COLLECTIVE.match(text)]
        if found:
            # The last entry is that of all higher ids, and stays false.
            longer = np.zeros(max(*found, len(self._is_collective) - 2, 0) + 2, np.bool_)
            longer[: len(self._is_collective)] = self._is_collective
            longer[found] = True
            self._is_collective = longer

    def _latest_start(self, entries: NDArray[np.void]) -> NDArray[np.void]:
        """Where a rank did a step again after it was started again, the last time counts."""
        ranks = [member.rank if member.rank is not None else -1 - member.number for member in self._members]
        selected = np.ones(len(entries), np.bool_)
        again = [member for member in self._members if member.start]
        for member in again:
            steps = np.unique(entries["step"][entries["member"] == member.number])
            earlier = [m.number for m in self._members if ranks[m.number] == member.rank and m.start < member.start]
            selected &= ~(np.isin(entries["member"], earlier) & np.isin(entries["step"], steps))
        return entries[selected]

    def _errors(self, members: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.float64]:
        """The error bounds of members' times, in ns."""
        errors = np.empty(len(members))
        for member in self._members:
            where = members == member.number
            if where.any():
                errors[where] = member.model.error_at_reference(at[where])
        return errors

    def _steps(self, window: MergedWindow) -> list[SlowStep]:
        rows: dict[tuple[int, int | str], tuple[int, int, int, int]] = {}
        for stretch in window.stretches:
            member = stretch.member
            key = member.rank if member.rank is not None else member.label
            times = np.array([(step.start_ns, step.end_ns) for step in stretch.steps], np.int64).reshape(-1, 2)
            starts = member.model.to_reference(times[:, 0]).tolist()
            own = (times[:, 1] - times[:, 0]).tolist()
            has_startup = begins_with_startup(member.recording.metadata)
            for step, start, duration in zip(stretch.steps, starts, own, strict=True):
                if step.number or not has_startup:
                    rows[step.number, key] = (step.number, member.number, start, duration)
        if not rows:
            return []
        table = np.array(sorted(rows.values()), np.int64)
        numbers, members, starts, durations = table.T
        groups, outcome = decide(numbers, members, starts, self._errors(members, starts), self._clocks)
        contests = {int(number): index for index, number in enumerate(groups)}
        found: list[SlowStep] = []
        for number in np.unique(numbers).tolist():
            where = np.flatnonzero(numbers == number)
            slowest = int(where[durations[where].argmax()])
            contest = contests.get(number)
            bound = float(outcome.bound[contest]) if contest is not None else 0.0
            found.append(
                SlowStep(
                    window=window.index,
                    step=number,
                    member=self._members[int(members[slowest])].label,
                    duration_ns=int(durations[slowest]),
                    median_ns=int(np.median(durations[where])),
                    last="" if contest is None else self._members[int(outcome.last[contest])].label,
                    spread_ns=0 if contest is None else int(outcome.spread[contest]),
                    bound_ns=bound if np.isfinite(bound) else None,
                    sure=contest is not None and bool(outcome.sure[contest]),
                )
            )
        return found


def _numbers(entries: NDArray[np.void], keys: Sequence[str]) -> NDArray[np.int64]:
    """A number for each entry of a sorted table that changes where one of the keys does; it grows."""
    changed = np.zeros(len(entries), np.bool_)
    for key in keys:
        changed[1:] |= entries[key][1:] != entries[key][:-1]
    return np.cumsum(changed, dtype=np.int64)


def decide(groups: Ints, members: Ints, at: Ints, errors: Floats, clocks: Ints) -> tuple[Ints, Contests]:
    """Decides contests.

    Args:
        groups: the contest of each entry; sorted.
        members: who entered.
        at: when, by the reference, in ns.
        errors: what that may be off, in ns.
        clocks: the clock of each member; those of one clock are exactly in order.

    Returns:
        The groups that had at least two entries, and their outcomes.
    """
    begins = np.ones(len(groups), np.bool_)
    begins[1:] = groups[1:] != groups[:-1]
    starts = np.flatnonzero(begins)
    sizes = np.diff(np.append(starts, len(groups)))
    several = np.repeat(sizes > 1, sizes)
    groups, members, at, errors = groups[several], members[several], at[several], errors[several]
    sizes = sizes[sizes > 1]
    starts = np.cumsum(sizes) - sizes
    if not len(sizes):
        none, floats = np.empty(0, np.int64), np.empty(0)
        return none, Contests(none, none, none, floats, np.empty(0, np.bool_), floats)
    order = np.lexsort((at, groups))
    members, at, errors = members[order], at[order], errors[order]
    ends = starts + sizes - 1
    to_last, to_first = np.repeat(ends, sizes), np.repeat(starts, sizes)
    distance = at[to_last] - at
    # An entry is surely earlier than the last if the clocks cannot be off by as much as lies between them.
    alone = clocks[members] == clocks[members[to_last]]
    margin = np.where(alone, 0.0, errors + errors[to_last])
    earlier = (distance > margin) | (np.arange(len(at)) == to_last)
    sums = np.add.reduceat(distance, starts)
    return groups[starts], Contests(
        first=members[starts],
        last=members[ends],
        spread=at[ends] - at[starts],
        bound=margin[to_first[starts]],
        sure=np.logical_and.reduceat(earlier, starts),
        waited=sums / (sizes - 1),
    )


def clock_numbers(members: Sequence[Member]) -> Ints:
    """A number for the clock of each member."""
    names = sorted({member.clock for member in members})
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[member.clock] for member in members], np.int64)
