"""Times of steps of all ranks as one picture: rows of ranks, columns of steps."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from litestar.params import QueryParameter
from numpy.typing import NDArray

from stepscope.collector.live.step_times import RECENT, StepTimes, communicates
from stepscope.collector.live.streams import Rank
from stepscope.collector.live.views import Heatmap

MEDIAN_OF = 512
"""Ranks of which the median is computed; of more, so many that lie evenly."""
_MIDDLE, _PER_DOUBLE = 128, 32

Matrix = NDArray[np.float32]


class HeatmapQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the picture, and how large."""

    job: Annotated[str | None, QueryParameter(max_length=1024)] = None
    rows: Annotated[int, QueryParameter(ge=1, le=1024)] = 512
    """The most rows; several ranks share one if there are more."""
    columns: Annotated[int, QueryParameter(ge=1, le=1024)] = 1000
    """The most columns; several steps share one if there are more."""
    value: Annotated[Literal["own", "whole"], QueryParameter()] = "own"
    """Times without collectives, where these are known, or of whole steps."""
    from_rank: Annotated[int | None, QueryParameter(ge=0, lt=1 << 31)] = None
    """Position of the first rank among those of the job; default: the first."""
    to_rank: Annotated[int | None, QueryParameter(ge=0, lt=1 << 31)] = None
    """Position of the last."""
    from_step: Annotated[int | None, QueryParameter(ge=0, lt=1 << 62)] = None
    """Number of the first step; default: the oldest of the newest that are known."""
    to_step: Annotated[int | None, QueryParameter(ge=0, lt=1 << 62)] = None
    """Number of the last step."""


class Heatmaps:
    """Draws pictures on threads, one at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def heatmap(self, ranks: Sequence[Rank], query: HeatmapQuery) -> Heatmap:
        """The picture of these ranks, which are those of the job."""
        async with self._lock:
            # Ranks may be forgotten while the thread draws.
            drawn = [(rank.id, rank.latest.steps) for rank in ranks if rank.streams]
            return await asyncio.to_thread(_draw, drawn, query)


def _draw(ranks: Sequence[tuple[str, StepTimes]], query: HeatmapQuery) -> Heatmap:
    last_rank = len(ranks) if query.to_rank is None else query.to_rank + 1
    ranks = ranks[query.from_rank or 0 : last_rank]
    steps = [times.newest(RECENT) for _, times in ranks]
    numbers = [each["number"] for each in steps if len(each)]
    newest = _newest([int(each[-1]) for each in numbers])
    oldest = max(min((int(each.min()) for each in numbers), default=0), newest - RECENT + 1, 0)
    first = oldest if query.from_step is None else query.from_step
    last = newest if query.to_step is None else min(query.to_step, newest)
    count = max(last - first + 1, 0) if numbers else 0
    width = max(math.ceil(count / query.columns), 1)
    columns = math.ceil(count / width)
    per_row = max(math.ceil(len(ranks) / query.rows), 1)
    own = query.value == "own" and any(communicates(each) for each in steps)
    field = "own_ms" if own else "ms"
    longest: Matrix = np.zeros((math.ceil(len(ranks) / per_row), columns), np.float32)
    sampled = {*np.linspace(0, len(ranks) - 1, min(len(ranks), MEDIAN_OF)).astype(np.int64).tolist()}
    samples: list[Matrix] = []
    for at, each in enumerate(steps):
        shown = each[(each["number"] >= first) & (each["number"] <= last) & (each[field] > 0)]
        column = (shown["number"] - first) // width
        np.maximum.at(longest[at // per_row], column, shown[field])
        if at in sampled and columns:
            row: Matrix = np.full(columns, np.nan, np.float32)
            row[column] = shown[field]
            samples.append(row)
    medians = _medians(samples, columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = _MIDDLE + _PER_DOUBLE * np.log2(longest / medians)
    values = np.where(longest > 0, np.clip(np.nan_to_num(np.rint(level), nan=_MIDDLE), 1, 255), 0).astype(np.uint8)
    return Heatmap(
        job_id=query.job,
        first_step=first,
        steps_per_column=width,
        columns=columns,
        rows=[id for id, _ in ranks[::per_row]],
        ranks_per_row=per_row,
        ranks=len(ranks),
        value="own" if own else "whole",
        median_ms=[None if math.isnan(one) else round(one, 3) for one in medians.tolist()],
        values=values.tobytes(),
    )


def _newest(steps: Sequence[int]) -> int:
    """The newest step of all ranks, but for those that are far ahead of most: one rank that counts otherwise must not move the
    picture to where the others have nothing."""
    if not steps:
        return 0
    most = sorted(steps)[(len(steps) - 1) // 2] + RECENT
    return max(step for step in steps if step <= most)


def _medians(samples: Sequence[Matrix], columns: int) -> Matrix:
    """The median of each column, without the cells where nothing is known."""
    medians: Matrix = np.full(columns, np.nan, np.float32)
    if samples:
        ordered = np.sort(np.stack(samples), axis=0)  # what is not a number comes last
        count = (~np.isnan(ordered)).sum(axis=0)
        there: NDArray[np.int64] = np.flatnonzero(count)
        medians[there] = ordered[(count[there] - 1) // 2, there]
    return medians
