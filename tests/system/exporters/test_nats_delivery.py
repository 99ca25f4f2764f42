"""What a run could not publish is delivered into NATS later, and taken from there once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.collecting import CollectorProcess, collecting, until
from tests.support.collectors import COMMAND, free_port, journals
from tests.support.collectors import spans as spans_of
from tests.support.launch import run_to_end
from tests.support.messages import said
from tests.support.nats import NatsServer

PROGRAM = textwrap.dedent(
    """
    import os, sys
    import stepscope as sc
    directory, url, end, journal = sys.argv[1:]
    exporter = sc.exporters.NatsExporter(url, settings=sc.exporters.LinkSettings(memory_bytes=1 << 16, first_delay=0.01))
    options = sc.Options(close_timeout=0.5, journal=journal == "journal")
    profiler = sc.trace(exporters=[exporter], output_dir=directory, options=options)
    profiler.start()
    for number in range(300):
        with sc.span(f"span {number}"):
            pass
    if end == "killed":
        profiler.flush()
        os.kill(os.getpid(), 9)
    profiler.stop()
    """
)
SPANS = {f"span {number}": 1 for number in range(300)}


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
    with NatsServer(tmp_path / "jetstream") as started:
        yield started


def run(directory: Path, end: str, journal: str, url: str) -> None:
    """A run that reaches no server."""
    command = [sys.executable, "-c", PROGRAM, str(directory), url, end, journal]
    run_to_end(command, timeout=60, server="command")


def deliver(place: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    command = [*COMMAND, "deliver", str(place), "--url", url, *options]
    return run_to_end(command, timeout=60, server="command")


def taken(collector: CollectorProcess, streams: int) -> list[Path]:
    """The journals, once so many streams have ended."""
    until(lambda: collector.get("/v1/job")["ended"] == streams)
    return list(journals(collector.directory))


def test_the_rest_of_a_run_that_ended(server: NatsServer, tmp_path: Path) -> None:
    """From the spool; it is deleted then."""
    run(tmp_path / "run", "ended", "", f"nats://127.0.0.1:{free_port()}")
    away = deliver(tmp_path / "run", f"nats://127.0.0.1:{free_port()}", "--timeout", "0.5")
    assert away.returncode == 1 and "does not take" in away.stderr and "refused" in away.stderr.lower()
    done = deliver(tmp_path / "run", server.url)
    assert done.returncode == 0, done.stderr
    again = deliver(tmp_path / "run", server.url)
    assert again.returncode == 1 and said(again.stderr, "stepscope deliver", "unsent/*/stream")
    with collecting(tmp_path / "collected", "--from", server.url) as collector:
        (journal,) = taken(collector, 1)
    assert {name: count for name, count in spans_of(journal).items() if name in SPANS} == SPANS


def test_the_journal_of_a_run_that_was_killed(server: NatsServer, tmp_path: Path) -> None:
    """It is recovered; however often it is delivered it is there once, also while a collector takes it."""
    run(tmp_path / "run", "killed", "journal", f"nats://127.0.0.1:{free_port()}")
    done = deliver(tmp_path / "run", server.url)
    assert done.returncode == 0, done.stderr
    assert "whose process was killed" in done.stdout
    with collecting(tmp_path / "collected", "--from", server.url) as collector:
        for _ in range(2):
            done = deliver(tmp_path / "run" / "journal", server.url)
            assert done.returncode == 0, done.stderr
        (journal,) = taken(collector, 1)
    assert {name: count for name, count in spans_of(journal).items() if name in SPANS} == SPANS


def test_options_of_a_collector_are_not_for_nats(tmp_path: Path) -> None:
    """They would be passed over in silence else."""
    done = deliver(tmp_path, "nats://127.0.0.1", "--insecure")
    assert done.returncode == 1 and "--nats-insecure" in done.stderr


def test_frames_that_the_server_does_not_take(tmp_path: Path) -> None:
    """It is said how large they are, instead of trying for ever."""
    server = NatsServer(tmp_path / "jetstream", "max_payload: 2048")
    try:
        run(tmp_path / "run", "ended", "journal", f"nats://127.0.0.1:{free_port()}")
        done = deliver(tmp_path / "run" / "journal", server.url)
        assert done.returncode == 1 and "max_payload" in done.stderr
    finally:
        server.kill()
