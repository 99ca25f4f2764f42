"""The live state of all ranks, put together for those who look."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np

from stepscope.collector.downloads import Downloads
from stepscope.collector.slowest import FEWEST, STEPS, Slow, median, slowest
from stepscope.collector.stream import State, Stream
from stepscope.collector.streams import Rank, Streams
from stepscope.collector.stretches import Times
from stepscope.collector.views import (
    JobView,
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
from stepscope.collector.windows import WindowFacts

_Group = list[tuple[Stream, WindowFacts]]

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
    ) -> None:
        """Args: what to look at; what can be downloaded; whether the collector is reachable by others unprotected; what is
        known of its disk, and of what it uploads."""
        self._storage, self._upload = storage, upload
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
        """The newest windows of the latest starts, those of one index together."""
        newest = [(rank.latest, list(itertools.islice(rank.latest.windows, most))) for rank in self._streams]
        return await asyncio.to_thread(_together, newest, most)

    def window(self, index: int) -> WindowDetail | None:
        """The windows of one index, rank by rank; `None` if no rank has one."""
        group: _Group = []
        ranks: list[RankWindow] = []
        for rank in self._streams:
            window = next((one for one in rank.latest.windows if one.index == index), None)
            if window is not None:
                group.append((rank.latest, window))
                ranks.append(RankWindow(rank=rank.id, stream=rank.latest.id, window=window))
        return WindowDetail(window=_window(index, group), ranks=ranks) if group else None

    def _look(self, now: float, number: int) -> Snapshot:
        ranks = list(self._streams)
        times, own = comparable(_steps(ranks, now), FEWEST)
        slow = {one.id: one for one in slowest(times)}
        views = [_view(rank, now, slow.get(rank.id)) for rank in ranks]
        return Snapshot(
            number=number, at_ns=time.time_ns(), full=True, job=self._job(ranks, views, slow, own), ranks=views, gone=[]
        )

    def _job(self, ranks: list[Rank], views: list[RankView], slow: dict[str, Slow], own: bool) -> JobView:
        by_id = {view.id: view for view in views}
        states = [view.state for view in views]
        sizes = [size for rank in ranks if (size := rank.latest.run.world_size) is not None]
        seen = {view.rank for view in views}
        medians = [view.step_ms for view in views if view.step_ms is not None]
        size = max(sizes, default=None)
        absent: list[int] = []
        for number in range(min(size or 0, 1 << 20)):
            if number not in seen:
                absent.append(number)
                if len(absent) == _MOST_ABSENT:
                    break
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
            slowest=[
                SlowRank(
                    id=one.id,
                    rank=by_id[one.id].rank,
                    host=by_id[one.id].host,
                    step_ms=round(one.median_ns / 1e6, 3),
                    others_ms=round(one.others_ns / 1e6, 3),
                    factor=round(min(one.factor, 1e6), 2),
                    own=own,
                )
                for one in list(slow.values())[:_MOST_SLOW]
            ],
            rank_files=sorted(self._downloads.of_rank),
            merged_files=sorted(self._downloads.of_all),
            exposed=self._exposed,
            storage=self._storage(),
            upload=self._upload(),
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


def _view(rank: Rank, now: float, slow: Slow | None) -> RankView:
    stream = rank.latest
    run, state = stream.run, stream.state(now)
    _, starts, durations = stream.steps.newest(STEPS)
    return RankView(
        id=rank.id,
        job=run.name[:200],
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
        slow_factor=round(min(slow.factor, 1e6), 2) if slow is not None else None,
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


def _window(index: int, group: _Group) -> WindowView:
    windows = [window for _, window in group]
    return WindowView(
        index=index,
        started_ns=min(window.start_ns + stream.clock.now.offset_ns for stream, window in group),
        ranks=len(windows),
        open=sum(window.open for window in windows),
        incomplete=sum(not window.open and not window.complete for window in windows),
        steps=max(window.steps for window in windows),
        events=sum(window.events for window in windows),
        dropped=sum(window.dropped for window in windows),
        discarded=sum(window.discarded for window in windows),
    )


def _together(newest: list[tuple[Stream, list[WindowFacts]]], most: int) -> list[WindowView]:
    found: dict[int, _Group] = {}
    for stream, windows in newest:
        for window in windows:
            found.setdefault(window.index, []).append((stream, window))
    views = [_window(index, found[index]) for index in found]
    return sorted(views, key=lambda view: (view.started_ns, view.index), reverse=True)[:most]
