"""Events that runs could not send, or left when they were killed, are delivered later: to a collector and to NATS, once each."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.session.note import BUFFER_DIRECTORY
from tests.support.basics import ROOT, missing
from tests.support.collecting import CollectorProcess, collecting, wait_until
from tests.support.collectors import deliver, free_port, journals, spans
from tests.support.jetstreams import NAMES, jetstream
from tests.support.launch import run_to_end
from tests.support.messages import check_messages
from tests.support.nats import NatsServer

PROGRAM = """
import os, random, sys, time
import stepscope as sc

url, directory, name, limit, confirmed, journal = sys.argv[1:7]
exporter = sc.CollectorExporter(url, settings=sc.exporters.LinkSettings(timeout=0.5))
options = sc.Options(journal_max_bytes=int(limit), journal=bool(journal))
schedule = sc.schedule(wait=0, warmup=0, active=4)
profiler = sc.trace(exporters=[exporter], output_dir=directory, name="job", rank=0, schedule=schedule, options=options)
profiler.start()
for step in range(12):
    for number in range(1000):
        with sc.span(name, i=random.getrandbits(60)):
            pass
    profiler.step()
    if step in (7, 9) or step == 11 and confirmed == "all":
        assert profiler.flush(60)  # events of windows that the journal knows nothing of are recovered into its last
    if step == 7 and confirmed == "half" or step == 11 and confirmed == "all":
        while not exporter._shipper or not exporter._shipper.is_confirmed:
            time.sleep(0.01)
time.sleep(0.2)
os.kill(os.getpid(), 9)
"""
"""A rank that is killed: url, directory, name of its 12,000 spans, limit of its journal, what it sees confirmed before, and
whether it keeps a journal."""

SPANS = 12000
LARGE = 1 << 30
SMALL = 1 << 17
"""Bytes of a journal that holds a part of the spans only."""


def kill(
    url: str,
    directory: Path,
    name: str,
    *,
    limit: int = LARGE,
    confirmed: str = "",
    alone: bool = False,
    journal: bool = True,
) -> None:
    """Runs it; `alone`: among processes of its own, so that its number is that of others."""
    command = [sys.executable, "-c", PROGRAM, url, str(directory), name, str(limit), confirmed, "1" if journal else ""]
    if alone:
        unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
        if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
            missing("the right to make a process namespace", "Run the tests as root on Linux.")
        command = [*unshare, "sh", "-c", '"$@"; true', "sh", *command]
    subprocess.run(command, cwd=ROOT, timeout=60, check=False, stderr=subprocess.DEVNULL)


def merged(directory: Path, out: Path) -> Counter[str]:
    """The spans of a merge, by name."""
    assert main(["merge", str(directory), "--out", str(out)]) == 0
    return Counter(event["name"] for event in json.loads(out.read_text()) if event["ph"] == "X")


def streams(directory: Path) -> list[str]:
    return sorted(path.parent.name for path in directory.glob("streams/*/journal"))


@pytest.mark.parametrize(("alone", "there"), [(False, False), (True, True)])
def test_each_run_of_a_directory_has_its_own_journal(tmp_path: Path, alone: bool, there: bool) -> None:
    """A rank is killed, started again in the same directory and killed again; in containers both have one number."""
    with collecting(tmp_path / "c") as collector:
        url = collector.url.replace("http", "ws") if there else f"ws://127.0.0.1:{free_port()}"
        for name in ("first", "second"):
            kill(url, tmp_path / "run", name, confirmed="half" if there else "", alone=alone)
        for _ in range(2):
            done = deliver(tmp_path / "run" / "rank0", collector.url)
            assert done.returncode == 0, done.stderr
            found = merged(tmp_path / "c", tmp_path / "out.json")
            assert (found["first"], found["second"]) == (SPANS, SPANS)
            assert len(streams(tmp_path / "c")) == 2


def test_the_buffer_of_a_run_without_a_journal_is_delivered(tmp_path: Path) -> None:
    """It has what was written before the process was killed, and is deleted when the collector has it."""
    kill(f"ws://127.0.0.1:{free_port()}", tmp_path / "run", "x", journal=False)
    place = tmp_path / "run" / "rank0"
    with collecting(tmp_path / "c") as collector:
        done = deliver(place, collector.url)
        assert done.returncode == 0, done.stderr
        assert SPANS * 2 // 3 <= merged(tmp_path / "c", tmp_path / "out.json")["x"] <= SPANS
        assert not (place / BUFFER_DIRECTORY).exists()
        again = deliver(place, collector.url)
        assert again.returncode == 1 and check_messages(again.stderr, "stepscope deliver", str(place))


def test_a_journal_that_has_less_than_the_collector_goes_on(tmp_path: Path) -> None:
    """It met its limit and deleted what the collector had: the rest follows, and nothing is there twice."""
    with collecting(tmp_path / "c") as collector:
        url = collector.url.replace("http", "ws")
        kill(url, tmp_path / "run", "x", limit=SMALL, confirmed="half")
        place = tmp_path / "run" / "rank0"
        assert not (place / "journal").exists()
        done = deliver(place, collector.url)
        assert done.returncode == 0, done.stderr
        assert merged(tmp_path / "c", tmp_path / "out.json")["x"] == SPANS
        assert len(streams(tmp_path / "c")) == 1


def test_a_delivery_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    """It is the same stream the next time, with what is there already."""
    kill(f"ws://127.0.0.1:{free_port()}", tmp_path / "run", "x")
    place = tmp_path / "run" / "rank0"
    with collecting(tmp_path / "c", "--max-stream-bytes", "100000") as collector:
        refused = deliver(place, collector.url, "--timeout", "1")
        assert refused.returncode == 1 and check_messages(refused.stderr, "100000 bytes")
        (first,) = streams(tmp_path / "c")
    with collecting(tmp_path / "c") as collector:
        done = deliver(place, collector.url)
        assert done.returncode == 0, done.stderr
    assert streams(tmp_path / "c") == [first]
    assert merged(tmp_path / "c", tmp_path / "out.json")["x"] == SPANS


def test_directories_below_are_named(tmp_path: Path) -> None:
    """The message for the directory of all ranks names the journals."""
    kill(f"ws://127.0.0.1:{free_port()}", tmp_path / "runs" / "one", "x")
    for place in (tmp_path / "runs", tmp_path / "runs" / "one"):
        done = deliver(place, "ws://127.0.0.1:1")
        assert done.returncode == 1 and str(tmp_path / "runs" / "one" / "rank0") in done.stderr
    assert "name a journal" in deliver(tmp_path, "ws://127.0.0.1:1").stderr


NATS_PROGRAM = textwrap.dedent(
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
NATS_SPANS = {f"span {number}": 1 for number in range(300)}


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
    command = [sys.executable, "-c", NATS_PROGRAM, str(directory), url, end, journal, str(large), wait]
    return run_to_end(command, timeout=60, server="command")


def nowhere() -> str:
    """The URL of a server that is not there."""
    return f"nats://127.0.0.1:{free_port()}"


def collected(collector: CollectorProcess, streams: int = 1) -> list[Path]:
    """The journals, once so many streams have ended."""
    wait_until(lambda: collector.get("/v1/job")["ended"] == streams)
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
    assert {name: count for name, count in spans(copy).items() if name in NATS_SPANS} == NATS_SPANS


def test_the_buffer_of_a_run_to_nats_is_delivered(server: NatsServer, tmp_path: Path) -> None:
    """It is deleted then."""
    run(tmp_path / "run", nowhere(), journal="")
    assert len(segment_paths(tmp_path / "run" / "unsent" / "buffer")) > 1
    done = deliver(tmp_path / "run", server.url)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / "unsent").exists()
    with collecting(tmp_path / "collected", "--from", server.url) as collector:
        (copy,) = collected(collector)
    assert {name: count for name, count in spans(copy).items() if name in NATS_SPANS} == NATS_SPANS


def test_the_journal_of_a_killed_run_is_recovered(server: NatsServer, tmp_path: Path) -> None:
    """It continues the stream that the run began; the collector has each frame once, also if it runs meanwhile."""
    run(tmp_path / "run", server.url, end="killed", wait="confirmed")
    journal = tmp_path / "run" / "journal"
    with collecting(tmp_path / "collected", "--from", server.url) as collector:
        wait_until(lambda: len(list(journals(collector.directory))) == 1)
        for _ in range(2):
            done = deliver(journal, server.url)
            assert done.returncode == 0, done.stderr
        (copy,) = collected(collector)
    assert_same_files(copy, journal)
    assert {name: count for name, count in spans(copy).items() if name in NATS_SPANS} == NATS_SPANS


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
