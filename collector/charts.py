"""Step times of many ranks over time, as one chart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepscope.collector.history import BUCKETS, History
from stepscope.collector.streams import Rank, Streams
from stepscope.collector.views import Chart, Series

Range = Literal["recent", "all"]
MOST_SERIES = 32
"""Ranks that are told one by one."""


async def chart(streams: Streams, range: Range, ids: Sequence[str]) -> Chart:
    """The median, lowest and highest step time of all ranks at each time, and the step times of some.

    Args:
        streams: of whom.
        range: the last minutes, or the whole run.
        ids: of the ranks to tell one by one, the first `MOST_SERIES` of them.
    """
    ranks = list(streams)
    histories = [_histories(rank, range) for rank in ranks]
    width = max((one.width_ns for several in histories for one in several), default=1)
    while True:
        parts = [[one.means(width) for one in several] for several in histories]
        found = [at for several in parts for at, _ in several if len(at)]
        if not found:
            return Chart(width_s=width / 1e9, times=[], median=[], lowest=[], highest=[], series=[])
        first, last = min(int(at[0]) for at in found), max(int(at[-1]) for at in found)
        if range == "recent":
            first = max(first, last - BUCKETS + 1)
        if last - first < BUCKETS:
            break
        width *= 2  # starts of a rank that lie far apart
    rows: NDArray[np.float64] = np.full((len(ranks), last - first + 1), np.nan)
    for number, several in enumerate(parts):
        for at, means in several:  # the latest start last: it is what counts where they overlap
            rows[number, at[at >= first] - first] = means[at >= first] / 1e6
    used = np.atleast_1d(~np.isnan(rows).all(axis=0))
    if used.sum() > 1 and (last + 1) * width > time.time_ns():
        used[-1] = False  # not all of it is there yet: some ranks would be missing
    rows = rows[:, used]
    low, middle, high = await asyncio.to_thread(_over_ranks, rows)
    index = {rank.id: number for number, rank in enumerate(ranks)}
    chosen = [id for id in dict.fromkeys(ids) if id in index][:MOST_SERIES]
    return Chart(
        width_s=width / 1e9,
        times=((np.flatnonzero(used) + first + 0.5) * (width / 1e9)).round(3).tolist(),
        median=_numbers(middle),
        lowest=_numbers(low),
        highest=_numbers(high),
        series=[Series(id=id, step_ms=_numbers(rows[index[id]])) for id in chosen],
    )


def _histories(rank: Rank, range: Range) -> list[History]:
    return [stream.steps.recent if range == "recent" else stream.steps.all for stream in rank.streams]


def _over_ranks(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Lowest, median and highest of each column; each has a number."""
    ordered = np.sort(rows, axis=0)  # what is not a number comes last
    count: NDArray[np.int64] = (~np.isnan(rows)).sum(axis=0)
    column: NDArray[np.int64] = np.arange(len(count))
    middle = (ordered[(count - 1) // 2, column] + ordered[count // 2, column]) / 2
    return ordered[0], middle, ordered[count - 1, column]


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    rounded = values.round(3)
    return [None if number != number else number for number in rounded.tolist()]
