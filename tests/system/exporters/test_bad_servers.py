"""Exporters to servers that work at first and then take nothing any more: closing keeps its deadline, and all is accounted for."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import stepscope as sc
from stepscope.exporters.otlp.exporter import OtlpExporter
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.session.note import BUFFER_DIRECTORY
from tests.stress.torture.servers import Passage
from tests.support.basics import BUSY
from tests.support.collecting import collecting, wait_until
from tests.support.collectors import journals
from tests.support.collectors import spans as spans_of
from tests.support.commands import stepscope
from tests.support.nats import NatsServer
from tests.support.receiver import ReceiverThread

DEADLINE = 1.0
"""Seconds for closing."""
SMALL, LARGE = 100, 800
"""Spans while the server still works, and spans with an argument each after that."""
NOISE = 8_000
"""Bytes of such an argument that nobody can compress: all of them are more than the system takes off an exporter's hands."""
PLAIN = OtlpOptions(metrics=False, spans_per_second=None, batch_bytes=32 << 20, batch_spans=10_000)
"""Everything is sent, and what belongs to a step at once."""


def names(numbers: Iterable[int]) -> Counter[str]:
    return Counter(f"span {number}" for number in numbers)


def recorded(found: Iterable[str]) -> Counter[str]:
    """Those of our spans that are there."""
    return Counter(name for name in found if name.startswith("span "))


def record(profiler: sc.Profiler, numbers: range, noise: int = 0) -> None:
    """Steps of a hundred spans."""
    for number in numbers:
        with sc.span(f"span {number}", text=random.Random(number).randbytes(noise).hex()):
            pass
        if number % 100 == 99:
            profiler.step()


EVERYTHING = names(range(SMALL + LARGE))


def account(profiler: sc.Profiler, name: str) -> OutputLedger:
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    (output,) = (each for each in pipeline.exporters if each.name == name)
    return output.ledger


def traced(exporter: sc.exporters.Exporter, passage: Passage, directory: Path) -> OutputLedger:
    """A run whose exporter's server stops, with others that get everything; the account of that exporter, which is exact."""
    memory = sc.exporters.MemoryExporter()
    options = sc.Options(close_timeout=DEADLINE, drain_interval=0.02)
    with sc.trace(exporters=[exporter, memory], output_dir=directory, options=options) as profiler:
        record(profiler, range(SMALL))
        while not account(profiler, exporter.name).exported:
            profiler.step()  # some are sent when the next step is there
            time.sleep(0.01)
        passage.stop()
        record(profiler, range(SMALL, SMALL + LARGE), NOISE)
        began = time.monotonic()
    closing = time.monotonic() - began
    assert closing <= DEADLINE + BUSY
    assert profiler.audit() == ()
    assert recorded(memory.names()) == EVERYTHING == recorded(spans_of(directory / "journal").elements())
    ledger, other = account(profiler, exporter.name), account(profiler, memory.name)
    assert ledger.offered == other.offered == other.exported >= SMALL + LARGE
    assert ledger.offered == ledger.exported + sum(ledger.dropped.values()) and not ledger.in_flight
    assert ledger.exported > ledger.unsent
    return ledger


def test_otlp(tmp_path: Path) -> None:
    """Unconfirmed events are dropped, and counted; confirmed ones are there."""
    with ReceiverThread() as server, Passage(port_of(server.url)) as passage:
        exporter = OtlpExporter(f"http://127.0.0.1:{passage.port}", options=PLAIN)
        ledger = traced(exporter, passage, tmp_path)
        arrived = recorded(span.name for span in server.all_spans)
    assert not ledger.unsent and ledger.dropped.keys() <= {"unsent", "closed"}
    assert sum(ledger.dropped.values()) >= LARGE
    assert arrived and arrived <= names(range(SMALL))


def test_collector(tmp_path: Path) -> None:
    """Unconfirmed events are stored; once they are delivered the collector has everything, each once."""
    with collecting(tmp_path / "collected") as collector:
        with Passage(port_of(collector.url)) as passage:
            exporter = sc.CollectorExporter(f"ws://127.0.0.1:{passage.port}")
            ledger = traced(exporter, passage, tmp_path / "run")
        assert not ledger.dropped and ledger.unsent >= LARGE
        assert exporter.unsent_files is not None and Path(exporter.unsent_files.place).parent == tmp_path / "run"
        delivered(tmp_path / "run", collector.url)
        wait_until(lambda: collector.get("/v1/job")["ended"] == 1)
        assert everywhere(tmp_path / "collected") == EVERYTHING


def test_nats(tmp_path: Path) -> None:
    """The same, where a collector takes it from."""
    with NatsServer(tmp_path / "jetstream") as server:
        with Passage(server.port) as passage:
            exporter = sc.exporters.NatsExporter(f"nats://127.0.0.1:{passage.port}")
            ledger = traced(exporter, passage, tmp_path / "run")
        assert not ledger.dropped and ledger.unsent >= LARGE
        assert exporter.unsent_files is not None and Path(exporter.unsent_files.place).parent == tmp_path / "run"
        delivered(tmp_path / "run", server.url)
        with collecting(tmp_path / "collected", "--from", server.url) as collector:
            wait_until(lambda: collector.get("/v1/job")["ended"] == 1)
            assert everywhere(tmp_path / "collected") == EVERYTHING


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def delivered(run: Path, url: str) -> None:
    """Sends a run's unconfirmed events to the server itself."""
    done = stepscope("deliver", run, "--url", url.replace("http:", "ws:"), cwd=run)
    assert done.returncode == 0, done.stderr
    assert not (run / BUFFER_DIRECTORY).exists()


def everywhere(directory: Path) -> Counter[str]:
    """Spans in what a collector has; it is whole."""
    return sum((recorded(spans_of(journal).elements()) for journal in journals(directory)), Counter[str]())
