"""The audit: whether the accounts of all stages agree, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope.runtime.recording.recorder_statistics import RecorderStatistics
from stepscope.runtime.windows.router import RECORDER

if TYPE_CHECKING:
    from stepscope.runtime.accounting.statistics import PipelineStatistics, ProfilerStatistics


def audit(statistics: ProfilerStatistics) -> tuple[str, ...]:
    """Every account of a run that does not balance, in words; empty if all do.

    Stage by stage, what went in is what came out, was dropped for a reason, or is still there. A snapshot that was taken
    while the loop counted may seem wrong for once; one that was taken after the profiler had closed is exact.
    """
    found: list[str] = []
    if statistics.recorder is not None:
        found += _rings(statistics.recorder)
    if statistics.pipeline is not None:
        closed = statistics.state == "closed" and not statistics.given_up
        found += _pipeline(statistics.pipeline, closed)
        if statistics.recorder is not None and closed:
            found += _handed_over(statistics.recorder, statistics.pipeline)
    return tuple(found)


def _rings(rings: RecorderStatistics) -> Iterator[str]:
    out = rings.drained + rings.dropped + rings.waiting
    yield from _equal("rings: produced", rings.produced, "drained, dropped and waiting", out)
    for worker in rings.workers:
        out = worker.drained + worker.dropped + worker.waiting
        yield from _equal(f"{worker.name}: produced", worker.produced, "drained, dropped and waiting", out)
        yield from _whole(worker.name, worker.drained, worker.dropped - worker.without_ring, worker.waiting)
    yield from _whole("rings", rings.drained, rings.dropped, rings.waiting)


def _handed_over(rings: RecorderStatistics, pipeline: PipelineStatistics) -> Iterator[str]:
    """What left rings came to the pipeline. Of processes that have ended come spans that were open besides, from no ring."""
    left = rings.drained + sum(worker.drained for worker in rings.workers)
    if pipeline.drained < left:
        yield f"rings: drained {left:,}, but {pipeline.drained:,} came to the pipeline"


def _pipeline(pipeline: PipelineStatistics, closed: bool) -> Iterator[str]:
    inbox, windows = pipeline.inbox, pipeline.windows
    yield from _equal("inbox: put", inbox.put, "taken and waiting", inbox.taken + inbox.waiting)
    if pipeline.drained < pipeline.routed + pipeline.unrouted or closed:
        gone = pipeline.routed + pipeline.unrouted
        yield from _equal(f"{RECORDER}: drained", pipeline.drained, "routed or dropped", gone)
    seen = windows.seen.get(RECORDER, 0) + windows.left_out
    yield from _equal(f"{RECORDER}: routed", pipeline.routed, "seen by windows or left out", seen)
    for source, seen in windows.seen.items():
        stages = (windows.accepted, windows.outside, windows.late, windows.superseded, windows.kept)
        parts = [part.get(source, 0) for part in stages]
        yield from _equal(f"{source}: seen", seen, "accepted, outside, late, superseded and kept", sum(parts))
        yield from _whole(source, *parts, *windows.dropped.get(source, {}).values())
        late = windows.dropped.get(source, {}).get("late", 0)
        yield from _equal(f"{source}: late", parts[2], "dropped as late", late)
    yield from _equal("windows: taken", windows.taken, "released and withheld", windows.released + windows.withheld)
    yield from _equal("windows: released", windows.released, "offered to exporters", pipeline.offered)
    for output in pipeline.exporters:
        ledger = output.ledger
        yield from _equal(f"{output.name}: offered", ledger.offered, "of the pipeline's", pipeline.offered)
        out = ledger.exported + sum(ledger.dropped.values()) + ledger.in_flight
        yield from _equal(f"{output.name}: offered", ledger.offered, "exported, dropped and in flight", out)
        yield from _equal(f"{output.name}: in flight", ledger.in_flight, "waiting", output.waiting_events)
        confirmed = ledger.exported - ledger.kept
        yield from _whole(output.name, confirmed, ledger.kept, ledger.in_flight, *ledger.dropped.values())
    if closed:
        flight = [output.ledger.in_flight for output in pipeline.exporters]
        kept = sum(windows.kept.values())
        left = (
            ("inbox", inbox.waiting),
            ("delivered", pipeline.undelivered),
            ("in flight", sum(flight)),
            ("kept", kept),
        )
        for what, count in left:
            yield from _equal(f"after closing: {what}", count, "to be left", 0)


def _equal(what: str, count: int, other: str, out: int) -> Iterator[str]:
    if count != out:
        yield f"{what} {count:,}, but {out:,} {other}"


def _whole(what: str, *counts: int) -> Iterator[str]:
    if min(counts) < 0:
        yield f"{what}: an account is below zero"
