"""Streaming into NATS JetStream over loopback, and out of it into a collector's files.

Processor time of the training process and of the collector's; that of the NATS server is its own.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases.streaming.collecting import Collecting, collecting
from benchmarks.cases.streaming.collector import RATE, streamed
from benchmarks.cases.tools.session import scratch, session
from benchmarks.cases.tools.span_load import emit
from benchmarks.harness.peers import NotInstalledError
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

PATIENCE = 60.0
"""Seconds for a server to listen, and for a collector to take everything."""


@contextmanager
def _server(directory: Path) -> Generator[str]:
    """A NATS server with JetStream, which keeps what it stores below a directory; its URL."""
    program = shutil.which("nats-server")
    if program is None:
        raise NotInstalledError("nats-server is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(lambda: _listens(port), "the server listens")
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _wait(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {PATIENCE:g} s")
        time.sleep(0.01)


@contextmanager
def _exporter(scale: Scale) -> Generator[Round]:
    from stepscope.exporters.nats.exporter import NatsExporter

    seconds = max(scale.events / RATE, 0.01)
    with scratch() as directory, _server(directory) as url:
        yield lambda: streamed(NatsExporter(url), seconds)


@contextmanager
def _collector(scale: Scale) -> Generator[Round]:
    from stepscope.exporters.nats.exporter import NatsExporter
    from stepscope.runtime.errors import FormatError
    from stepscope.runtime.journal.reader import JournalReader

    count = scale.events * 4

    def complete(collector: Collecting, stream: str) -> bool:
        path = collector.directory / "streams" / stream / "journal"
        with contextlib.suppress(OSError, FormatError), JournalReader(path) as reader:
            for _ in reader:
                pass
            return reader.end is not None
        return False

    def once() -> Sample:
        import stepscope

        with scratch() as stored, scratch() as directory, _server(stored) as url:
            exporter = NatsExporter(url)
            with session(exporters=[exporter], options=stepscope.Options(journal=False, close_timeout=PATIENCE)):
                emit(stepscope.span, count)
            with collecting(directory, "--from", url) as collector:
                before = collector.processor_seconds()
                _wait(lambda: complete(collector, exporter.stream), "the collector has everything")
                spent = max(collector.processor_seconds() - before, 1e-3)
            return Sample(count / spent / 1e6)

    yield once


ROWS = (
    Row(
        key="nats.exporter",
        what="streaming 100,000 events/s into NATS: processor time of the training process",
        unit="% of a core",
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "NatsExporter", _exporter),),
    ),
    Row(
        key="nats.ingest",
        what="a collector's ingest from NATS over loopback, one core",
        unit="M events/s",
        more_is_better=True,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "stepscope collect --from", _collector),),
    ),
)
"""The cost of streaming through NATS."""
