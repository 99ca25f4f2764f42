"""The streams that the collector knows, their ranks and jobs, and the queue in which their frames are decoded."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from stepscope.collector.errors import FullError
from stepscope.collector.files.blocking_pool import uncancelled
from stepscope.collector.files.stream_file import NewFrames
from stepscope.collector.live.stream import Amounts, Frame, Process, Stream
from stepscope.exporters.stream.protocol import Hello, StepSummary
from stepscope.runtime.display.text_table import printable, shorten
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal.records import RunRecord

log = logging.getLogger("stepscope.collector")

MAX_REMOTE = 16_384
"""Streams of other collectors that are shown; if there are more, those with the oldest news are forgotten."""
MOST_JOBS = 4096
"""Jobs of which the sums over forgotten streams are remembered; the sum over all jobs includes the others."""
_NOTHING = Amounts()
_WIDEST = 60
"""Most columns of a name in the log."""

T = TypeVar("T")

SLICE = 0.004
"""Seconds after which the other work of the loop has its turn."""


class Rank:
    """A rank of a job, over all its starts; a process without a rank stands for itself."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.streams: list[Stream] = []
        """The starts in the order of their begin, which may be long before they came, as a journal can be delivered at any
        time."""
        self.forgotten = 0
        """Number of starts whose streams were forgotten."""

    def add(self, stream: Stream) -> None:
        """Adds a start, which is not necessarily the latest."""
        bisect.insort(self.streams, stream, key=_began)
        stream.superseded = True
        if len(self.streams) > 1:
            self.streams[-2].superseded = True
        self.latest.superseded = False

    def remove(self, stream: Stream) -> None:
        """Forgets a start."""
        self.streams.remove(stream)
        self.forgotten += 1
        if self.streams:
            self.latest.superseded = False

    @property
    def count(self) -> int:
        """Times that it was started, as far as the collector saw."""
        return self.forgotten + len(self.streams)

    def starts(self) -> Iterator[tuple[int, Stream]]:
        """Its streams, each with the number of its start, from 1."""
        yield from enumerate(self.streams, self.forgotten + 1)

    @property
    def latest(self) -> Stream:
        """The stream of its newest start."""
        return self.streams[-1]

    @property
    def others(self) -> list[Stream]:
        """Processes beside the latest that are this rank as well: they are connected, and compared clocks after it had begun.

        So they are of another run, or two processes were given one rank; a start before leaves when the next one comes.
        """
        latest, began = self.latest, self.latest.clock.first
        if latest.connection is None or began is None:
            return []
        process = latest.run.host, latest.run.pid
        there = (one for one in self.streams[:-1] if one.connection is not None and one.clock.last > began)
        return [one for one in there if (one.run.host, one.run.pid) != process]


class Streams:
    """All streams by id, and by rank. Beyond twice the limit of connections those that are over are forgotten, oldest first:
    their files stay."""

    def __init__(self, limit: int) -> None:
        """Args: connections at once."""
        self._limit = limit
        self.all: dict[str, Stream] = {}
        self.ranks: dict[str, Rank] = {}
        self.unread: dict[str, Path] = {}
        """Files of streams whose state is not back yet, by their ids. The last is read first. No segment of them may be evicted: it would
        not be counted."""
        self.decode_queue = DecodeQueue()
        """Decodes the frames of all streams."""
        self.summary_lock = asyncio.Lock()
        """Taken for one turn of the loop by the connection that brings a large summary."""
        self.connected_now = 0
        """Streams that have a connection."""
        self._looks_beyond = 2 * limit
        """With more streams than this, the collector looks for some that it can forget."""
        self._past: OrderedDict[str, Amounts] = OrderedDict()
        """Sums over streams that were forgotten, by job."""
        self._past_of_all = _NOTHING

    @contextlib.contextmanager
    def connected(self, hello: Hello, connection: Process) -> Generator[Stream]:
        """A stream's connection is there inside; begin and end are in the log. Raises `FormatError` if the stream has
        one already, and `FullError` if there are too many."""
        stream = self.all.get(hello.stream)
        if stream is not None and stream.connection is not None:
            raise FormatError("this stream is connected already")
        if self.connected_now >= self._limit:
            raise FullError(f"{self._limit} streams are connected, which is the limit")
        if stream is None:
            stream = Stream(hello.stream, hello.run)
            stream.restoring = hello.stream in self.unread
            self.add(stream)
        stream.connection = connection
        stream.sends_summaries, stream.heard_at = hello.summaries, time.monotonic()
        self.connected_now += 1
        log.info("%s is connected: stream %s", _owner_text(stream.run), stream.id)
        try:
            yield stream
        finally:
            stream.connection = None
            self.connected_now -= 1
            log.info("%s %s", _owner_text(stream.run), "has ended" if stream.ended else "has lost its connection")

    def add(self, stream: Stream) -> None:
        """Adds a stream that is not known yet."""
        self.all[stream.id] = stream
        id = rank_id(stream.run, stream.id)
        self.ranks.setdefault(id, Rank(id)).add(stream)
        self._forget()

    def seen_first(self, stream: Stream, born_ns: int) -> None:
        """Notes that a stream was seen earlier than was known."""
        if born_ns < stream.born_ns:
            rank = self.ranks[rank_id(stream.run, stream.id)]
            rank.streams.remove(stream)
            stream.born_ns = born_ns
            rank.add(stream)

    def add_shared_summary(self, hello: Hello, summary: StepSummary, process: Process | None) -> None:
        """Adds facts of steps that all collectors of the team get. A stream that another collector takes is shown here, too.

        Args:
            process: the way to the process; `None`: it takes no commands.
        """
        stream = self.all.get(hello.stream)
        if stream is None:
            stream = Stream(hello.stream, hello.run)
            stream.remote = True
            self.add(stream)
        stream.sends_summaries = True
        stream.process = process
        stream.add_shared_summary(summary)

    def restore_first(self, streams: Sequence[str]) -> None:
        """Moves streams to the front of those that are still to be read."""
        for stream in reversed(streams):
            if stream in self.unread:
                self.unread[stream] = self.unread.pop(stream)

    def deleted(self, stream: str) -> None:
        """Forgets a stream that was deleted whole; its events count as evicted."""
        self.unread.pop(stream, None)
        ended = self.all.get(stream)
        if ended is not None and ended.connection is None:
            ended.windows.discarded = ended.events
            self._remove(ended)

    async def totals(self) -> tuple[Amounts, dict[str, Amounts]]:
        """Sums of all streams since the start of the collector, over all jobs and by job. They never fall: a stream goes on counting
        when it is forgotten."""
        of_all, by_job = self._past_of_all, dict(self._past)
        async for stream in in_slices(list(self.all.values())):
            amounts = stream.amounts
            of_all += amounts
            by_job[stream.job] = by_job.get(stream.job, _NOTHING) + amounts
        return of_all, by_job

    def __iter__(self) -> Iterator[Rank]:
        """Ranks in the order of their numbers."""
        return iter(sorted(self.ranks.values(), key=_order))

    def _forget(self) -> None:
        """Forgets streams that nothing was heard of for longest, if there are too many, and an eighth more: all are looked at seldom."""
        if len(self.all) <= self._looks_beyond:
            return
        own = [one for one in self.all.values() if not one.remote]
        remote = [one for one in self.all.values() if one.remote]
        over = [one for one in own if one.connection is None]
        for group, surplus, limit in (
            (over, len(own) - 2 * self._limit, self._limit),
            (remote, len(remote) - MAX_REMOTE, MAX_REMOTE),
        ):
            if surplus > 0:
                for stream in sorted(group, key=lambda one: one.seen)[: surplus + limit // 8]:
                    self._remove(stream)
        self._looks_beyond = max(2 * self._limit, len(self.all) + self._limit // 8)

    def _remove(self, stream: Stream) -> None:
        del self.all[stream.id]
        amounts = stream.amounts
        self._past_of_all += amounts
        self._past[stream.job] = self._past.get(stream.job, _NOTHING) + amounts
        self._past.move_to_end(stream.job)
        if len(self._past) > MOST_JOBS:
            self._past.popitem(last=False)
        rank = self.ranks[rank_id(stream.run, stream.id)]
        rank.remove(stream)
        if not rank.streams:
            del self.ranks[rank.id]


def _began(stream: Stream) -> tuple[int, int, str]:
    return min(stream.run.anchor.wall_ns, stream.born_ns), stream.born_ns, stream.id


def _owner_text(run: RunRecord) -> str:
    """A process in words."""
    job, host = (shorten(printable(text), _WIDEST) for text in (run.job or run.name, run.host))
    rank = f"job {job}" if run.rank is None else f"rank {run.rank} of job {job}"
    return f"{rank} (pid {run.pid} on {host})"


def rank_id(run: RunRecord, stream: str) -> str:
    """The name of a rank in addresses: each start of the rank has the same, and no other rank (`job_of`) has it."""
    # No part has a tilde, so the first ends there.
    job = f"{_slug(run.job)}~" if run.job else ""
    if run.rank is None:
        return job + _slug(f"{run.name}-{run.host}-{run.pid}-{stream[:6]}")
    of = "" if run.job or run.world_size is None else f"of{run.world_size}"
    return job + _slug(f"{run.name}-{run.rank}{of}")


def _slug(text: str) -> str:
    plain = re.sub("[^A-Za-z0-9_.-]", "_", text)[:80]
    # Two names must not become one by what was replaced.
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def _order(rank: Rank) -> tuple[str, str, bool, int, str]:
    run = rank.latest.run
    return rank.latest.job, run.name, run.rank is None, run.rank or 0, rank.id


class DecodeQueue:
    """Has streams decode the frames that were added to them. For a stream that is behind there is a task until all of its frames
    are decoded, whatever becomes of the connection. There is one slice at a time, whatever the number of streams. Methods are
    for the loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tasks: dict[Stream, asyncio.Task[None]] = {}

    def add(self, stream: Stream, new: NewFrames) -> None:
        """Adds frames that are written: `Stream.add_frames`. Before more are added, `drained` must have returned."""
        try:
            if new.missing:
                stream.add_missing(new.missing, new.next - len(new.frames))
            stream.add_frames(new.frames, len(new.data), new.next)
        finally:
            self._begin(stream)

    async def add_restored(self, stream: Stream, frames: Sequence[Frame], events: int, next: int) -> None:
        """Adds frames that were read from its file: `Stream.add_restored`. Returns when they are decoded."""
        stream.add_restored(frames, events, next)
        self._begin(stream)
        await self.drained(stream)

    async def drained(self, stream: Stream) -> None:
        """Returns when all frames of a stream are decoded."""
        task = self._tasks.get(stream)
        if task is not None:
            await uncancelled(task)

    def _begin(self, stream: Stream) -> None:
        if stream.behind and stream not in self._tasks:
            self._tasks[stream] = asyncio.create_task(self._decode(stream))

    async def _decode(self, stream: Stream) -> None:
        try:
            while stream.behind:
                async with self._turn:
                    try:
                        stream.decode(SLICE)
                    except Exception:  # a fault of ours in one frame must not keep the others from being counted
                        log.exception("what was written of a stream is not counted")
                    await asyncio.sleep(0)
        finally:
            del self._tasks[stream]


async def in_slices(items: Iterable[T]) -> AsyncGenerator[T]:
    """Yields items for work of much less than `SLICE` each. Anything may change between two of them."""
    end = time.perf_counter() + SLICE
    for item in items:
        yield item
        if time.perf_counter() >= end:
            await asyncio.sleep(0)
            end = time.perf_counter() + SLICE
