"""Chooses the windows of members that make up the windows of a merged trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.collector.runs.job import Job, Member
from stepscope.collector.runs.recording import Wanted
from stepscope.collector.runs.windows import Mark, Steps, places
from stepscope.runtime.errors import NoWindowError
from stepscope.runtime.windows.window import Step, Window


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the windows to merge; by default all."""

    window: int | None = None
    """Index of the only window."""
    stream: str = ""
    """Id of the stream in which the window has that index; empty: the index is the job's."""
    steps: tuple[int, int] | None = None
    """Numbers of the first and the last step; only the time of these steps is merged."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A window of one member, or a part of it. Times are ns of the member's clock."""

    member: Member
    source: int
    """Index of the window in the member's stream."""
    row: np.void
    """Place of its frames: a row of `Rows`."""
    window: Window
    start_ns: int
    end_ns: int
    whole: bool
    """Whether all events of the window belong to it, whatever their times."""
    steps: tuple[Step, ...]


class MergedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A window of the merged trace."""

    index: int
    stretches: list[Stretch]
    """Stretches by member; a member that repeated a part of the window has several."""
    absent: list[Member]
    """Members that have nothing of it, though they seem to have run then."""


def wanted(selection: Selection) -> Wanted | None:
    """The windows that are probably in a selection, so that their rows are not read twice: what windows of other members say, which is
    not known then, may lead to others. `None`: all."""
    if selection.stream:
        return None  # the stream counts its windows otherwise than the job
    if selection.steps is not None:
        first, last = selection.steps
        return lambda rows: (rows["steps"] > 0) & (rows["first_step"] <= last) & (rows["last_step"] >= first)
    if selection.window is not None:
        return lambda rows: rows["window"] == selection.window
    return None


def plan(job: Job, selection: Selection) -> list[MergedWindow]:
    """The windows to be merged; `places` says which belong together. Of other windows no frame is read. Raises
    `NoWindowError` if nothing is left, and `OSError` or `FormatError` if a stream cannot be read any more."""
    if wanted(selection) is None or selection.steps or any(member.start for member in job.members):
        for member in job.members:
            member.recording.read_open()
    placed = _placed(job)
    window = selection.window
    if selection.stream:
        window = _counted_by(selection, job, placed)
    chosen: dict[int, list[Stretch]] = {}
    for member, its in zip(job.members, placed, strict=True):
        recording = member.recording
        marks = recording.marks
        here = np.ones(len(marks), np.bool_) if window is None else its == window
        if selection.steps is not None:
            here &= (marks["first_step"] <= selection.steps[1]) & (marks["last_step"] >= selection.steps[0])
            here &= marks["first_step"] <= marks["last_step"]
        wished = marks["window"][here]
        places_of = dict(zip(wished.tolist(), its[here].tolist(), strict=True))
        rows = recording.rows_of(wished)  # what was evicted meanwhile is not among them
        found = recording.windows(rows)
        for row in rows:
            index = int(row["window"])
            stretch = _stretch(member, index, found[index], row, selection.steps)
            if stretch is not None:
                chosen.setdefault(places_of[index], []).append(stretch)
    if not chosen:
        raise NoWindowError(_nothing(job, selection))
    return [
        MergedWindow(index=index, stretches=chosen[index], absent=_absent(job, chosen[index]))
        for index in sorted(chosen)
    ]


def _placed(job: Job) -> list[NDArray[np.int64]]:
    """The index in the job of each member's windows, in the order of their marks."""
    # Most members have the same windows, whose marks are one array then.
    tables: dict[tuple[bool, int], list[Mark]] = {}
    counts = Counter[tuple[bool, int]]()
    for member in job.members:
        table = member.recording.marks
        key = bool(member.start), id(table)
        counts[key] += 1
        if key not in tables:
            tables[key] = [(index, (first, last) if first <= last else None) for index, first, last in table.tolist()]
    first, again = Counter[Mark](), Counter[Mark]()
    for (later, which), marks in tables.items():
        counter = again if later else first
        for mark in marks:
            counter[mark] += counts[later, which]
    found = places(first, again)
    arrays = {key: np.array([found[key[0], mark] for mark in marks], np.int64) for key, marks in tables.items()}
    return [arrays[bool(member.start), id(member.recording.marks)] for member in job.members]


def _counted_by(selection: Selection, job: Job, placed: Sequence[NDArray[np.int64]]) -> int:
    """The job's index of the window that has another one in a stream."""
    chosen = [member for member in job.members if member.recording.stream == selection.stream]
    # Another recording of its run may have its windows.
    runs = {member.recording.process for member in chosen}
    for member in (*chosen, *(member for member in job.members if member.recording.process in runs)):
        place = placed[member.number][member.recording.marks["window"] == selection.window]
        if len(place):
            return int(place[0])
    raise NoWindowError(f"stream {selection.stream} of the job {job.name!r} has no window {selection.window}")


def _stretch(member: Member, index: int, window: Window, row: np.void, wanted: Steps | None) -> Stretch | None:
    steps, start, end = window.steps, window.start_ns, window.end_ns
    if wanted is not None:
        steps = tuple(step for step in steps if wanted[0] <= step.number <= wanted[1])
        if not steps:
            return None
        start, end = min(step.start_ns for step in steps), max(step.end_ns for step in steps)
    return Stretch(
        member=member,
        source=index,
        row=row,
        window=window,
        start_ns=start,
        end_ns=end,
        whole=wanted is None,
        steps=steps,
    )


def _absent(job: Job, stretches: Sequence[Stretch]) -> list[Member]:
    """Members without a stretch whose rank, or process, has none either."""
    there = {stretch.member.number for stretch in stretches}
    ranks = {stretch.member.rank for stretch in stretches if stretch.member.rank is not None}
    processes = {stretch.member.recording.process for stretch in stretches}
    missing = [member for member in job.members if member.number not in there and member.rank not in ranks]
    return [member for member in missing if member.recording.process not in processes]


def repeated_steps(windows: Sequence[MergedWindow]) -> list[str]:
    """Sentences: steps that ranks repeated after a restart."""
    done: dict[int, set[int]] = {}
    notes: list[str] = []
    stretches = [stretch for window in windows for stretch in window.stretches if stretch.member.rank is not None]
    for stretch in sorted(stretches, key=lambda stretch: (stretch.member.number, stretch.start_ns)):
        rank = stretch.member.rank or 0
        numbers = {step.number for step in stretch.steps}
        before = done.setdefault(rank, set())
        again = numbers & before if stretch.member.start else set[int]()
        if again:
            notes.append(f"rank {rank} was started again, and did the steps {min(again)} to {max(again)} again")
        before |= numbers
    return notes


def _nothing(job: Job, selection: Selection) -> str:
    shared = {id(member.recording.marks): member.recording.marks for member in job.members}
    marks = np.concatenate([*shared.values()])
    there = f"windows {marks['window'].min()} to {marks['window'].max()}" if len(marks) else "no windows"
    stepped = marks[marks["first_step"] <= marks["last_step"]]
    if len(stepped):
        there += f", steps {stepped['first_step'].min()} to {stepped['last_step'].max()}"
    what = "window" if selection.steps is None else "steps"
    number = selection.window if selection.steps is None else "{}-{}".format(*selection.steps)
    return f"the job {job.name!r} has no {what} {number}; it has {there}"
