"""Step times of many ranks: over time as a chart, and by step as a heat map."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from litestar.params import QueryParameter
from numpy.typing import NDArray

from stepscope.collector.live.step_times import BUCKETS, RECENT, StepTimes, Sums, communicates
from stepscope.collector.live.streams import Rank, Streams, in_slices
from stepscope.collector.live.views import Chart, Heatmap, Series

Range = Literal["recent", "all"]
MOST_SERIES = 32
"""Most ranks with a line of their own."""
FRESH = 0.8
"""Seconds for which a layout is used again."""
_MAX_LAYOUTS = 8
"""Layouts: some megabytes each where there are a thousand ranks."""

Means = NDArray[np.float64]

MEDIAN_OF = 512
"""Ranks of which the median is computed; of more, so many that lie evenly."""
_MIDDLE, _PER_DOUBLE = 128, 32

Matrix = NDArray[np.float32]


class _Layout(msgspec.Struct, frozen=True):
    """Mean step times in ms at each time: a row for each rank, not a number where it had none."""

    width_ns: int
    times: list[float]
    rows: Means
    index: dict[str, int]
    """Rows by ranks' ids."""
    lowest: Means
    median: Means
    highest: Means


class Charts:
    """Charts of the streams. Requests at about the same time get the same chart."""

    def __init__(self, streams: Streams) -> None:
        """Args: of whom."""
        self._streams = streams
        self._layouts: dict[tuple[Range, str | None], tuple[float, asyncio.Task[_Layout | None]]] = {}

    async def chart(self, range: Range, ids: Sequence[str], job: str | None = None) -> Chart:
        """The median, lowest and highest step time of all ranks at each time, and the step times of some.

        Args:
            ids: of the ranks to list one by one, the first `MOST_SERIES` of them.
            job: of its ranks; default: of all.
        """
        found = await self._layout(range, job)
        if found is None:
            return Chart(width_s=1e-9, times=[], median=[], lowest=[], highest=[], series=[])
        chosen = [id for id in dict.fromkeys(ids) if id in found.index][:MOST_SERIES]
        return Chart(
            width_s=found.width_ns / 1e9,
            times=found.times,
            median=_numbers(found.median),
            lowest=_numbers(found.lowest),
            highest=_numbers(found.highest),
            series=[Series(id=id, step_ms=_numbers(found.rows[found.index[id]])) for id in chosen],
        )

    async def _layout(self, range: Range, job: str | None) -> _Layout | None:
        now = time.monotonic()
        for key, (since, _) in list(self._layouts.items()):
            if now - since >= FRESH:
                del self._layouts[key]
        if (range, job) not in self._layouts:
            while len(self._layouts) >= _MAX_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            self._layouts[range, job] = now, asyncio.create_task(_lay_out(list(self._streams), range, job))
        return await asyncio.shield(self._layouts[range, job][1])


async def _lay_out(ranks: list[Rank], range: Range, job: str | None) -> _Layout | None:
    """Lays the chart out; `None` if there is no step."""
    sums: dict[str, list[Sums]] = {}
    async for rank in in_slices(ranks):
        its = [stream for stream in rank.streams if job is None or stream.job == job]
        if its:
            sums[rank.id] = [(each.steps.recent if range == "recent" else each.steps.all).sums() for each in its]
    return await asyncio.to_thread(_laid_out, sums, range)


def _laid_out(sums: dict[str, list[Sums]], range: Range) -> _Layout | None:
    width = max((one.width_ns for several in sums.values() for one in several), default=1)
    laid = _over_each_other([*sums.values()], width, range)
    if laid is None:
        return None
    width, first, rows = laid
    used = np.atleast_1d(~np.isnan(rows).all(axis=0))
    if used.sum() > 1 and (first + len(used)) * width > time.time_ns():
        used[-1] = False  # not all of it is there yet: some ranks would be missing
    rows = rows[:, used]
    low, middle, high = _over_ranks(rows)
    return _Layout(
        width_ns=width,
        times=((np.flatnonzero(used) + first + 0.5) * (width / 1e9)).round(3).tolist(),
        rows=rows,
        index={id: number for number, id in enumerate(sums)},
        lowest=low,
        median=middle,
        highest=high,
    )


_Laid = tuple[int, int, Means]
"""Width of a bucket, index of the first, and a row of means in ms for each rank; the last column has a number."""


def _over_each_other(histories: Sequence[Sequence[Sums]], width: int, range: Range) -> _Laid | None:
    """Lays histories over each other, in buckets of the width or, if their times lie far apart, of a multiple of it."""
    while True:
        parts = [[one.means(width) for one in several] for several in histories]
        found = [at for several in parts for at, _ in several if len(at)]
        if not found:
            return None
        first, last = min(int(at[0]) for at in found), max(int(at[-1]) for at in found)
        if range == "recent":
            first = max(first, last - BUCKETS + 1)
        if last - first < BUCKETS:
            break
        width *= 2  # starts of a rank that lie far apart
    rows: Means = np.full((len(histories), last - first + 1), np.nan)
    for number, several in enumerate(parts):
        for at, means in several:  # the latest start last: it is what counts where they overlap
            rows[number, at[at >= first] - first] = means[at >= first] / 1e6
    return width, first, rows


def _over_ranks(rows: Means) -> tuple[Means, Means, Means]:
    """Lowest, median and highest of each column; each has a number."""
    ordered = np.sort(np.ascontiguousarray(rows.T), axis=1)  # what is not a number comes last
    count: NDArray[np.int64] = (~np.isnan(rows)).sum(axis=0)
    column: NDArray[np.int64] = np.arange(len(count))
    middle = (ordered[column, (count - 1) // 2] + ordered[column, count // 2]) / 2
    return ordered[:, 0], middle, ordered[column, count - 1]


def _numbers(values: Means) -> list[float | None]:
    rounded = values.round(3)
    return [None if number != number else number for number in rounded.tolist()]


class HeatmapQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The requested part of the heat map, and its size."""

    job: Annotated[str | None, QueryParameter(max_length=1024)] = None
    rows: Annotated[int, QueryParameter(ge=1, le=1024)] = 512
    """The most rows; several ranks share one if there are more."""
    columns: Annotated[int, QueryParameter(ge=1, le=1024)] = 1000
    """The most columns; several steps share one if there are more."""
    value: Annotated[Literal["own", "whole"], QueryParameter()] = "own"
    """Times without collectives, if these are known, or of whole steps."""
    from_rank: Annotated[int | None, QueryParameter(ge=0, lt=1 << 31)] = None
    """Position of the first rank among those of the job; default: the first."""
    to_rank: Annotated[int | None, QueryParameter(ge=0, lt=1 << 31)] = None
    """Position of the last rank."""
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
