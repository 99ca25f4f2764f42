"""The accounts of a profiler: a frozen snapshot of every stage, and the audit, which checks that they agree."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stepscope.runtime.loop.pipeline import PipelineStatistics
from stepscope.runtime.recording.recorder_statistics import RecorderStatistics
from stepscope.runtime.steps.transition_costs import TransitionStatistics
from stepscope.runtime.windows.router import RECORDER, WindowsStatistics


class ProfilerStatistics(msgspec.Struct, frozen=True):
    """An immutable snapshot of every stage."""

    state: str
    """`new`, `starting`, `running`, `stopped`, `closed`, or `inert` in a process that does not record (`Profiler.diagnostics`)."""
    steps: int
    """Steps begun since `start()`."""
    steps_ignored: int
    """Calls of `step()` while not running."""
    windows: int
    windows_left_out: int
    """Windows that were not recorded, because too many others waited for the window router."""
    pauses_not_drawn: int
    """Pauses that the trace does not show, for the same reason. Nothing was recorded in them, but spans are not cut there."""
    transitions: TransitionStatistics
    """Time of starts, changes and stops on the calling threads."""
    recorder: RecorderStatistics | None
    pipeline: PipelineStatistics | None
    timed_out: bool = False
    """The loop did not answer before the deadline of closing. `stepscope recover` finds the events that were not delivered."""


def audit(statistics: ProfilerStatistics) -> tuple[str, ...]:
    """Returns a sentence for each account of a run that does not balance.

    At every stage, the events that went in must equal those that came out, were dropped for a reason, or still wait. While
    the loop runs, a single snapshot may seem wrong; after the profiler has closed, it is exact.
    """
    found: list[str] = []
    if statistics.recorder is not None:
        found += _rings(statistics.recorder)
    if statistics.pipeline is not None:
        closed = statistics.state == "closed" and not statistics.timed_out
        found += _pipeline(statistics.pipeline, closed)
        if statistics.recorder is not None and closed:
            found += _received(statistics.recorder, statistics.pipeline)
    return tuple(found)


def _rings(rings: RecorderStatistics) -> Iterator[str]:
    out = rings.drained + rings.dropped + rings.waiting
    yield from _equal("rings: produced", rings.produced, "drained, dropped and waiting", out)
    for worker in rings.workers:
        out = worker.drained + worker.dropped + worker.waiting
        yield from _equal(f"{worker.name}: produced", worker.produced, "drained, dropped and waiting", out)
        yield from _not_negative(worker.name, worker.drained, worker.dropped - worker.without_ring, worker.waiting)
    yield from _not_negative("rings", rings.drained, rings.dropped, rings.waiting)


def _received(rings: RecorderStatistics, pipeline: PipelineStatistics) -> Iterator[str]:
    """The pipeline received all drained events. It may have more: spans that were open in processes that have ended."""
    drained = rings.drained + sum(worker.drained for worker in rings.workers)
    if pipeline.drained < drained:
        yield f"rings: drained {drained:,}, but {pipeline.drained:,} came to the pipeline"


def _pipeline(pipeline: PipelineStatistics, closed: bool) -> Iterator[str]:
    inbox, windows = pipeline.inbox, pipeline.windows
    yield from _equal("inbox: put", inbox.put, "received and waiting", inbox.received + inbox.waiting)
    out = pipeline.routed + pipeline.unrouted
    if pipeline.drained < out or closed:
        yield from _equal(f"{RECORDER}: drained", pipeline.drained, "routed or dropped", out)
    seen = windows.seen.get(RECORDER, 0) + windows.left_out
    yield from _equal(f"{RECORDER}: routed", pipeline.routed, "seen by windows or left out", seen)
    yield from _windows(windows)
    yield from _equal("windows: released", windows.released, "offered to exporters", pipeline.offered)
    yield from _exporters(pipeline)
    if closed:
        remaining = {
            "inbox": inbox.waiting,
            "delivered": pipeline.undelivered,
            "in flight": sum(output.ledger.in_flight for output in pipeline.exporters),
            "retained": sum(windows.retained.values()),
        }
        for what, count in remaining.items():
            yield from _equal(f"after closing: {what}", count, "to be left", 0)


def _windows(windows: WindowsStatistics) -> Iterator[str]:
    for source, seen in windows.seen.items():
        stages = (windows.accepted, windows.outside, windows.late, windows.superseded, windows.retained)
        parts = [part.get(source, 0) for part in stages]
        yield from _equal(f"{source}: seen", seen, "accepted, outside, late, superseded and kept", sum(parts))
        yield from _not_negative(source, *parts, *windows.dropped.get(source, {}).values())
        late = windows.dropped.get(source, {}).get("late", 0)
        yield from _equal(f"{source}: late", parts[2], "dropped as late", late)
    yield from _equal("windows: entered", windows.entered, "released and withheld", windows.released + windows.withheld)


def _exporters(pipeline: PipelineStatistics) -> Iterator[str]:
    for output in pipeline.exporters:
        ledger = output.ledger
        yield from _equal(f"{output.name}: offered", ledger.offered, "of the pipeline's", pipeline.offered)
        out = ledger.exported + sum(ledger.dropped.values()) + ledger.in_flight
        yield from _equal(f"{output.name}: offered", ledger.offered, "exported, dropped and in flight", out)
        yield from _equal(f"{output.name}: in flight", ledger.in_flight, "waiting", output.waiting_events)
        confirmed = ledger.exported - ledger.unsent
        yield from _not_negative(output.name, confirmed, ledger.unsent, ledger.in_flight, *ledger.dropped.values())


def _equal(what: str, count: int, other: str, out: int) -> Iterator[str]:
    if count != out:
        yield f"{what} {count:,}, but {out:,} {other}"


def _not_negative(what: str, *counts: int) -> Iterator[str]:
    if min(counts) < 0:
        yield f"{what}: an account is below zero"
