"""Which ranks hold the others up: said only where it is no chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

STEPS = 64
"""The newest steps of a rank that are looked at."""
FEWEST = 8
"""With fewer a rank is not judged."""
SHARE = 0.1
"""A rank is slow only if its steps take so much longer, as a share, than those of the others."""
SIGMAS = 4.0
"""And so many standard deviations more than ranks, and the steps of one rank, differ anyhow."""

_TO_SIGMA = 1.4826
"""Of a normal distribution, the standard deviation divided by the median absolute deviation."""


class Slow(msgspec.Struct, frozen=True):
    """A rank whose steps take longer than those of the others."""

    id: str
    median: float
    others: float
    """The median of the others' medians."""

    @property
    def factor(self) -> float:
        """How many times as long."""
        return self.median / self.others if self.others else float("inf")


def median(times: NDArray[np.float32] | NDArray[np.float64]) -> float:
    """The median of one number or more; for short arrays several times as fast as numpy's."""
    ordered = np.sort(times)
    return float(ordered[(len(times) - 1) // 2] + ordered[len(times) // 2]) / 2


def slowest(steps: Mapping[str, Sequence[float] | NDArray[np.float32]]) -> list[Slow]:
    """The ranks that are slow, the slowest first.

    The median of a rank's newest steps is compared with the median of the other ranks' medians: one that is slow does
    not hide itself, nor do a few slow steps make a slow rank. The others' spread and the uncertainty of the rank's own
    median, both by median absolute deviations, are what it must exceed.

    Args:
        steps: for each rank the times of its newest steps, or what of them it did not wait for others.
    """
    times_by_rank = {id: np.asarray(times, np.float64)[-STEPS:] for id, times in steps.items() if len(times) >= FEWEST}
    if len(times_by_rank) < 2:
        return []
    ids = list(times_by_rank)
    medians = np.array([median(times) for times in times_by_rank.values()])
    found: list[Slow] = []
    for at in sorted(range(len(ids)), key=lambda at: -float(medians[at])):
        rest = np.delete(medians, at)
        others = median(rest)
        spread = _TO_SIGMA * median(np.abs(rest - others))
        times = times_by_rank[ids[at]]
        noise = _TO_SIGMA * median(np.abs(times - medians[at])) * 1.2533 / len(times) ** 0.5
        excess = float(medians[at]) - others
        if excess <= max(SHARE * others, SIGMAS * spread, SIGMAS * noise):
            break
        found.append(Slow(ids[at], float(medians[at]), others))
    return found
