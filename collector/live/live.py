"""The live state of all ranks, put together for those who look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.job_windows import Group, find, newest, seen
from stepscope.collector.live.rank_views import entries, expected, rank_view, start_views
from stepscope.collector.live.step_times import median
from stepscope.collector.live.stream import Amounts
from stepscope.collector.live.streams import Rank, Streams
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
    UploadView,
    WindowView,
)
from stepscope.runtime.version import VERSION

FRESH = 0.5
"""Seconds for which a state is reported again instead of being looked at anew."""


class _Look(msgspec.Struct):
    """A snapshot, and when it was made."""

    number: int
    at_ns: int
    ranks: list[Rank]
    views: list[RankView]
    amounts: Amounts
    by_job: dict[str, Amounts]
    jobs: list[JobEntry]
    snapshots: dict[str | None, Snapshot]
    """By job; of all of them by `None`."""


class Live:
    """Looks at the streams, twice a second at most."""

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
            streams: what to look at.
            downloads: kinds of files that can be downloaded.
            exposed: whether others than this machine can reach the collector without a token or TLS.
            storage: state of the disk; gets the number of evicted events.
            upload: state of the upload.
            nats: state of the connection to NATS.
            parts: background tasks of the collector.
            unwritten: how many lines of the audit could not be written.
            verdicts: what is slow in jobs; `None`: nobody judges that.
        """
        self._verdicts = verdicts
        self._storage, self._upload, self._nats, self._parts, self._unwritten = storage, upload, nats, parts, unwritten
        self._streams, self._downloads = streams, downloads
        self._exposed = exposed
        self._started_ns = time.time_ns()
        self._version = VERSION
        self._latest: _Look | None = None
        self._looked = 0.0

    def snapshot(self, job: str | None = None, *, age: float = FRESH) -> Snapshot:
        """The full state.

        Args:
            job: of the ranks of this job, or of all; of a job that was never seen there is nothing.
            age: seconds for which a state is reported again.
        """
        now = time.monotonic()
        if self._latest is None or now - self._looked >= age:
            self._looked = now
            self._latest = self._look(now, 0 if self._latest is None else self._latest.number + 1)
        look = self._latest
        found = look.snapshots.get(job)
        if found is None:
            found = self._snapshot(look, job)
            if job is None or job in look.by_job:  # anything can be asked for
                look.snapshots[job] = found
        return found

    def jobs(self) -> list[JobEntry]:
        """The jobs that can be chosen."""
        return self.snapshot().jobs or []

    def rank(self, id: str) -> RankDetail | None:
        """A rank with its starts; `None` if there is none of this id."""
        rank = self._streams.ranks.get(id)
        if rank is None:
            return None
        views = {view.id: view for view in self.snapshot().ranks}
        now = time.monotonic()
        view = views.get(id) or rank_view(rank, now, slow=False)
        return RankDetail(rank=view, streams=start_views(rank, now))

    async def windows(self, most: int, job: str | None = None) -> list[WindowView]:
        """The newest windows, of a job or of all."""
        return await asyncio.to_thread(newest, seen(self._streams, most, job), most)

    def window(self, index: int, job: str | None) -> list[Group]:
        """The windows of an index: of one job, or of each that has it."""
        return find(list(self._streams), index, job)

    def _look(self, now: float, number: int) -> _Look:
        ranks = list(self._streams)
        slow = set[tuple[str, int | None]]() if self._verdicts is None else self._verdicts.slow_ranks()
        views = [rank_view(rank, now, slow=(rank.latest.job, rank.latest.run.rank) in slow) for rank in ranks]
        amounts, by_job = self._streams.totals()
        jobs = entries(ranks, views)
        return _Look(number, time.time_ns(), ranks, views, amounts, by_job, jobs, {})

    def _snapshot(self, look: _Look, job: str | None) -> Snapshot:
        ranks, views, amounts = look.ranks, look.views, look.amounts
        if job is not None:
            at = [index for index, view in enumerate(look.views) if view.job_id == job]
            ranks, views = [look.ranks[index] for index in at], [look.views[index] for index in at]
            amounts = look.by_job.get(job, Amounts())
        return Snapshot(
            number=look.number,
            at_ns=look.at_ns,
            full=True,
            job=self._job(job, ranks, views, amounts, look.amounts.discarded),
            jobs=look.jobs,
            ranks=views,
            gone=[],
        )

    def _job(
        self,
        job: str | None,
        ranks: Sequence[Rank],
        views: Sequence[RankView],
        amounts: Amounts,
        all_discarded: int,
    ) -> JobView:
        states = [view.state for view in views]
        medians = [view.step_ms for view in views if view.step_ms is not None]
        size, absent = expected(ranks)
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
            restoring=len(self._streams.unread) + len(self._streams.uncounted),
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
