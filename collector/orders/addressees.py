"""Whom an order is for: the connected processes of one job, and which of its ranks cannot be given any."""

from __future__ import annotations

import time
from typing import NamedTuple

from stepscope.collector.live.stream import Process, State, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.orders.order import WindowOrder
from stepscope.collector.problems import ProblemError
from stepscope.runtime.session.ranks import missing_ranges, ranges_text, ranks_text, usual_size

NEEDED = "trace(control=Control(collector=True))"


class Target(NamedTuple):
    """A process that takes commands."""

    id: str
    """Of its rank, as in `/v1/ranks`."""
    stream: Stream
    process: Process

    @property
    def rank(self) -> int:
        """Its rank; one without counts as rank 0."""
        return self.stream.run.rank or 0


class Addressees(NamedTuple):
    """Those of an order."""

    targets: list[Target]
    """Processes that can be asked, one at least."""
    lacking: str
    """Which ranks that are meant cannot be asked, and why; empty if all can."""


def addressees(streams: Streams, order: WindowOrder, wanted: tuple[int, ...] | None) -> Addressees:
    """Finds them.

    Args:
        streams: whose processes obey.
        order: of which job and runs.
        wanted: the ranks that are meant; `None` for all: as many as most of the job's processes say that it has.

    Raises:
        ProblemError: 404 if no process is there that can be asked, or none of the job's ranks that are named; 409 if it is not
            clear which job is meant.
    """
    ranks = list(streams)
    connected = [
        Target(rank.id, stream, process)
        for rank in ranks
        for stream in [rank.latest]
        if (process := _process(stream)) is not None
        and (not order.name or stream.run.name == order.name)
        and (not order.job or stream.job == order.job)
    ]
    able = [target for target in connected if target.process.control]
    if not able:
        raise ProblemError(404, f"none of {len(connected)} connected processes takes commands; they need {NEEDED}")
    jobs = sorted({_job(target) for target in able})
    if len(jobs) > 1:
        shown = ", ".join(f"name {name!r} job {job!r}" for name, job in jobs[:10])
        raise ProblemError(409, f"several jobs are connected: say which one is meant: {shown}")
    its = [target for target in connected if _job(target) == jobs[0]]
    there = {target.rank for target in its}
    meant = there if wanted is None else set(wanted)
    size = usual_size(target.stream.run.world_size for target in its)
    absent = ranges_text(missing_ranges(there, size)) if wanted is None else ranks_text(tuple(meant - there))
    targets = [target for target in able if target.rank in meant]
    unwilling = {target.rank for target in its if not target.process.control} & meant
    lacking: list[str] = []
    if absent:
        lacking.append(f"not connected: {_named(absent)}")
    latest = {target.stream.id for target in its}
    shared = {rank.latest.run.rank or 0 for rank in ranks if rank.latest.id in latest and rank.others} & meant
    if shared:
        lacking.append(f"several processes at once, maybe of jobs of one name: {_named(ranks_text(tuple(shared)))}")
    if unwilling:
        lacking.append(f"without {NEEDED}: {_named(ranks_text(tuple(unwilling)))}")
    if not targets or (wanted is not None and lacking):
        raise ProblemError(404, f"not all ranks that are meant can be asked; {'; '.join(lacking)}")
    return Addressees(targets, "; ".join(lacking))


def _process(stream: Stream) -> Process | None:
    """The way to the process of a stream; `None` if there is none now."""
    if stream.connection is not None:
        return stream.connection
    return stream.process if stream.state(time.monotonic()) is State.CONNECTED else None


def _job(target: Target) -> tuple[str, str]:
    return target.stream.run.name, target.stream.job


def _named(ranks: str) -> str:
    shown = ranks if len(ranks) <= 200 else f"{ranks[:200].rpartition(',')[0]}, ..."
    return f"rank {shown}" if ranks.isdigit() else f"ranks {shown}"
