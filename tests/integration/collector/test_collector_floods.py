"""Whoever sends more summaries than an exporter does takes no time from the others."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stepscope.collector.live import stream as live_stream
from stepscope.collector.live.stream import Allowance
from stepscope.exporters.nats.names import Names
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.protocol import MAX_SUMMARY_STEPS, Hello, StepRun, StepSummary
from tests.support.basics import poll, require
from tests.support.collectors import answer, collecting, connected
from tests.support.streams import RUN, STREAM, SYNC

OTHER = "fedcba9876543210" * 2
STEP = b"\0\0\x80?\0\0\0\0"
"""A step of a nanosecond."""


def summary(number: int) -> StepSummary:
    """One as large as it may be."""
    run = StepRun(0, number * MAX_SUMMARY_STEPS, number * 10**9, STEP * MAX_SUMMARY_STEPS)
    return StepSummary(0, 0, 0, [run], b"")


async def test_a_flood_of_summaries_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is read no faster than it may send, and nothing is lost; others are answered at once."""
    monkeypatch.setattr(live_stream, "STEPS_PER_SECOND", 10 * MAX_SUMMARY_STEPS)
    monkeypatch.setattr(live_stream, "STEPS_AT_ONCE", 2 * MAX_SUMMARY_STEPS)
    async with (
        collecting(tmp_path) as running,
        connected(running.url) as flooding,
        connected(running.url) as other,
    ):
        for made, stream in ((flooding, STREAM), (other, OTHER)):
            await made.send(protocol.encode(Hello(stream, SYNC, 0, RUN, 0, True)))
            await answer(made)
        times = running.collector.streams.all[STREAM].steps
        began = time.monotonic()
        for number in range(14):
            await flooding.send(protocol.encode(summary(number)))
        await other.send(protocol.encode(protocol.Ping(1)))
        assert isinstance(await answer(other), protocol.Pong)
        assert times.count < 14 * MAX_SUMMARY_STEPS
        await poll(lambda: times.count == 14 * MAX_SUMMARY_STEPS)
        assert time.monotonic() - began > 1


async def test_a_flood_through_nats_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There nobody can have it wait: what is too much is counted, and after a while the process is heard again."""
    sources: Any = require("tests.support.nats_sources")
    monkeypatch.setattr(live_stream, "STEPS_PER_SECOND", 4 * MAX_SUMMARY_STEPS)
    monkeypatch.setattr(live_stream, "STEPS_AT_ONCE", 3 * MAX_SUMMARY_STEPS)
    source = sources.Source(tmp_path, "nats://127.0.0.1:4222")
    names = Names().of(run := msgspec.structs.replace(RUN, job="job"), STREAM)
    roster = SimpleNamespace(processes={names.key: SimpleNamespace(hello=Hello(STREAM, SYNC, 0, run))})

    async def hear(number: int) -> int:
        message = SimpleNamespace(subject=names.live, data=protocol.encode(summary(number)))
        await source.nats._hear(roster, message)
        counted: int = source.nats.view().malformed_messages
        return counted

    assert [await hear(number) for number in range(5)][:3] == [0, 0, 0]
    while not (refused := await hear(5)):
        pass
    await asyncio.sleep(0.6)
    assert await hear(1000) == refused
    assert source.streams.all[STREAM].steps.last == 1001 * MAX_SUMMARY_STEPS - 1


def test_what_a_sender_may_bring() -> None:
    """So much at once, and then so much a second; what it did not use earlier does not count."""
    allowance = Allowance(10, 20)
    assert [allowance.use(10, 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert allowance.use(0, 1.0) == 0.0
    assert [allowance.use(10, 1000.0) for _ in range(3)] == [0.0, 0.0, 1.0]
