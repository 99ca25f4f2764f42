"""OTLP end to end: what a receiver gets of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.exporters.base import Exporter
from stepscope.exporters.conformance import check_exporter
from stepscope.exporters.otlp.exporter import OtlpExporter
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.specimens import run_in
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events.record import Kind
from stepscope.runtime.export.exporter import SupportsDeferredAck
from stepscope.runtime.session.job import this_host
from tests.support.basics import ROOT
from tests.support.commands import python
from tests.support.messages import refused
from tests.support.receiver import ReceiverThread, attributes_of, receiver

PATIENT = sc.Options(close_timeout=60)
ALL = OtlpOptions(spans_per_second=None, leave_out=())
POINTS = {f"kind {kind.name}" for kind in Kind} - {"kind SPAN"}
"""Names of what may be a span without duration, and is none of the events that were spans."""


async def test_the_contract_of_exporters(tmp_path: Path) -> None:
    """The suite of every exporter, against a receiver that takes every byte strictly."""
    async with receiver() as server:

        def fresh(directory: Path) -> OtlpExporter:
            server.traces.clear()
            return OtlpExporter(server.url, options=ALL)

        def read_back(exporter: Exporter, directory: Path) -> list[str]:
            return [span.name for span in server.recorded if span.name not in POINTS]

        await check_exporter(fresh, tmp_path, read_back, writes_files=False)


def a_run(exporter: OtlpExporter, directory: Path) -> sc.Profiler:
    """Three steps with spans, an instant and a counter in each."""
    with sc.trace(exporters=[exporter], output_dir=directory, name="job", options=PATIENT) as profiler:
        for _ in range(3):
            with sc.span("forward", layer=3), sc.span("matmul", category="cpu_op"):
                sc.instant("here", why="because")
            sc.counter("loss", 0.5)
            profiler.step()
    return profiler


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_a_run_arrives(compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is a trace; all that was recorded is in one; the accounts say so, and the resource whose it is."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("STEPSCOPE_JOB", "nightly")
    with ReceiverThread() as server:
        options = OtlpOptions(compression=compression, spans_per_second=None, leave_out=())  # type: ignore[arg-type]
        exporter = OtlpExporter(server.url, headers={"X-Tenant": "me"}, options=options)
        assert isinstance(exporter, SupportsDeferredAck)
        profiler = a_run(exporter, tmp_path)
        profiler.raise_errors()
        assert not profiler.audit()
        pipeline = profiler.statistics().pipeline
        assert pipeline is not None
        (output,) = [output for output in pipeline.exporters if output.name == exporter.name]
        assert output.ledger.exported == output.ledger.offered > 15 and not output.ledger.dropped
        roots = {span.trace_id: span.name for span in server.recorded if not span.parent_span_id}
        assert sorted(roots.values()) == [f"ProfilerStep#{number}" for number in range(3)]
        for span in server.recorded:
            assert attributes_of(span.attributes)["stepscope.step"] == int(roots[span.trace_id][-1])
        assert server.names() == {
            "forward": 3, "matmul": 3, "ProfilerStep#0": 1, "ProfilerStep#1": 1, "ProfilerStep#2": 1,
        }  # fmt: skip
        assert [event.name for span in server.recorded for event in span.events] == ["here"] * 3
        assert sorted(span.name for span in server.own) == ["job", "window 0"]
        assert {request.headers["x-tenant"] for request in server.received} == {"me"}
        (resource,) = {request.resource_spans[0].resource.SerializeToString() for request in server.traces}
        about = attributes_of(server.traces[0].resource_spans[0].resource.attributes)
        assert about["service.name"] == "job" and about["host.name"] == this_host()
        assert about["process.pid"] == os.getpid()
        assert (about["stepscope.rank"], about["stepscope.world_size"]) == (3, 8)
        assert about["stepscope.job.id"] == "nightly"
        assert resource == server.metric_requests[0].resource_metrics[0].resource.SerializeToString()


PLAY = """
import asyncio, sys
from pathlib import Path
from stepscope.runtime.events import strings
from stepscope.runtime.events import tracks
for number in range(100):  # names and tracks get other numbers than in the process that recorded
    strings.intern(f"of this process {number}")
    tracks.new(tracks.TrackKind.THREAD, 1, number, "of this process")
from stepscope.exporters.otlp.exporter import OtlpExporter
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.runtime.journal.replay import replay_into, run_of
from stepscope.runtime.journal.reader import JournalReader
with JournalReader(Path(sys.argv[1])) as reader:
    options = OtlpOptions(spans_per_second=None, leave_out=())
    asyncio.run(replay_into(reader, OtlpExporter(sys.argv[2], options=options), run_of(reader, Path(sys.argv[3]))))
"""


def test_a_journal_is_sent_as_the_run_was(tmp_path: Path) -> None:
    """Played later, where names and tracks have other numbers, the same spans have the same ids: nothing is stored twice."""

    def recorded() -> set[tuple[bytes, bytes, bytes, str]]:
        return {(span.trace_id, span.span_id, span.parent_span_id, span.name) for span in server.recorded}

    with ReceiverThread() as server:
        a_run(OtlpExporter(server.url, options=ALL), tmp_path)
        live = recorded()
        server.traces.clear()
        (journal,) = tmp_path.rglob("journal")
        done = python("-c", PLAY, journal, server.url, tmp_path, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert recorded() == live


async def test_misuse_is_reported(tmp_path: Path) -> None:
    """Before it is open, and files that are not there."""
    exporter = OtlpExporter("http://127.0.0.1:9")
    with refused(ClosedError, "http://127.0.0.1:9/v1/traces"):
        await exporter.export(None)  # type: ignore[arg-type]
    exporter = OtlpExporter("https://127.0.0.1:9", options=OtlpOptions(certificate="/no/such/file"))
    with refused(OutputError, "https://127.0.0.1:9/v1/traces", "/no/such/file"):
        await exporter.open(run_in(tmp_path))
    await exporter.aclose()
