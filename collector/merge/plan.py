"""Which windows of which members make up the windows of a merged trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from stepscope.collector.runs.job import Job, Member
from stepscope.collector.runs.places import Steps, places, range_of
from stepscope.runtime.errors import NoWindowError
from stepscope.runtime.windows.window import Step, Window


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What to merge; everything by default."""

    window: int | None = None
    """Index of the only window."""
    stream: str = ""
    """Id of the stream whose index of the window that is; empty: the job's."""
    steps: tuple[int, int] | None = None
    """Numbers of the first and the last step; of windows, only these steps' time is taken."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A window of one member, or a part of it. Times are ns of the member's clock."""

    member: Member
    source: int
    """Index of the window in the member's stream."""
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
    """By member; a member that did a part of it again has several."""
    absent: list[Member]
    """Members that have nothing of it, though they ran then as far as one can tell."""


def plan(job: Job, selection: Selection) -> list[MergedWindow]:
    """The windows to be merged; `places` says which belong together.

    Raises:
        NoWindowError: if nothing is left.
    """
    windows = [
        (member, index, window, range_of(step.number for step in window.steps))
        for member in job.members
        for index, window in sorted(member.recording.windows.items())
    ]
    first, again = (
        Counter((index, steps) for member, index, _, steps in windows if bool(member.start) == later)
        for later in (False, True)
    )
    placed = places(first, again)
    wanted = selection.window
    if selection.stream:
        wanted = _counted_by(selection, job, {(m.number, i): placed[bool(m.start), (i, s)] for m, i, _, s in windows})
    chosen: dict[int, list[Stretch]] = {}
    for member, index, window, steps in windows:
        place = placed[bool(member.start), (index, steps)]
        if wanted is not None and place != wanted:
            continue
        stretch = _stretch(member, index, window, selection.steps)
        if stretch is not None:
            chosen.setdefault(place, []).append(stretch)
    if not chosen:
        raise NoWindowError(_nothing(job, selection))
    return [
        MergedWindow(index=index, stretches=chosen[index], absent=_absent(job, chosen[index]))
        for index in sorted(chosen)
    ]


def _counted_by(selection: Selection, job: Job, placed: Mapping[tuple[int, int], int]) -> int:
    """The job's index of the window that has another one in a stream."""
    asked = [member for member in job.members if member.recording.stream == selection.stream]
    # Another recording of its run may have its windows.
    runs = {member.recording.process for member in asked}
    for member in (*asked, *(member for member in job.members if member.recording.process in runs)):
        place = placed.get((member.number, selection.window if selection.window is not None else -1))
        if place is not None:
            return place
    raise NoWindowError(f"stream {selection.stream} of the job {job.name!r} has no window {selection.window}")


def _stretch(member: Member, index: int, window: Window, wanted: Steps | None) -> Stretch | None:
    if wanted is None:
        return Stretch(
            member=member,
            source=index,
            window=window,
            start_ns=window.start_ns,
            end_ns=window.end_ns,
            whole=True,
            steps=window.steps,
        )
    steps = tuple(step for step in window.steps if wanted[0] <= step.number <= wanted[1])
    if not steps:
        return None
    return Stretch(
        member=member,
        source=index,
        window=window,
        start_ns=min(step.start_ns for step in steps),
        end_ns=max(step.end_ns for step in steps),
        whole=False,
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
    """What ranks did again after they were started again, as sentences."""
    done: dict[int, set[int]] = {}
    said: list[str] = []
    stretches = [stretch for window in windows for stretch in window.stretches if stretch.member.rank is not None]
    for stretch in sorted(stretches, key=lambda stretch: (stretch.member.number, stretch.start_ns)):
        rank = stretch.member.rank or 0
        numbers = {step.number for step in stretch.steps}
        before = done.setdefault(rank, set())
        again = numbers & before if stretch.member.start else set[int]()
        if again:
            said.append(f"rank {rank} was started again, and did the steps {min(again)} to {max(again)} again")
        before |= numbers
    return said


def _nothing(job: Job, selection: Selection) -> str:
    indices = sorted({index for member in job.members for index in member.recording.windows})
    windows = [window for member in job.members for window in member.recording.windows.values()]
    ranges = [steps for window in windows if (steps := range_of(step.number for step in window.steps))]
    there = f"windows {indices[0]} to {indices[-1]}" if indices else "no windows"
    if ranges:
        there += f", steps {min(first for first, _ in ranges)} to {max(last for _, last in ranges)}"
    wanted = "window" if selection.steps is None else "steps"
    number = selection.window if selection.steps is None else "{}-{}".format(*selection.steps)
    return f"the job {job.name!r} has no {wanted} {number}; it has {there}"
