"""Which windows of which members make up the windows of a merged trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from stepscope.collector.merge.job import Job, Member
from stepscope.runtime.errors import FormatError
from stepscope.runtime.window import Step, Window


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What to merge; everything by default."""

    window: int | None = None
    """Index of the only window."""
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


Steps = tuple[int, int]


def plan(job: Job, selection: Selection) -> list[MergedWindow]:
    """The windows to be merged.

    Windows belong together if they have the same index, unless their step numbers say otherwise: a rank that was started
    again counts its windows from 0, while its steps go on.

    Raises:
        FormatError: if nothing is left.
    """
    windows = [(member, index, member.recording.windows[index]) for member in job.members for index in _indices(member)]
    places = _places(windows)
    chosen: dict[int, list[Stretch]] = {}
    for member, index, window in windows:
        place = places[member.number, index]
        if selection.window is not None and place != selection.window:
            continue
        stretch = _stretch(member, index, window, selection.steps)
        if stretch is not None:
            chosen.setdefault(place, []).append(stretch)
    if not chosen:
        raise FormatError(_nothing(job, selection))
    return [
        MergedWindow(index=index, stretches=chosen[index], absent=_absent(job, chosen[index]))
        for index in sorted(chosen)
    ]


def _indices(member: Member) -> Iterable[int]:
    return sorted(member.recording.windows)


def _places(windows: Sequence[tuple[Member, int, Window]]) -> dict[tuple[int, int], int]:
    """The index in the merged trace of each window of each member."""
    ranges: dict[int, Steps] = {}
    by_index: dict[int, list[Window]] = {}
    for _, index, window in windows:
        by_index.setdefault(index, []).append(window)
    for index, alike in by_index.items():
        known = [steps for window in alike if (steps := _range(window.steps)) is not None]
        if known:
            ranges[index] = Counter(known).most_common(1)[0][0]
    places: dict[tuple[int, int], int] = {}
    for member, index, window in windows:
        steps, usual = _range(window.steps), ranges.get(index)
        place = index
        if steps is not None and usual is not None and not _overlap(steps, usual):
            place = _best(steps, ranges)
            if place < 0:
                # A window that nobody else has gets an index of its own.
                place = max([*ranges, *by_index], default=-1) + 1
                ranges[place] = steps
        places[member.number, index] = place
    return places


def _best(steps: Steps, ranges: dict[int, Steps]) -> int:
    """The window that shares most steps, -1 if none shares any."""
    shared = [(_overlap(steps, usual), -index) for index, usual in ranges.items()]
    most, index = max(shared, default=(0, 1))
    return -index if most else -1


def _overlap(one: Steps, other: Steps) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]) + 1)


def _range(steps: Sequence[Step]) -> Steps | None:
    numbers = [step.number for step in steps]
    return (min(numbers), max(numbers)) if numbers else None


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
    """Members without a stretch whose rank has none either."""
    there = {stretch.member.number for stretch in stretches}
    ranks = {stretch.member.rank for stretch in stretches if stretch.member.rank is not None}
    return [member for member in job.members if member.number not in there and member.rank not in ranks]


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
    ranges = [steps for member in job.members for w in member.recording.windows.values() if (steps := _range(w.steps))]
    there = f"windows {indices[0]} to {indices[-1]}" if indices else "no windows"
    if ranges:
        there += f", steps {min(first for first, _ in ranges)} to {max(last for _, last in ranges)}"
    wanted = "window" if selection.steps is None else "steps"
    number = selection.window if selection.steps is None else "{}-{}".format(*selection.steps)
    return f"the job {job.name!r} has no {wanted} {number}; it has {there}"
