"""Which windows of several processes are one window of their job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Steps = tuple[int, int]
"""Numbers of the first and the last step."""
Mark = tuple[int, Steps | None]
"""A window's index, counted by its process, and its steps as far as they are known."""

MARKS = np.dtype([("window", "<i8"), ("first_step", "<i8"), ("last_step", "<i8")])
Marks = NDArray[np.void]
"""The same for many windows, an array of `MARKS`; a window without steps has a last step that is less than its first."""

_MOST = (1 << 63) - 1
_FAR = 1 << 61
"""Differences of such numbers of steps fit 64 bits."""


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
    window_ranges = _Ranges(ranges)
    last = max([*ranges, *(index for index, _ in first)], default=-1)
    found: dict[tuple[bool, Mark], int] = {}
    for later, marks in ((False, first), (True, again)):
        for index, steps in marks:
            usual = ranges.get(index)
            place = index
            if steps is not None and (later if usual is None else not _overlap(steps, usual)):
                place = window_ranges.best(steps)
                if place < 0:
                    # A window that nobody else has gets an index of its own.
                    last = place = min(last + 1, _MOST)
                    ranges[place] = steps
                    window_ranges.add(place, steps)
            found[later, (index, steps)] = place
    return found


class _Ranges:
    """Ranges of steps, in which one is looked for."""

    def __init__(self, ranges: Mapping[int, Steps]) -> None:
        self._indices = list(ranges)
        self._steps = np.clip(np.array([*ranges.values()], np.int64).reshape(-1, 2), -_FAR, _FAR)

    def add(self, index: int, steps: Steps) -> None:
        if len(self._indices) == len(self._steps):
            self._steps = np.concatenate([self._steps, np.zeros((len(self._steps) + 16, 2), np.int64)])
        self._steps[len(self._indices)] = np.clip(steps, -_FAR, _FAR)
        self._indices.append(index)

    def best(self, steps: Steps) -> int:
        """The window that shares most steps, of several the one with the lowest index; -1 if none shares any."""
        first, last = self._steps[: len(self._indices)].T
        shared = np.minimum(last, min(steps[1], _FAR)) - np.maximum(first, max(steps[0], -_FAR)) + 1
        most = shared.max(initial=0)
        return min((self._indices[at] for at in np.flatnonzero(shared == most)), default=-1) if most > 0 else -1


def _overlap(one: Steps, other: Steps) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]) + 1)
