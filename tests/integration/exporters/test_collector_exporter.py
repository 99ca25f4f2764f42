"""The exporter with a real collector: the contract, exact accounts, and what becomes of what could not be sent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

import stepscope as sc
from stepscope.exporters.base import Exporter
from stepscope.exporters.conformance import check_exporter
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.exporters.stream import delivery
from stepscope.exporters.stream.address import Address
from stepscope.exporters.stream.exporter import BUFFER, CollectorExporter
from stepscope.exporters.stream.shipper import Head
from stepscope.exporters.stream.transport import LinkSettings
from stepscope.exporters.stream.websocket import WebSocketTransport
from stepscope.runtime.errors import FormatError, ProfilerStateError
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.session.note import BUFFER_DIRECTORY
from tests.support.basics import poll
from tests.support.collectors import COMMAND, Process, collecting, free_port, journals
from tests.support.collectors import spans as spans_of
from tests.support.launch import run_to_end
from tests.support.messages import refused

QUICK = LinkSettings(timeout=2.0, first_delay=0.01, longest_delay=0.05)


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A collector in a process of its own: its address and directory."""
    directory, port = tmp_path_factory.mktemp("collector"), free_port()
    process = Process(directory, port).wait()
    yield f"ws://127.0.0.1:{port}", directory
    process.end()


def to_collector(url: str) -> delivery.MakeTransport:
    """The transport of a delivery."""
    return lambda feed: WebSocketTransport(Address(url), QUICK, None, feed)


def delivered(directory: Path, url: str) -> None:
    """Delivers the journals of a run's directory, from another thread."""

    def run() -> None:
        for journal in delivery.journals_in(directory):
            delivery.complete(journal)
            asyncio.run(delivery.deliver(journal, to_collector(url), 20.0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


async def test_the_exporter_keeps_the_contract(collector: tuple[str, Path], tmp_path: Path) -> None:
    """All that every exporter promises; what is read back is the collector's file, after what was left is delivered."""
    url, place = collector

    def read_back(exporter: Exporter, directory: Path) -> Iterable[str]:
        assert isinstance(exporter, CollectorExporter)
        if exporter.unsent_files is not None:
            delivered(directory, url)
        else:
            assert not (directory / BUFFER_DIRECTORY).exists()
        return spans_of(place / "streams" / exporter.stream / "journal").elements()

    def exporter(directory: Path) -> CollectorExporter:
        return CollectorExporter(url, settings=QUICK)

    await check_exporter(exporter, tmp_path, read_back, writes_files=False)


async def test_events_are_exported_once_they_are_confirmed(tmp_path: Path) -> None:
    """Events are in flight until the collector has written them."""
    port = free_port()
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=QUICK)
    await exporter.open(run_in(tmp_path))
    for window, count in ((0, 3), (1, 4), (0, 5)):
        await exporter.export(batch_of(spans(["x"] * count), window=window))
    assert exporter.delivery_results() == []
    async with collecting(tmp_path / "c", port=port):
        await poll(lambda: (found := exporter.statistics()) and found.confirmed)
        await exporter.close_window(window_of(0, batch_of(spans(["x"]))))
        await exporter.aclose()
    assert Counter({one.window: one.exported for one in exporter.delivery_results()}) == {0: 8, 1: 4}
    assert exporter.delivery_results() == []
    (journal,) = journals(tmp_path / "c")
    assert spans_of(journal) == {"x": 12}


async def test_events_without_room_are_counted(tmp_path: Path) -> None:
    """The buffer is full: events are left out and marked in the stream; later there is room again."""
    port = free_port()
    settings = LinkSettings(buffer_bytes=1 << 20, first_delay=0.01, longest_delay=0.05)
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=settings)
    await exporter.open(run_in(tmp_path))
    early, late = batch_of(spans(["early"])), batch_of(spans(["late"]))
    for number in range(6000):
        await exporter.export(early)
        await exporter.close_window(window_of(number, early))
    assert sum(path.stat().st_size for path in (tmp_path / BUFFER_DIRECTORY).iterdir()) <= 1 << 20
    assert not exporter.delivery_results()
    async with collecting(tmp_path / "c", port=port):
        await poll(lambda: exporter._shipper is not None and exporter._shipper.is_confirmed)  # pyright: ignore[reportPrivateUsage]
        confirmed = sum(one.exported for one in exporter.delivery_results())
        assert 0 < confirmed < 6000
        assert sum(path.stat().st_size for path in (tmp_path / BUFFER_DIRECTORY).iterdir()) < 1 << 18
        for _ in range(10):
            await exporter.export(late)
        await exporter.aclose()
    results = exporter.delivery_results()
    assert sum(one.exported for one in results) == 10
    assert sum(one.dropped.get("cap", 0) for one in results) == 6000 - confirmed
    (journal,) = journals(tmp_path / "c")
    found = spans_of(journal)
    assert (found["early"], found["late"]) == (confirmed, 10)
    with JournalReader(journal) as reader:
        for _ in reader:
            pass
        assert reader.end is not None and reader.end.dropped == 6000 - confirmed
    assert not (tmp_path / BUFFER_DIRECTORY).exists()


def test_a_journal_at_its_limit_deletes_segments_that_the_collector_has(
    tmp_path: Path, collector: tuple[str, Path]
) -> None:
    """The stream goes on beyond the limit of the rank's journal, and nothing counts as lost."""
    url, place = collector
    exporter = CollectorExporter(url, settings=QUICK)
    options = sc.Options(journal_max_bytes=1 << 18)
    schedule = sc.schedule(wait=0, warmup=0, active=1)
    with sc.trace(exporters=[exporter], output_dir=tmp_path / "run", schedule=schedule, options=options) as profiler:
        for number in range(60):
            for _ in range(200):
                with sc.span("work", noise=os.urandom(40).hex()):
                    pass
            profiler.step()
            assert profiler.flush(30)
            shipper = exporter._shipper  # pyright: ignore[reportPrivateUsage]
            while number % 10 == 9 and not (shipper and shipper.is_confirmed):
                time.sleep(0.01)
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    for output in pipeline.exporters:
        assert output.ledger.exported == output.ledger.offered and not output.ledger.dropped, output
    assert spans_of(place / "streams" / exporter.stream / "journal")["work"] == 12_000
    names = sorted(path.name for path in (tmp_path / "run").glob("journal*"))
    assert "journal" not in names and len(names) > 1
    assert sum((tmp_path / "run" / name).stat().st_size for name in names) <= 1 << 18


async def test_a_collector_with_another_directory_gets_everything_again(tmp_path: Path) -> None:
    """The journal has what the first one confirmed."""
    port = free_port()
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=QUICK)
    run = msgspec.structs.replace(run_in(tmp_path), rank=3, metadata=lambda: {"model": "m"})
    await exporter.open(run)
    async with collecting(tmp_path / "one", port=port):
        await exporter.export(batch_of(spans(["before"])))
        await poll(lambda: exporter.delivery_results())
    async with collecting(tmp_path / "two", port=port):
        await poll(lambda: (found := exporter.statistics()) and found.connections == 2)
        await exporter.export(batch_of(spans(["before", "after"])))
        await exporter.aclose()
    assert sum(one.exported for one in exporter.delivery_results()) == 2
    (journal,) = journals(tmp_path / "two")
    assert spans_of(journal) == {"before": 2, "after": 1}
    with JournalReader(journal) as reader:
        for _ in reader:
            pass
        assert reader.run is not None and reader.run.rank == 3
        assert reader.metadata == {"model": "m"}


async def test_two_collectors_get_the_same_journal(tmp_path: Path, collector: tuple[str, Path]) -> None:
    """Both send the run's journal, which is written once; nothing is stored besides."""
    url, place = collector
    async with collecting(tmp_path / "c") as running:
        exporters = [CollectorExporter(url, settings=QUICK), CollectorExporter(running.url, settings=QUICK)]
        exporters[1].name = "second collector"

        def train() -> None:
            with sc.trace(exporters=exporters, output_dir=tmp_path / "run"):
                for _ in range(100):
                    with sc.span("work"):
                        pass

        await asyncio.to_thread(train)
        first, second = exporters
        assert first.stream == second.stream
        journal = (tmp_path / "run" / "journal").read_bytes()
        for directory in (place, tmp_path / "c"):
            assert (directory / "streams" / first.stream / "journal").read_bytes() == journal
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["journal"]


async def test_a_saved_window_is_streamed(tmp_path: Path) -> None:
    """A flight recorder has a journal for each window; the exporter buffers what it streams in one of its own."""
    async with collecting(tmp_path / "c") as running:
        exporter = CollectorExporter(running.url, settings=QUICK)

        def train() -> None:
            with sc.trace(exporters=[exporter], output_dir=tmp_path / "run", keep_last=5) as profiler:
                for number in range(20):
                    with sc.span("work"):
                        pass
                    profiler.step()
                    if number == 15:
                        profiler.save("because")
                        profiler.flush()

        await asyncio.to_thread(train)
    (journal,) = journals(tmp_path / "c")
    assert 4 <= spans_of(journal)["work"] <= 6
    assert not (tmp_path / "run" / BUFFER_DIRECTORY).exists()


async def test_delivery_goes_on_where_the_stream_ended(tmp_path: Path) -> None:
    """Half of it was confirmed while the run lasted; the rest comes later, once, however often it is delivered."""
    port = free_port()
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=QUICK)
    await exporter.open(run_in(tmp_path / "run"))
    async with collecting(tmp_path / "c", port=port):
        await exporter.export(batch_of(spans([f"{n}" for n in range(50)])))
        await poll(lambda: exporter.delivery_results())
    await exporter.export(batch_of(spans([f"{n}" for n in range(50, 80)])))
    journal = tmp_path / "run" / BUFFER_DIRECTORY / BUFFER
    with refused(ProfilerStateError, journal):
        delivery.complete(journal)
    task = asyncio.ensure_future(exporter.aclose())
    await asyncio.sleep(0.2)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert sum(one.unsent for one in exporter.delivery_results()) == 30
    assert exporter.unsent_files is not None and exporter.unsent_files.place == str(journal)
    async with collecting(tmp_path / "c", port=port) as running:
        (found,) = delivery.journals_in(tmp_path / "run")
        delivery.complete(found)
        content = found.read_bytes()
        for _ in range(2):
            sent = await delivery.deliver(found, to_collector(running.url), 20.0)
            assert sent == delivery.Delivered(exporter.stream, 80, 0, 0)
            (collected,) = journals(tmp_path / "c")
            assert spans_of(collected) == {f"{n}": 1 for n in range(80)}
            assert collected.read_bytes() == content and not found.parent.exists()
            found.parent.mkdir()
            found.write_bytes(content)  # as if it had been killed before it was deleted


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line."""
    return run_to_end([*COMMAND, *arguments], timeout=60, server="command")


def test_a_cut_journal_is_completed_before_it_is_delivered(tmp_path: Path, collector: tuple[str, Path]) -> None:
    """Only a journal that no process writes any more; a file without its first frame is refused."""
    url, place = collector
    journal = tmp_path / "journal"
    with sc.trace(output_dir=tmp_path / "run"):
        with sc.span("x"):
            pass
    whole = (tmp_path / "run" / "journal").read_bytes()
    journal.write_bytes(whole[:-5])
    delivered(tmp_path, url)
    assert spans_of(place / "streams" / Head.of(journal).stream / "journal")["x"] == 1
    for content in (whole[:20], whole[:50] + b"\0" + whole[51:], b""):
        journal.write_bytes(content)
        with refused(FormatError, journal):
            delivery.complete(journal)
    with refused(FormatError, tmp_path / "empty", "name a journal"):
        (tmp_path / "empty").mkdir()
        delivery.journals_in(tmp_path / "empty")
