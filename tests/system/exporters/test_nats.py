"""Streaming through JetStream: stored once whatever is killed, and shared by several collectors."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.collector.merge.sources import gather
from stepscope.collector.runs.job import Job
from stepscope.collector.runs.recording import Recording, recordings_in
from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.stream.transport import LinkSettings
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from tests.support.basics import BUSY, ROOT, pause_process
from tests.support.jetstreams import NAMES, jetstream
from tests.support.nats import NatsServer
from tests.support.ranks.streams import no_room

COLLECTOR = """
import asyncio, sys
from pathlib import Path
from tests.support.nats_sources import Source
asyncio.run(Source(Path(sys.argv[2]), sys.argv[1]).nats.run())
"""

Start = Callable[[Path], "subprocess.Popen[bytes]"]


@pytest.fixture
def collect(server: NatsServer) -> Generator[Start]:
    """Starts collectors, and ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(directory: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", COLLECTOR, server.url, str(directory)]
        started.append(subprocess.Popen(command, cwd=ROOT))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def steps(profiler: sc.Profiler, count: int) -> None:
    for _ in range(count):
        for layer in range(20):
            with sc.span("work", layer=layer):
                pass
        profiler.step()
        time.sleep(0.001)


def events(journal: Path) -> int | None:
    """Events of a journal that has its end; it must be whole."""
    with JournalReader(journal) as reader:
        count = sum(len(item) for item in reader if isinstance(item, EventBatch))
        assert not reader.damage
        return count if reader.end is not None else None


def names(directory: Path) -> set[str]:
    """The streams in a collector's directory."""
    return {path.parent.name for path in directory.glob("streams/*/journal")}


def wait_for(directory: Path, streams: int) -> dict[str, int]:
    """Events of each stream, once each has its end in some collector's directory."""
    deadline = time.monotonic() + 90
    while True:
        found = {path: events(path) for path in directory.glob("**/streams/*/journal")}
        whole = {path.parent.name: count for path, count in found.items() if count is not None}
        if len(whole) == streams:
            return whole
        assert time.monotonic() < deadline, f"{found} of {streams} streams"
        time.sleep(0.1)


def stored(server: NatsServer) -> tuple[int, int]:
    """Messages in the stream, and how many different ids they have."""

    async def read() -> tuple[int, int]:
        async with jetstream(server.url) as context:
            info = await context.stream_info(NAMES.stream)
            ids: list[str] = []
            for number in range(1, info.state.messages + 1):
                message: Any = await context.get_msg(NAMES.stream, number)
                ids.append(message.headers["Nats-Msg-Id"])
            return len(ids), len(set(ids))

    return asyncio.run(read())


def test_nothing_is_lost_when_servers_and_collectors_are_killed(
    server: NatsServer, collect: Start, tmp_path: Path
) -> None:
    """Exported events are in JetStream once, and in the collector's file once."""
    memory = sc.exporters.MemoryExporter()
    first = collect(tmp_path / "collected")
    with sc.trace(
        output_dir=tmp_path / "run",
        exporters=[NatsExporter(server.url), memory],
        schedule=sc.schedule(wait=0, warmup=0, active=50),
        options=sc.Options(drain_interval=0.02, close_timeout=30.0),
    ) as profiler:
        steps(profiler, 60)
        server.kill()
        steps(profiler, 60)
        server.start()
        steps(profiler, 60)
        first.kill()
        first.wait()
        collect(tmp_path / "collected")
        steps(profiler, 60)
    profiler.raise_errors()
    messages, ids = stored(server)
    assert messages == ids > 2
    assert list(wait_for(tmp_path / "collected", 1).values()) == [len(memory)]


def test_a_collector_that_was_paused_stops(server: NatsServer, collect: Start, tmp_path: Path) -> None:
    """Another one takes the stream from the beginning meanwhile; the first one notices that it has lost the lease."""
    one, other = tmp_path / "one", tmp_path / "other"
    memory, exporter = sc.exporters.MemoryExporter(), NatsExporter(server.url)
    first = collect(one)
    with sc.trace(
        output_dir=tmp_path / "run",
        exporters=[exporter, memory],
        schedule=sc.schedule(wait=0, warmup=0, active=20),
        options=sc.Options(drain_interval=0.02, close_timeout=30.0),
    ) as profiler:

        def train_until(condition: Callable[[], object]) -> None:
            deadline = time.monotonic() + 60
            while not condition():
                assert time.monotonic() < deadline
                steps(profiler, 5)

        train_until(lambda: exporter.stream in names(one))
        pause_process(first.pid)
        collect(other)
        train_until(lambda: exporter.stream in names(other))
        first.send_signal(signal.SIGCONT)
        steps(profiler, 100)
    profiler.raise_errors()
    # When the first one is back it gets its share of the partitions again, perhaps this one.
    assert wait_for(tmp_path, 1) == {exporter.stream: len(memory)}
    assert first.poll() is None
    assert all(
        events(directory / "streams" / exporter.stream / "journal") in (None, len(memory)) for directory in (one, other)
    )
    messages, ids = stored(server)
    assert messages == ids
    # Of both directories it is one stream.
    (recording,) = gather([one, other], no_room).recordings
    assert recording.ended and recording.events == len(memory)


def test_clocks_are_compared(server: NatsServer, collect: Start, tmp_path: Path) -> None:
    """With the collector that ingests the stream: times are known within a bound, as through a WebSocket."""
    exporter = NatsExporter(server.url, settings=LinkSettings(first_sync=0.02, sync_interval=0.1))
    collect(tmp_path / "collected")
    with sc.trace(
        output_dir=tmp_path / "run", exporters=[exporter], options=sc.Options(drain_interval=0.02, close_timeout=30.0)
    ) as profiler:
        deadline = time.monotonic() + 60
        while not any(syncs(path) for path in tmp_path.glob("collected/streams/*/journal")):
            assert time.monotonic() < deadline
            steps(profiler, 20)
    profiler.raise_errors()
    wait_for(tmp_path / "collected", 1)
    (recording,), _ = recordings_in([tmp_path / "collected"])
    (member,) = Job("job", [recording]).members
    assert member.model.is_connected and len({sync.clock for sync in recording.syncs}) == 1
    at, error = recording.last_ns, member.error(recording.last_ns)
    assert error < 1e9
    # Both read the clocks of this machine.
    assert abs(member.reference(at) - recording.run.anchor.wall(at)) <= error + recording.run.anchor.error_ns + 20e6


def syncs(journal: Path) -> int:
    """Number of comparisons of clocks in a journal; 0 if it has no run yet."""
    try:
        return len(Recording.of(journal, "x").syncs)
    except FormatError:
        return 0


def test_without_a_server_training_goes_on_and_closing_ends(tmp_path: Path) -> None:
    exporter = NatsExporter("nats://127.0.0.1:9")
    with sc.trace(output_dir=tmp_path / "run", exporters=[exporter], options=sc.Options(close_timeout=0.5)) as profiler:
        steps(profiler, 5)
        began = time.monotonic()
    assert time.monotonic() - began <= 0.5 + BUSY
    (line,) = (line for line in str(profiler.report()).splitlines() if line.startswith("  output    nats: "))
    assert "0 of " in line and " kept in " in line and "error" not in line
    assert line.endswith(f"stepscope deliver {profiler.output.path}/journal --url nats://127.0.0.1:9")
    statistics = exporter.statistics()
    assert statistics is not None and not statistics.connected and statistics.last_error


@pytest.mark.parametrize("url", ["http://host", "nats://", "host:4222", "nats://me:secret@host"])
def test_a_wrong_url_is_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        NatsExporter(url)
    assert "secret" not in str(caught.value)
