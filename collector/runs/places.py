"""Which windows of several processes are one window of their job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

Steps = tuple[int, int]
"""Numbers of the first and the last step."""
Mark = tuple[int, Steps | None]
"""What a window says of itself: its index, counted by its process, and its steps as far as they are known."""


def places(first: Mapping[Mark, int], again: Mapping[Mark, int]) -> dict[tuple[bool, Mark], int]:
    """The index in the job of each window.

    Windows belong together if they have the same index, unless their step numbers say otherwise: a rank that was started
    again counts its windows from 0, while its steps go on. So the first starts say which steps an index has (the range that
    most have, of equally frequent ones the first), and windows of later starts join those that share most steps.

    Args:
        first: how often each is there of ranks' first starts, in order of rank and time.
        again: the same of later starts.

    Returns:
        By whether it is of a later start, and what it says of itself.
    """
    votes: dict[int, Counter[Steps]] = {}
    for (index, steps), count in first.items():
        if steps is not None:
            votes.setdefault(index, Counter())[steps] += count
    ranges = {index: counted.most_common(1)[0][0] for index, counted in votes.items()}
    used = {index for index, _ in first}
    found: dict[tuple[bool, Mark], int] = {}
    for later, marks in ((False, first), (True, again)):
        for index, steps in marks:
            usual = ranges.get(index)
            place = index
            if steps is not None and (later if usual is None else not _overlap(steps, usual)):
                place = _best(steps, ranges)
                if place < 0:
                    # A window that nobody else has gets an index of its own.
                    place = max([*ranges, *used], default=-1) + 1
                    ranges[place] = steps
            found[later, (index, steps)] = place
    return found


def range_of(numbers: Iterable[int]) -> Steps | None:
    """The range of some steps, `None` of none."""
    known = list(numbers)
    return (min(known), max(known)) if known else None


def _best(steps: Steps, ranges: Mapping[int, Steps]) -> int:
    """The window that shares most steps, -1 if none shares any."""
    shared = [(_overlap(steps, usual), -index) for index, usual in ranges.items()]
    most, index = max(shared, default=(0, 1))
    return -index if most else -1


def _overlap(one: Steps, other: Steps) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]) + 1)
