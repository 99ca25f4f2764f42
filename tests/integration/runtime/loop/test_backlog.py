"""The queue before a profiler's pipeline: exporters that are behind are waited for, at the expense of nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import Deliver, ScriptedBackend, Span
from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import EVENT_DTYPE, Kind, own_heap
from stepscope.runtime.loop import backpressure
from stepscope.runtime.loop.backpressure import DrainedBlock, DrainedTurn
from stepscope.runtime.sources.sink import Sink
from tests.support.basics import poll

SMALL = 64 << 10
PAUSE = 0.2
"""Seconds that the slow one takes for a batch: it gets on, so it is never taken for one that hangs."""


class Slow(sc.exporters.MemoryExporter):
    """Takes its time for each batch."""

    async def export(self, batch: sc.exporters.EventBatch) -> None:
        await anyio.sleep(PAUSE)
        await super().export(batch)


class Device(ScriptedBackend):
    """Delivers when it is told to."""

    sink: Sink

    def open(self, sink: Sink) -> None:
        super().open(sink)
        self.sink = sink

    def deliver(self, count: int) -> None:
        """So many spans of now."""
        events = np.zeros(count, EVENT_DTYPE)
        events["kind"], events["ts"], events["dur"] = Kind.SPAN, clock.now(), 10
        self.sink.deliver(events)


def record(count: int) -> None:
    for _ in range(count):
        sc.instant("x")


def outputs(profiler: sc.Profiler) -> dict[str, OutputLedger]:
    """Accounts by exporter."""
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    return {output.name: output.ledger for output in pipeline.exporters}


async def test_windows_close_while_an_exporter_is_behind(tmp_path: Path) -> None:
    """Also beside a profiler that keeps nobody waiting."""
    slow, quick = Slow(), sc.exporters.MemoryExporter()
    slow.name = "slow"
    crowded = sc.trace(
        name="crowded", schedule=sc.schedule(wait=0, warmup=0, active=1), exporters=[slow, quick],
        output_dir=tmp_path / "crowded", options=sc.Options(queue_bytes=SMALL, close_timeout=1),
    )  # fmt: skip
    with sc.trace(name="other", output_dir=tmp_path / "other") as other, crowded:
        with anyio.fail_after(60):
            while len(quick.windows) < 5:
                record(2000)
                crowded.step()
                await asyncio.sleep(0.02)
        assert len(slow.windows) < 5, "it is behind"
    recorder = crowded.statistics().recorder
    assert recorder is not None and recorder.dropped == 0
    assert not crowded.audit() and not other.audit()


async def test_deliveries_that_wait_are_bounded(tmp_path: Path) -> None:
    """By the limit of the inbox, whose overflow is counted; and those that are slow are passed over."""
    slow, quick, limit = Slow(), sc.exporters.MemoryExporter(), 1 << 20
    slow.name = "slow"
    backend = Device()
    options = sc.Options(queue_bytes=SMALL, inbox_bytes=limit, close_timeout=1)
    with sc.trace(backends=[backend], exporters=[slow, quick], output_dir=tmp_path, options=options) as profiler:
        with anyio.fail_after(60):
            await poll(lambda: hasattr(backend, "sink"))
            while outputs(profiler)["memory"].exported < 100_000:
                backend.deliver(2000)
                await asyncio.sleep(0.01)
                stats = profiler.statistics().pipeline
                assert stats is not None and stats.undelivered * EVENT_DTYPE.itemsize <= limit
        assert outputs(profiler)["slow"].exported < 100_000, "it is behind"
    assert not profiler.audit()


async def test_backends_are_closed_while_an_exporter_is_behind(tmp_path: Path) -> None:
    """What they deliver then is with the other exporters."""
    slow, quick = Slow(), sc.exporters.MemoryExporter()
    slow.name = "slow"
    backend = ScriptedBackend([Deliver([Span("at the end", 0, 10)], "aclose")])
    options = sc.Options(queue_bytes=SMALL, close_timeout=6)
    with sc.trace(backends=[backend], exporters=[slow, quick], output_dir=tmp_path, options=options) as profiler:
        record(50_000)
        await poll(lambda: outputs(profiler)["slow"].exported)
    assert backend.calls[-1].what == "aclose"
    assert "at the end" in quick.names()
    assert len(quick.names(kind=Kind.INSTANT)) == 50_000
    assert not profiler.audit()


def test_what_cannot_be_cut_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no memory for a part of what was drained: it is tried again."""
    failures = [MemoryError("once")]

    def cut(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return own_heap(*arguments)

    monkeypatch.setattr(backpressure, "own_heap", cut)
    turn = DrainedTurn()
    events = np.zeros(300, EVENT_DTYPE)
    turn.add(events[:1], [DrainedBlock.of(events, b"")], 1, None)
    with pytest.raises(MemoryError):
        turn.next_part(256)
    assert [len(turn.next_part(256).events) for _ in range(2)] == [256, 44] and not turn.blocks
