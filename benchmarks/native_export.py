"""Perfetto's native format, uncompressed: the encoder alone, and from events in memory to the complete file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.json_export import rate, recorded
from benchmarks.peers import peer
from benchmarks.row import Contender, Round, Row, Sample, Tool
from benchmarks.scale import Scale
from benchmarks.session import scratch

SLICE = 16_384
"""Events that exporters encode at a time."""


@contextmanager
def _encoder(scale: Scale) -> Generator[Round]:
    from stepscope.runtime import _core

    run, batches = recorded(scale.events)
    count = sum(len(batch) for batch in batches)

    def once() -> Sample:
        size = 0

        def encode() -> None:
            nonlocal size
            encoder = _core.PerfettoEncoder(1, run.pid)
            for batch in batches:
                for at in range(0, len(batch), SLICE):
                    size += len(encoder.encode(batch.events[at : at + SLICE], batch.args, batch.window))

        return Sample(rate(count, encode), facts={"bytes per event": size / count})

    yield once


@contextmanager
def _exporter(scale: Scale) -> Generator[Round]:
    import stepscope

    run, batches = recorded(scale.events)
    count = sum(len(batch) for batch in batches)

    async def export(path: Path) -> None:
        exporter = stepscope.PerfettoExporter(path)
        await exporter.open(run)
        for batch in batches:
            await exporter.export(batch)
        await exporter.aclose()

    def once() -> Sample:
        with scratch() as directory:
            path = directory / "trace.pftrace"
            speed = rate(count, lambda: asyncio.run(export(path)))
            return Sample(speed, facts={"bytes per event": path.stat().st_size / count})

    yield once


@contextmanager
def _perfetto(scale: Scale) -> Generator[Round]:
    """Two packets for each span, written as the builder's documentation does it, with a small name in each."""
    builder: Any = peer("perfetto.trace_builder.proto_builder").StreamingTraceProtoBuilder
    event: Any = peer("perfetto.protos.perfetto.trace.perfetto_trace_pb2").TrackEvent
    count = scale.events // 20

    def write(path: Path) -> None:
        with path.open("wb") as file:
            made = builder(file)
            for n in range(count):
                for kind, at in ((event.TYPE_SLICE_BEGIN, 0), (event.TYPE_SLICE_END, 500)):
                    packet = made.create_packet()
                    packet.timestamp = n * 1000 + at
                    packet.trusted_packet_sequence_id = 1
                    packet.track_event.type = kind
                    packet.track_event.track_uuid = 1
                    if at == 0:
                        packet.track_event.name = "x"
                    made.write_packet(packet)

    def once() -> Sample:
        with scratch() as directory:
            path = directory / "trace.pftrace"
            speed = rate(count, lambda: write(path))
            return Sample(speed, facts={"bytes per event": os.stat(path).st_size / count})

    yield once


ROWS = (
    Row(
        key="pftrace.encoder",
        what="Perfetto's format, uncompressed, one core: the encoder",
        unit="M events/s",
        budget=5.0,
        more_is_better=True,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "PerfettoEncoder", _encoder),),
    ),
    Row(
        key="pftrace.file",
        what="Perfetto's format, uncompressed, one core: from events to the complete file",
        unit="M events/s",
        budget=5.0,
        more_is_better=True,
        heavy=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "PerfettoExporter", _exporter),
            Contender(Tool.PERFETTO, "StreamingTraceProtoBuilder", _perfetto, every=2),
        ),
    ),
)
