"""The exporter with a real collector: the contract, exact accounts, and what becomes of what could not be sent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

import stepscope as sc
from stepscope.exporters.base import Exporter
from stepscope.exporters.collector import delivery
from stepscope.exporters.collector.address import Address
from stepscope.exporters.collector.backlog import Backlog
from stepscope.exporters.collector.exporter import CollectorExporter
from stepscope.exporters.collector.link import Link
from stepscope.exporters.collector.protocol import Hello
from stepscope.exporters.collector.settings import LinkSettings
from stepscope.exporters.collector.spool import DIRECTORY, NOTE, StreamNote
from stepscope.exporters.conformance import check_exporter
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.errors import FormatError, OutputError, ProfilerStateError
from stepscope.runtime.journal.reader import JournalReader
from tests.support.basics import poll
from tests.support.collectors import COMMAND, Process, collecting, free_port, journals
from tests.support.collectors import spans as spans_of
from tests.support.launch import run_to_end
from tests.support.messages import refused, said

QUICK = LinkSettings(timeout=2.0, first_delay=0.01, longest_delay=0.05)


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A collector in a process of its own: its address and directory."""
    directory, port = tmp_path_factory.mktemp("collector"), free_port()
    process = Process(directory, port).wait()
    yield f"ws://127.0.0.1:{port}", directory
    process.end()


def ended(directory: Path) -> None:
    """Lets the notes in a run's directory be those of a process that has ended."""
    for path in directory.glob(f"{DIRECTORY}/*/{NOTE}"):
        note = msgspec.json.decode(path.read_bytes(), type=StreamNote)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(note, pid=0)))


def connecting(url: str) -> Callable[[Backlog, Callable[[], Hello]], Link]:
    """What delivers to a collector."""
    return lambda backlog, hello: Link(Address(url), QUICK, None, backlog, hello)


def delivered(directory: Path, url: str) -> int:
    """Delivers what a run's directory has, from another thread; how many streams that were."""
    ended(directory)
    found = delivery.parcels(directory)

    def run() -> None:
        for parcel in found:
            asyncio.run(delivery.deliver(parcel, connecting(url), 20.0))
            parcel.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return len(found)


async def test_it_keeps_the_contract(collector: tuple[str, Path], tmp_path: Path) -> None:
    """All that every exporter promises; what is read back is the collector's file, after what was left is delivered."""
    url, place = collector

    def read_back(exporter: Exporter, directory: Path) -> Iterable[str]:
        assert isinstance(exporter, CollectorExporter)
        if (directory / DIRECTORY).exists():
            delivered(directory, url)
        assert not (directory / DIRECTORY).exists()
        return spans_of(place / "streams" / exporter.stream / "journal").elements()

    def exporter(directory: Path) -> CollectorExporter:
        return CollectorExporter(url, settings=QUICK)

    await check_exporter(exporter, tmp_path, read_back, writes_files=False)


async def test_what_is_confirmed_is_exported_and_no_sooner(tmp_path: Path) -> None:
    """Events are in flight until the collector has written them."""
    port = free_port()
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=QUICK)
    await exporter.open(run_in(tmp_path))
    for window, count in ((0, 3), (1, 4), (0, 5)):
        await exporter.export(batch_of(spans(["x"] * count), window=window))
    assert exporter.settle() == []
    async with collecting(tmp_path / "c", port=port):
        await poll(lambda: (found := exporter.statistics()) and found.confirmed)
        await exporter.close_window(window_of(0, batch_of(spans(["x"]))))
        await exporter.aclose()
    assert Counter({one.window: one.exported for one in exporter.settle()}) == {0: 8, 1: 4}
    assert exporter.settle() == []
    (journal,) = journals(tmp_path / "c")
    assert spans_of(journal) == {"x": 12}


async def test_what_finds_no_room_is_counted(tmp_path: Path) -> None:
    """Memory and disk are full: what is given then is left out and marked in the stream; later there is room again."""
    port = free_port()
    settings = LinkSettings(memory_bytes=1 << 20, spool_bytes=1 << 20, first_delay=0.01, longest_delay=0.05)
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=settings)
    await exporter.open(run_in(tmp_path))
    early, late = batch_of(spans(["early"])), batch_of(spans(["late"]))
    for number in range(6000):
        await exporter.export(early)
        await exporter.close_window(window_of(number, early))
    dropped = exporter.dropped_cap
    assert 0 < dropped < 6000
    sizes = sum(path.stat().st_size for path in (tmp_path / DIRECTORY).glob("*/*.journal"))
    assert sizes <= 1 << 20
    async with collecting(tmp_path / "c", port=port):
        await poll(lambda: (found := exporter.statistics()) and found.confirmed > 100)
        await poll(lambda: not len(exporter._backlog))  # pyright: ignore[reportPrivateUsage]
        for _ in range(10):
            await exporter.export(late)
        await exporter.aclose()
    assert exporter.dropped_cap == dropped
    (journal,) = journals(tmp_path / "c")
    found = spans_of(journal)
    assert found["late"] == 10
    assert found.total() == 6010 - dropped
    with JournalReader(journal) as reader:
        for _ in reader:
            pass
        assert reader.end is not None
        assert (reader.end.dropped, reader.end.events) == (dropped, 6010 - dropped)
    assert not (tmp_path / DIRECTORY).exists()


async def test_a_collector_with_another_directory_is_told_everything_again(tmp_path: Path) -> None:
    """Names and the run were confirmed by one that is gone: they are written again, so that what follows can be read."""
    port = free_port()
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=QUICK)
    run = msgspec.structs.replace(run_in(tmp_path), rank=3, metadata=lambda: {"model": "m"})
    await exporter.open(run)
    async with collecting(tmp_path / "one", port=port):
        await exporter.export(batch_of(spans(["before"])))
        await poll(lambda: exporter.settle())
    async with collecting(tmp_path / "two", port=port):
        await poll(lambda: (found := exporter.statistics()) and found.connections == 2)
        await exporter.export(batch_of(spans(["before", "after"])))
        await exporter.aclose()
    (journal,) = journals(tmp_path / "two")
    with JournalReader(journal) as reader:
        for _ in reader:
            pass
        assert reader.damage.lost_frames > 0
        assert reader.run is not None and reader.run.rank == 3
        assert reader.metadata == {"model": "m"}


def test_no_place_for_a_spool_is_no_reason_not_to_send(
    tmp_path: Path, collector: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The stream goes on, and it is said that there is none."""
    url, place = collector

    async def main() -> str:
        exporter = CollectorExporter(url, settings=QUICK)
        run = run_in(tmp_path / "file" / "below")
        (tmp_path / "file").touch()
        await exporter.open(run)
        await exporter.export(batch_of(spans(["a"])))
        await exporter.aclose()
        return exporter.stream

    stream = asyncio.run(main())
    assert spans_of(place / "streams" / stream / "journal") == {"a": 1}
    said(caplog.records, "unsent")


async def test_without_a_spool_nothing_is_written(tmp_path: Path) -> None:
    """Who wants no files has none, and what is not confirmed is lost and counted."""
    settings = LinkSettings(spool_bytes=0, first_delay=0.01)
    exporter = CollectorExporter(f"ws://127.0.0.1:{free_port()}", settings=settings)
    await exporter.open(run_in(tmp_path))
    await exporter.export(batch_of(spans(["a", "b"]), window=5))
    task = asyncio.ensure_future(exporter.aclose())
    await asyncio.sleep(0.1)
    task.cancel()
    # Loops word it differently.
    with refused(OutputError, "2 events", "ConnectionRefusedError", "LinkSettings.spool_bytes", snapshot=False):
        await task
    (settled,) = exporter.settle()
    assert (settled.window, settled.exported, settled.dropped) == (5, 0, {"undelivered": 2})
    assert exporter.kept is None
    assert not os.listdir(tmp_path)


async def test_delivery_goes_on_where_the_stream_ended(tmp_path: Path) -> None:
    """Half of it was confirmed while the run lasted; the rest comes later, once, however often it is delivered."""
    port = free_port()
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=QUICK)
    await exporter.open(run_in(tmp_path / "run"))
    async with collecting(tmp_path / "c", port=port):
        await exporter.export(batch_of(spans([f"{n}" for n in range(50)])))
        await poll(lambda: exporter.settle())
    await exporter.export(batch_of(spans([f"{n}" for n in range(50, 80)])))
    with refused(ProfilerStateError, os.getpid()):
        delivery.parcels(tmp_path / "run")
    task = asyncio.ensure_future(exporter.aclose())
    await asyncio.sleep(0.2)
    exporter._link._refused = True  # type: ignore[union-attr]
    exporter._link._changed.set()  # type: ignore[union-attr]
    await task
    assert sum(one.kept for one in exporter.settle()) == 30
    copies = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    async with collecting(tmp_path / "c", port=port) as running:
        for _ in range(2):
            (parcel,) = delivery.parcels(tmp_path / "run")
            await delivery.deliver(parcel, connecting(running.url), 20.0)
            parcel.close()
            assert not (tmp_path / "run" / DIRECTORY).exists()
            (journal,) = journals(tmp_path / "c")
            assert spans_of(journal) == {f"{n}": 1 for n in range(80)}
            for path, content in copies.items():  # as if it had not come so far as to delete them
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def test_the_command_delivers_what_a_killed_process_left(tmp_path: Path) -> None:
    """The collector had a part; the recovered journal, which has all, takes its place. A journal can be sent as well."""
    program = textwrap.dedent(
        """
        import os, sys, time
        import stepscope as sc
        from stepscope.exporters.collector.exporter import CollectorExporter
        exporter = CollectorExporter(sys.argv[2])
        profiler = sc.trace(exporters=[exporter], output_dir=sys.argv[1])
        profiler.start()
        for number in range(300):
            with sc.span(f"span {number}"):
                pass
            if number == 150:
                while not exporter.statistics() or exporter.statistics().confirmed < 3:
                    time.sleep(0.01)
        os.kill(os.getpid(), 9)
        """
    )
    port = free_port()
    url = f"ws://127.0.0.1:{port}"
    process = Process(tmp_path / "c", port).wait()
    try:
        run_to_end([sys.executable, "-c", program, str(tmp_path / "run"), url], timeout=60)
        (old,) = journals(tmp_path / "c")
        assert spans_of(old, ended=False).total() < 300
        done = command("deliver", str(tmp_path / "run"), "--url", url)
        assert done.returncode == 0, done.stderr
        assert "whose process was killed" in done.stdout
        (new,) = journals(tmp_path / "c")
        assert new != old
        found = spans_of(new)
        assert {name: found[name] for name in found if name.startswith("span ")} == {f"span {n}": 1 for n in range(300)}
        for _ in range(2):
            done = command("deliver", str(tmp_path / "run" / "journal"), "--url", url)
            assert done.returncode == 0, done.stderr
        assert list(journals(tmp_path / "c")) == [new]
        again = command("deliver", str(tmp_path / "run"), "--url", url)
        assert again.returncode == 1 and said(again.stderr, "stepscope deliver", "unsent/*/stream")
        away = command("deliver", str(new), "--url", f"ws://127.0.0.1:{free_port()}", "--timeout", "0.5")
        assert away.returncode == 1 and "does not take" in away.stderr and "Connect" in away.stderr
        token = command("deliver", str(new), "--url", "ws://u:hunter2@host")
        assert token.returncode == 1 and "hunter2" not in token.stderr
    finally:
        process.end()


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line."""
    return run_to_end([*COMMAND, *arguments], timeout=60, server="command")


def test_damage_is_not_delivered(tmp_path: Path) -> None:
    """A journal that is not whole is to be recovered first; a spool in which something is missing is said to be damaged."""
    journal = tmp_path / "journal"
    with sc.trace(output_dir=tmp_path / "run"):
        with sc.span("x"):
            pass
    whole = (tmp_path / "run" / "journal").read_bytes()
    for content in (
        whole[:-5],
        whole[: len(whole) // 2],
        whole[:20],
        whole[:100] + b"\0" + whole[101:],
        b"",
    ):
        journal.write_bytes(content)
        with refused(FormatError, journal, "stepscope recover"):
            delivery.parcels(journal)
    with refused(FormatError, tmp_path / "run", "unsent/*/stream"):
        delivery.parcels(tmp_path / "run")


def test_the_ledger_of_a_whole_run_is_exact(tmp_path: Path, collector: tuple[str, Path]) -> None:
    """Offered = exported, window by window, with a collector that has everything."""
    url, place = collector
    exporter = CollectorExporter(url)
    schedule = sc.schedule(wait=0, warmup=0, active=2)
    with sc.trace(exporters=[exporter], output_dir=tmp_path, schedule=schedule) as profiler:
        for _ in range(8):
            with sc.span("step work"):
                pass
            profiler.step()
    profiler.raise_errors()
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    (account,) = (one.ledger for one in pipeline.exporters if one.name == "collector")
    assert account == OutputLedger(account.offered, account.offered, {}, 0)
    found = spans_of(place / "streams" / exporter.stream / "journal")
    assert found["step work"] == 8
    assert not (tmp_path / DIRECTORY).exists()
