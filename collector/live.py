"""The live state of all ranks, put together for those who look."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np

from stepscope.collector.downloads import Downloads
from stepscope.collector.job_windows import Group, Seen, find, seen
from stepscope.collector.slowest import FEWEST, STEPS, median, slowest
from stepscope.collector.stream import State, Stream
from stepscope.collector.streams import Rank, Streams
from stepscope.collector.stretches import Times
from stepscope.collector.views import (
    JobView,
    NatsView,
    RankDetail,
    RankView,
    RankWindow,
    SlowRank,
    Snapshot,
    StorageView,
    StreamView,
    UploadView,
    WindowDetail,
    WindowView,
)
from stepscope.collector.waiting import comparable

FRESH = 0.5
"""Seconds for which a state is told again instead of being looked at anew."""
_MOST_ABSENT = 100
_MOST_SLOW = 10


class Live:
    """Looks at the streams, twice a second at most."""

    def __init__(
        self,
        streams: Streams,
        downloads: Downloads,
        *,
        exposed: bool,
        storage: Callable[[], StorageView | None] = lambda: None,
        upload: Callable[[], UploadView | None] = lambda: None,
        nats: Callable[[], NatsView | None] = lambda: None,
    ) -> None:
        """Args: what to look at; what can be downloaded; whether the collector is reachable by others unprotected; what is
        known of its disk, of what it uploads, and of what it takes from NATS."""
        self._storage, self._upload, self._nats = storage, upload, nats
        self._streams, self._downloads = streams, downloads
        self._exposed = exposed
        self._started_ns = time.time_ns()
        self._version = version("stepscope")
        self._latest: Snapshot | None = None
        self._looked = 0.0

    def snapshot(self) -> Snapshot:
        """The full state, at most `FRESH` seconds old."""
        now = time.monotonic()
        if self._latest is None or now - self._looked >= FRESH:
            self._looked = now
            self._latest = self._look(now, 0 if self._latest is None else self._latest.number + 1)
        return self._latest

    def rank(self, id: str) -> RankDetail | None:
        """A rank with its starts; `None` if there is none of this id."""
        rank = self._streams.ranks.get(id)
        if rank is None:
            return None
        known = {view.id: view for view in self.snapshot().ranks}
        now = time.monotonic()
        view = known.get(id) or _view(rank, now, None)
        return RankDetail(rank=view, streams=[_stream(one, now) for one in reversed(rank.streams)])

    async def windows(self, most: int) -> list[WindowView]:
        """The newest windows of all jobs."""
        return await asyncio.to_thread(_newest, seen(self._streams, most), most)

    def window(self, index: int, job: str | None) -> list[Group]:
        """The windows of an index: of one job, or of each that has it."""
        return find(list(self._streams), index, job)

    def _look(self, now: float, number: int) -> Snapshot:
        ranks = list(self._streams)
        slow = {one.id: one for one in _judged(ranks, now)}
        views = [_view(rank, now, slow.get(rank.id)) for rank in ranks]
        return Snapshot(
            number=number, at_ns=time.time_ns(), full=True, job=self._job(ranks, views, slow), ranks=views, gone=[]
        )

    def _job(self, ranks: list[Rank], views: list[RankView], slow: dict[str, SlowRank]) -> JobView:
        states = [view.state for view in views]
        medians = [view.step_ms for view in views if view.step_ms is not None]
        size, absent = _expected(ranks)
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
            events=sum(stream.events for stream in self._streams.all.values()),
            events_per_s=round(sum(view.events_per_s for view in views), 1),
            bytes=sum(stream.bytes for stream in self._streams.all.values()),
            bytes_per_s=round(sum(view.bytes_per_s for view in views), 1),
            dropped=sum(stream.dropped.total() for stream in self._streams.all.values()),
            step_ms=round(median(np.array(medians)), 3) if medians else None,
            slowest=list(slow.values())[:_MOST_SLOW],
            rank_files=sorted(self._downloads.of_rank),
            merged_files=sorted(self._downloads.of_all),
            exposed=self._exposed,
            storage=self._storage(),
            upload=self._upload(),
            nats=self._nats(),
        )


def _steps(ranks: list[Rank], now: float) -> dict[str, tuple[Times, Times]]:
    """Times of the newest steps of the ranks, but for those that have died, and what of them was their own."""
    found: dict[str, tuple[Times, Times]] = {}
    for rank in ranks:
        if rank.latest.state(now) is not State.DIED:
            _, starts, durations = rank.latest.steps.newest(STEPS)
            found[rank.id] = durations, rank.latest.waiting.own(starts, durations)
    return found


def _median(times: Times) -> float | None:
    """In ms."""
    return round(median(times) / 1e6, 3) if len(times) else None


def _view(rank: Rank, now: float, slow: SlowRank | None) -> RankView:
    stream = rank.latest
    run, state = stream.run, stream.state(now)
    _, starts, durations = stream.steps.newest(STEPS)
    return RankView(
        id=rank.id,
        job=run.name[:200],
        job_id=stream.job,
        rank=run.rank,
        host=run.host[:200],
        pid=run.pid,
        state=state.value,
        silent_s=0.0 if state in (State.ENDED, State.CONNECTED) else round(now - stream.seen, 1),
        incarnation=len(rank.streams),
        stream=stream.id,
        step=stream.steps.last,
        step_ms=_median(durations),
        own_ms=_median(stream.waiting.own(starts, durations)),
        last_step_ms=round(float(durations[-1]) / 1e6, 3) if len(durations) else None,
        events=stream.events,
        events_per_s=round(stream.event_rate.per_second(now), 1),
        bytes=stream.bytes,
        bytes_per_s=round(stream.byte_rate.per_second(now), 1),
        dropped=stream.dropped.total(),
        missing_frames=stream.missing,
        clock_bound_us=None if (bound := stream.clock.now.bound_ns) is None else round(bound / 1e3, 1),
        windows=stream.windows.count,
        slow_factor=None if slow is None else slow.factor,
        restoring=stream.restoring,
    )


def _stream(stream: Stream, now: float) -> StreamView:
    return StreamView(
        stream=stream.id,
        state=stream.state(now).value,
        host=stream.run.host,
        pid=stream.run.pid,
        seen_first_ns=stream.born_ns,
        events=stream.events,
        bytes=stream.bytes,
        dropped=dict(stream.dropped),
        missing_frames=stream.missing,
        undecodable_frames=stream.undecodable,
        windows=list(stream.windows),
    )


def detail(group: Group) -> WindowDetail:
    """A window, rank by rank."""
    rows = [RankWindow(rank=row.rank, start=row.start, stream=row.stream.id, window=row.window) for row in group.rows]
    return WindowDetail(window=_window(group), ranks=rows)


def _window(group: Group) -> WindowView:
    windows, latest = [row.window for row in group.rows], [row.window for row in group.latest]
    return WindowView(
        job_id=group.job,
        index=group.index,
        started_ns=min(row.window.start_ns + row.stream.clock.now.offset_ns for row in group.rows),
        ranks=len(latest),
        open=sum(window.open for window in latest),
        incomplete=sum(not window.open and not window.complete for window in latest),
        steps=max(window.steps for window in windows),
        events=sum(window.events for window in windows),
        dropped=sum(window.dropped for window in windows),
        discarded=sum(window.discarded for window in windows),
    )


def _newest(found: dict[str, Seen], most: int) -> list[WindowView]:
    views = [_window(group) for job, its in found.items() for group in its.groups(job)]
    return sorted(views, key=lambda view: (view.started_ns, view.index), reverse=True)[:most]


def _by_job(ranks: list[Rank]) -> list[list[Rank]]:
    jobs: dict[str, list[Rank]] = {}
    for rank in ranks:
        jobs.setdefault(rank.latest.job, []).append(rank)
    return list(jobs.values())


def _judged(ranks: list[Rank], now: float) -> list[SlowRank]:
    """Those who hold the others of their job up, the slowest first."""
    found: list[SlowRank] = []
    for its in _by_job(ranks):
        by_id = {rank.id: rank.latest.run for rank in its}
        times, own = comparable(_steps(its, now), FEWEST)
        found += [
            SlowRank(
                id=one.id,
                rank=by_id[one.id].rank,
                host=by_id[one.id].host[:200],
                step_ms=round(one.median_ns / 1e6, 3),
                others_ms=round(one.others_ns / 1e6, 3),
                factor=round(min(one.factor, 1e6), 2),
                own=own,
            )
            for one in slowest(times)
        ]
    return sorted(found, key=lambda one: -one.step_ms)


def _expected(ranks: list[Rank]) -> tuple[int | None, list[int]]:
    """How many ranks there should be, and which of them were never seen, the first of each job."""
    size, absent = 0, set[int]()
    for its in _by_job(ranks):
        numbers = {rank.latest.run.rank for rank in its}
        most = max((rank.latest.run.world_size or 0 for rank in its), default=0)
        missing = (number for number in range(min(most, 1 << 20)) if number not in numbers)
        size += most
        absent.update(itertools.islice(missing, _MOST_ABSENT))
    return size or None, sorted(absent)[:_MOST_ABSENT]
