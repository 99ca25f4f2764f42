"""The live state of all ranks at one moment, and views of jobs, ranks and starts."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.job_windows import Group, find, newest, starts_of
from stepscope.collector.live.step_times import SHOWN, communicates, median
from stepscope.collector.live.stream import Amounts, State, Stream
from stepscope.collector.live.streams import Rank, Streams, in_slices
from stepscope.collector.live.verdicts import Verdicts
from stepscope.collector.live.views import (
    JobEntry,
    JobView,
    NatsView,
    PartView,
    RankDetail,
    RankView,
    Snapshot,
    StorageView,
    StreamView,
    UploadView,
    WindowView,
)
from stepscope.runtime.session.ranks import usual_size
from stepscope.runtime.version import VERSION

FRESH = 0.5
"""Seconds for which a state is reported again without a new look."""

MOST_JOBS = 200
"""Jobs among which the page offers a choice."""
_MOST_ABSENT = 100
_MOST_OTHERS = 8


class _State(msgspec.Struct):
    """The state of all ranks at one moment, of which snapshots are made."""

    number: int
    at_ns: int
    latest: list[Stream]
    """The latest stream of each rank."""
    views: list[RankView]
    """Views of the same ranks."""
    amounts: Amounts
    by_job: dict[str, Amounts]
    jobs: list[JobEntry]
    snapshots: dict[str | None, Snapshot]
    """Snapshots by job; under `None` that of all jobs."""


class Live:
    """Looks at the streams, twice a second at most, in slices, as there may be 10,000 ranks."""

    def __init__(
        self,
        streams: Streams,
        downloads: Downloads,
        *,
        exposed: bool,
        storage: Callable[[int], StorageView | None] = lambda discarded: None,
        upload: Callable[[], UploadView | None] = lambda: None,
        nats: Callable[[], NatsView | None] = lambda: None,
        parts: Callable[[], list[PartView]] = list,
        unwritten: Callable[[], int] = int,
        verdicts: Verdicts | None = None,
    ) -> None:
        """
        Args:
            exposed: whether others than this machine can reach the collector without a token or TLS.
            storage: state of the disk; gets the number of evicted events.
            upload: state of the upload.
            verdicts: what is slow in jobs; `None`: nobody judges that.
        """
        self._verdicts = verdicts
        self._storage, self._upload, self._nats, self._parts, self._unwritten = storage, upload, nats, parts, unwritten
        self._streams, self._downloads = streams, downloads
        self._exposed = exposed
        self._started_ns = time.time_ns()
        self._version = VERSION
        self._latest: _State | None = None
        self._looked = 0.0
        self._lock = asyncio.Lock()
        """Guards the look at the streams."""
        self._windows_lock = asyncio.Lock()
        """Lets one thread at a time put windows together."""

    async def snapshot(self, job: str | None = None, *, age: float = FRESH) -> Snapshot:
        """The full state.

        Args:
            job: of the ranks of this job, or of all; of a job that was never seen there is nothing.
            age: seconds for which a state is reported again.
        """
        async with self._lock:
            state = self._latest
            if state is None or time.monotonic() - self._looked >= age:
                state = await self._look(0 if state is None else state.number + 1)
                self._looked, self._latest = time.monotonic(), state
        found = state.snapshots.get(job)
        if found is None:
            found = self._snapshot(state, job)
            if job is None or job in state.by_job:  # anything can be asked for
                state.snapshots[job] = found
        return found

    async def jobs(self) -> list[JobEntry]:
        """The jobs that can be chosen."""
        return (await self.snapshot()).jobs or []

    async def rank(self, id: str) -> RankDetail | None:
        """A rank with its starts; `None` if there is none of this id."""
        snapshot = await self.snapshot()
        rank = self._streams.ranks.get(id)
        if rank is None:
            return None
        now = time.monotonic()
        view = next((view for view in snapshot.ranks if view.id == id), None) or rank_view(rank, now, slow=False)
        return RankDetail(rank=view, streams=start_views(rank, now))

    async def windows(self, most: int, job: str | None = None) -> list[WindowView]:
        """The newest windows, of a job or of all."""
        async with self._windows_lock:
            starts = [start async for start in in_slices(starts_of(list(self._streams), job))]
            return await asyncio.to_thread(newest, starts, most, time.time_ns())

    async def window(self, index: int, job: str | None) -> list[Group]:
        """The windows of an index: of one job, or of each that has it."""
        async with self._windows_lock:
            starts = [start async for start in in_slices(starts_of(list(self._streams), job))]
            return await asyncio.to_thread(find, starts, index)

    async def _look(self, number: int) -> _State:
        now, ranks = time.monotonic(), list(self._streams)
        slow = set[tuple[str, str, int | None]]() if self._verdicts is None else self._verdicts.slow_ranks()
        latest: list[Stream] = []
        views: list[RankView] = []
        async for rank in in_slices(ranks):
            if rank.streams:  # else it was forgotten meanwhile
                latest.append(rank.latest)
                run = rank.latest.run
                views.append(rank_view(rank, now, slow=(rank.latest.job, run.name, run.rank) in slow))
        amounts, by_job = await self._streams.totals()
        jobs = entries(ranks, views)
        await asyncio.sleep(0)
        return _State(number, time.time_ns(), latest, views, amounts, by_job, jobs, {})

    def _snapshot(self, state: _State, job: str | None) -> Snapshot:
        latest, views, amounts = state.latest, state.views, state.amounts
        if job is not None:
            at = [index for index, view in enumerate(views) if view.job_id == job]
            latest, views = [latest[index] for index in at], [views[index] for index in at]
            amounts = state.by_job.get(job, Amounts())
        return Snapshot(
            number=state.number,
            at_ns=state.at_ns,
            full=True,
            job=self._job(job, latest, views, amounts, state.amounts.discarded),
            jobs=state.jobs,
            ranks=views,
            gone=[],
        )

    def _job(
        self,
        job: str | None,
        latest: Sequence[Stream],
        views: Sequence[RankView],
        amounts: Amounts,
        all_discarded: int,
    ) -> JobView:
        states = [view.state for view in views]
        medians = [view.step_ms for view in views if view.step_ms is not None]
        size, absent = expected(latest)
        return JobView(
            jobs=sorted({view.job for view in views})[:20],
            version=self._version,
            started_ns=self._started_ns,
            ranks=len(views),
            world_size=size,
            absent=absent,
            connected=states.count("connected"),
            silent=states.count("silent"),
            ended=states.count("ended"),
            died=states.count("died"),
            restoring=len(self._streams.unread),
            events=amounts.events,
            events_per_s=round(sum(view.events_per_s for view in views), 1),
            bytes=amounts.bytes,
            bytes_per_s=round(sum(view.bytes_per_s for view in views), 1),
            dropped=amounts.dropped,
            step_ms=round(median(np.array(medians)), 3) if medians else None,
            slow=sum(view.slow for view in views),
            verdicts=[] if self._verdicts is None else self._verdicts.of(job),
            shared=sum(bool(view.others) for view in views),
            rank_files=sorted(self._downloads.of_rank),
            merged_files=sorted(self._downloads.of_all),
            exposed=self._exposed,
            storage=self._storage(all_discarded),
            upload=self._upload(),
            nats=self._nats(),
            parts=self._parts(),
            unwritten_lines=self._unwritten(),
        )


def rank_view(rank: Rank, now: float, *, slow: bool) -> RankView:
    """A rank at one moment.

    Args:
        now: a monotonic time in seconds.
        slow: whether it holds the others up.
    """
    stream = rank.latest
    steps = stream.steps.newest(SHOWN)
    own_ms = steps["own_ms"][steps["own_ms"] >= 0]
    run, state, shares = stream.run, stream.state(now), stream.shares
    return RankView(
        id=rank.id,
        job=run.name[:200],
        job_id=stream.job,
        rank=run.rank,
        host=run.host[:200],
        pid=run.pid,
        state=state.value,
        silent_s=0.0 if state in (State.ENDED, State.CONNECTED) else round(now - stream.seen, 1),
        incarnation=rank.count,
        stream=stream.id,
        step=stream.steps.last,
        step_ms=_median(steps["ms"]),
        own_ms=_median(own_ms) if communicates(steps) else None,
        last_step_ms=round(float(steps["ms"][-1]), 3) if len(steps) else None,
        events=stream.events,
        events_per_s=round(stream.event_rate.per_second(now), 1),
        bytes=stream.bytes,
        bytes_per_s=round(stream.byte_rate.per_second(now), 1),
        dropped=stream.lost,
        missing_frames=stream.missing,
        clock_bound_us=None if (bound := stream.clock.bound_ns) is None else round(bound / 1e3, 1),
        windows=stream.windows.count,
        slow=slow,
        cpu_share=shares.cpu,
        data_share=shares.data,
        communication_share=shares.communication,
        resident_bytes=shares.resident_bytes,
        restoring=stream.restoring,
        others=[f"{one.run.host[:200]} (pid {one.run.pid})" for one in rank.others[:_MOST_OTHERS]],
    )


def start_views(rank: Rank, now: float) -> list[StreamView]:
    """The starts of a rank, the latest first."""
    return [_start(number, stream, now) for number, stream in rank.starts()][::-1]


def expected(latest: Iterable[Stream]) -> tuple[int | None, list[int]]:
    """The number of ranks that there should be, and the first ones of each job that were never seen.

    Args:
        latest: the latest stream of each rank.
    """
    jobs: dict[str, list[Stream]] = {}
    for stream in latest:
        jobs.setdefault(stream.job, []).append(stream)
    size, absent = 0, set[int]()
    for its in jobs.values():
        numbers = {stream.run.rank for stream in its}
        most = usual_size(stream.run.world_size for stream in its)
        missing = (number for number in range(most) if number not in numbers)
        size += most
        absent.update(itertools.islice(missing, _MOST_ABSENT))
    return size or None, sorted(absent)[:_MOST_ABSENT]


def entries(ranks: Iterable[Rank], views: Iterable[RankView]) -> list[JobEntry]:
    """The jobs that can be chosen, by their ids: if there are very many, the ones with the newest data."""
    seen: dict[str, float] = {}
    for rank in ranks:
        for stream in rank.streams:
            seen[stream.job] = max(seen.get(stream.job, stream.seen), stream.seen)
    latest = sorted(seen, key=lambda job: -seen[job])[:MOST_JOBS]
    its: dict[str, list[RankView]] = {job: [] for job in latest}
    for view in views:
        if view.job_id in its:
            its[view.job_id].append(view)
    return [_entry(job, its[job]) for job in sorted(its)]


def _entry(job: str, views: Sequence[RankView]) -> JobEntry:
    states = [view.state for view in views]
    return JobEntry(
        id=job,
        ranks=len(views),
        connected=states.count("connected"),
        died=states.count("died"),
        slow=sum(view.slow for view in views),
    )


def _start(number: int, stream: Stream, now: float) -> StreamView:
    return StreamView(
        stream=stream.id,
        start=number,
        state=stream.state(now).value,
        host=stream.run.host,
        pid=stream.run.pid,
        seen_first_ns=stream.born_ns,
        events=stream.events,
        bytes=stream.bytes,
        dropped=dict(stream.dropped),
        missing_frames=stream.missing,
        undecodable_frames=stream.undecodable,
        left_out_steps=stream.left_out_steps,
        left_out_records=stream.left_out_records,
        evicted_segments=len(stream.windows.evicted),
        evicted_events=stream.windows.discarded,
        evicted_bytes=stream.windows.discarded_bytes,
        windows=list(stream.windows),
    )


def _median(times: NDArray[np.float32]) -> float | None:
    return round(median(times), 3) if len(times) else None
