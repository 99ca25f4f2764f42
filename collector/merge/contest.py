"""Finds the last of several members that do the same, as far as clocks are sure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.collector.runs.job import Member

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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
