"""What a run could not publish is delivered into NATS later, and collected from there once."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.segments import segment_paths
from tests.support.collecting import CollectorProcess, collecting, until
from tests.support.collectors import deliver, free_port, journals, spans
from tests.support.jetstreams import NAMES, jetstream
from tests.support.launch import run_to_end
from tests.support.nats import NatsServer

PROGRAM = textwrap.dedent(
    """
    import os, random, sys, time
    import stepscope as sc
    directory, url, end, journal, large, wait = sys.argv[1:]
    exporter = sc.exporters.NatsExporter(url, settings=sc.exporters.LinkSettings(first_delay=0.01, buffer_bytes=1 << 19))
    options = sc.Options(close_timeout=0.5, journal=journal == "journal", journal_max_bytes=1 << 19, drain_interval=10.0)
    profiler = sc.trace(exporters=[exporter], output_dir=directory, options=options)
    profiler.start()
    for number in range(300):
        with sc.span(f"span {number}", text=random.randbytes(400).hex()):
            pass
        if number % 10 == 9:
            profiler.flush()
    for number in range(int(large)):
        with sc.span("large", **{f"text {index}": random.randbytes(400).hex() for index in range(12)}):
            pass
    if int(large):
        profiler.flush()
        with sc.span("after it"):
            pass
    if end == "killed":
        profiler.flush()
        while wait == "confirmed" and not exporter.statistics().confirmed:
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
    profiler.close()
    print(profiler.report())
    """
)
SPANS = {f"span {number}": 1 for number in range(300)}


def run(
    directory: Path, url: str, *, end: str = "closed", journal: str = "journal", large: int = 0, wait: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs the program.

    Args:
        directory: output of the run.
        url: of the server.
        end: `killed` or `closed`.
        journal: `journal`: the run keeps one; else the exporter writes a buffer.
        large: number of spans that are to be in one frame, each of 5,000 bytes at least.
        wait: `confirmed`: it is killed when something was confirmed.
    """
    command = [sys.executable, "-c", PROGRAM, str(directory), url, end, journal, str(large), wait]
    return run_to_end(command, timeout=60, server="command")


def nowhere() -> str:
    """The URL of a server that is not there."""
    return f"nats://127.0.0.1:{free_port()}"


def collected(collector: CollectorProcess, streams: int = 1) -> list[Path]:
    """The journals, once so many streams have ended."""
    until(lambda: collector.get("/v1/job")["ended"] == streams)
    return list(journals(collector.directory))


def assert_same_files(copy: Path, journal: Path) -> None:
    """Checks that the collector has the segments of a journal, byte for byte."""
    segments = segment_paths(journal)
    assert len(segments) > 1
    assert [path.name for path in segment_paths(copy)] == [path.name for path in segments]
    assert all((copy.parent / path.name).read_bytes() == path.read_bytes() for path in segments)


def test_a_run_that_reached_no_server_is_delivered_later(server: NatsServer, tmp_path: Path) -> None:
    """From its journal; delivering it again stores nothing twice."""
    journal = tmp_path / "run" / "journal"
    run(tmp_path / "run", nowhere())
    failed = deliver(journal, nowhere(), "--timeout", "0.5")
    assert failed.returncode == 1 and "does not take" in failed.stderr and "refused" in failed.stderr.lower()
    for place in (journal, journal, tmp_path / "run"):
        done = deliver(place, server.url)
        assert done.returncode == 0, done.stderr
    ids = message_ids(server.url)
    assert len(ids) == len(set(ids)) > 0
    with collecting(tmp_path / "collected", "--from", server.url) as collector:
        (copy,) = collected(collector)
    assert_same_files(copy, journal)
    assert {name: count for name, count in spans(copy).items() if name in SPANS} == SPANS


def test_the_buffer_of_a_run_without_a_journal_is_delivered(server: NatsServer, tmp_path: Path) -> None:
    """It is deleted then."""
    run(tmp_path / "run", nowhere(), journal="")
    assert len(segment_paths(tmp_path / "run" / "unsent" / "buffer")) > 1
    done = deliver(tmp_path / "run", server.url)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / "unsent").exists()
    with collecting(tmp_path / "collected", "--from", server.url) as collector:
        (copy,) = collected(collector)
    assert {name: count for name, count in spans(copy).items() if name in SPANS} == SPANS


def test_the_journal_of_a_killed_run_is_recovered(server: NatsServer, tmp_path: Path) -> None:
    """It continues the stream that the run began; the collector has each frame once, also if it runs meanwhile."""
    run(tmp_path / "run", server.url, end="killed", wait="confirmed")
    journal = tmp_path / "run" / "journal"
    with collecting(tmp_path / "collected", "--from", server.url) as collector:
        until(lambda: len(list(journals(collector.directory))) == 1)
        for _ in range(2):
            done = deliver(journal, server.url)
            assert done.returncode == 0, done.stderr
        (copy,) = collected(collector)
    assert_same_files(copy, journal)
    assert {name: count for name, count in spans(copy).items() if name in SPANS} == SPANS


def test_options_of_a_collector_are_not_for_nats(tmp_path: Path) -> None:
    """They would be passed over in silence else."""
    done = deliver(tmp_path, "nats://127.0.0.1", "--insecure")
    assert done.returncode == 1 and "--nats-insecure" in done.stderr


@pytest.mark.parametrize("reached", [False, True])
def test_a_frame_that_is_too_large_is_left_out(tmp_path: Path, reached: bool) -> None:
    """By the run and by `deliver`: it is an error, its events are counted, and all other frames are stored."""
    with NatsServer(tmp_path / "jetstream", "max_payload: 20480") as server:
        done = run(tmp_path / "run", server.url if reached else nowhere(), large=8)
        if reached:
            (count,) = re.findall(r"(\d+) dropped \(undelivered\)", done.stdout)
            assert f"were not sent: they have {count} events" in done.stdout
        else:
            done = deliver(tmp_path / "run", server.url)
            assert done.returncode == 1
            (count,) = re.findall(r"frames of .* are too large, and were not sent: they have (\d+) events", done.stderr)
        assert "max_payload" in done.stderr and int(count) >= 8
        with collecting(tmp_path / "collected", "--from", server.url) as collector:
            (copy,) = collected(collector)
    with JournalReader(copy) as reader:
        names = Counter(
            strings.name_of(event) for item in reader if isinstance(item, EventBatch) for event in item.events
        )
        assert reader.damage.lost_frames == 1 and not reader.damage.skipped_bytes
    assert names["after it"] == 1 and not names["large"]


def message_ids(url: str) -> list[str]:
    """Ids of the messages in JetStream."""

    async def read() -> list[str]:
        async with jetstream(url) as context:
            info = await context.stream_info(NAMES.stream)
            messages: list[Any] = [
                await context.get_msg(NAMES.stream, number) for number in range(1, info.state.messages + 1)
            ]
            return [message.headers["Nats-Msg-Id"] for message in messages]

    return asyncio.run(read())
