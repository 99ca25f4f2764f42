"""Perfetto's native format, uncompressed: the encoder alone, and from events in memory to the complete file."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cases.exports.exporting import encoder, exporter, file, row, slices
from benchmarks.harness.peers import peer
from benchmarks.harness.row import Contender, Round, Tool
from benchmarks.harness.scale import Scale

if TYPE_CHECKING:
    from stepscope.runtime.events.record import EventBatch
    from stepscope.runtime.export.run import Run

FILE = "trace.pftrace"


def _encode(run: Run, batches: list[EventBatch]) -> int:
    from stepscope.runtime import _core

    made = _core.PerfettoEncoder(1, run.pid)
    return sum(len(made.encode(batch.events, batch.args, batch.window)) for batch in slices(batches))


def _encoder(scale: Scale) -> AbstractContextManager[Round]:
    return encoder(scale, _encode)


def _exporter(scale: Scale) -> AbstractContextManager[Round]:
    import stepscope

    return exporter(scale, stepscope.PerfettoExporter, FILE)


@contextmanager
def _perfetto(scale: Scale) -> Generator[Round]:
    """Two packets for each span, written as the builder's documentation does it, with a small name in each."""
    builder: Any = peer("perfetto.trace_builder.proto_builder").StreamingTraceProtoBuilder
    event: Any = peer("perfetto.protos.perfetto.trace.perfetto_trace_pb2").TrackEvent
    count = scale.events // 20

    def write(path: Path) -> None:
        with path.open("wb") as stream:
            made = builder(stream)
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

    yield lambda: file(count, write, FILE)


ROWS = (
    row(
        "pftrace.encoder",
        "Perfetto's format, uncompressed, one core: the encoder",
        Contender(Tool.STEPSCOPE, "PerfettoEncoder", _encoder),
    ),
    row(
        "pftrace.file",
        "Perfetto's format, uncompressed, one core: from events to the complete file",
        Contender(Tool.STEPSCOPE, "PerfettoExporter", _exporter),
        Contender(Tool.PERFETTO, "StreamingTraceProtoBuilder", _perfetto, every=2),
    ),
)
