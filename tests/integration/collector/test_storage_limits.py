"""The limit of a collector's disk: what counts, what a look costs, and what is in the way."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepscope.collector.app import Collector
from stepscope.collector.files.disk import disk_use
from stepscope.collector.files.store import Store
from stepscope.collector.live.startup_recovery import StartupRecovery
from stepscope.collector.live.streams import Streams
from stepscope.collector.retention.policy import StoragePolicy
from stepscope.collector.retention.storage import Storage
from stepscope.collector.runs.evicted import read_evicted
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.stream import protocol
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from tests.support.basics import at_once, poll
from tests.support.collecting import collecting, trained
from tests.support.collectors import answer, connected
from tests.support.messages import check_messages
from tests.support.streams import frames, frames_header, hello
from tests.support.window_streams import END, Frame, encoded, run_of, stored, windows

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(CollectorSettings(directory=tmp_path / "c"))


def events_in(path: Path) -> Counter[int]:
    """Events of each window that are in the segments of a stream."""
    found: Counter[int] = Counter()
    with JournalReader(path) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                found[item.window] += len(item)
    return found


def used_bytes(directory: Path) -> int:
    """Bytes on disk of a directory's content, as du counts them."""
    return sum(
        os.lstat(Path(at, name)).st_blocks * 512 for at, below, files in os.walk(directory) for name in below + files
    )


def segment(first: int, count: int = 4, rank: int = 0) -> list[Frame]:
    """A segment with windows of 64 KiB."""
    return [run_of(rank), *windows(range(first, first + count), 64 * KIB, began=first, first=2 * first)]


# sizes


def test_everything_counts_that_a_collector_writes(tmp_path: Path) -> None:
    """Streams, the files next to them, files that are made for a download; nothing of others."""
    directory = tmp_path / "c"
    with collecting(directory, "--disk", str(1 << 40)) as collector:
        trained(collector.url, 0)
        collector.when(lambda ranks: ranks and ranks[0]["state"] == "ended")
        (directory / "downloads" / "one").mkdir(parents=True)
        (directory / "downloads" / "one" / "x").write_bytes(os.urandom(MIB))
        collector.stop()
    assert disk_use(directory).total == used_bytes(directory) > MIB
    (directory / "of somebody else").write_bytes(os.urandom(MIB))
    assert disk_use(directory).total == used_bytes(directory) - MIB


async def test_a_stream_that_is_connected_is_not_deleted(store: Store) -> None:
    """Though it has its end: its file is open."""
    path = stored(store, ONE, [*segment(0), END])
    header, _ = protocol.decode(hello(stream=ONE))
    assert isinstance(header, protocol.Hello)
    async with store.stream(header, lambda: None):
        storage = Storage(store, StoragePolicy(max_bytes=4096, newest=0, slowest=0))
        assert not store.remove(ONE) and not storage.enforce().deleted
    assert path.exists() and storage.enforce().deleted == [ONE]


# cost of a measurement


async def looked(storage: Storage) -> None:
    """It runs until it has something to show."""
    running = asyncio.create_task(storage.run())
    await poll(lambda: storage.view() is not None)
    await asyncio.sleep(1)
    await end_tasks(running)


async def test_a_directory_that_was_removed_breaks_no_limit_where_there_is_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is of the directory; with a limit, of that."""
    monkeypatch.setattr("stepscope.collector.retention.storage.LEAST_SECONDS", 0.01)
    monkeypatch.setattr("stepscope.collector.retention.storage.FREE_SECONDS", 0.01)
    storage = Storage(store, StoragePolicy())
    running = asyncio.create_task(storage.run())
    try:
        await poll(lambda: storage.view() is not None)
        shutil.rmtree(store.directory)
        await poll(lambda: (view := storage.view()) is not None and "directory cannot be read" in view.problem)
    finally:
        await end_tasks(running)


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch, below: Path) -> Generator[Counter[str]]:
    """How often each file below a directory is asked for."""
    asked: Counter[str] = Counter()

    def counts(real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(path: Any = ".", *rest: Any, **how: Any) -> Any:
            if not isinstance(path, int) and Path(path).is_relative_to(below):
                asked[os.fspath(path)] += 1
            return real(path, *rest, **how)

        return ask

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "listdir", "scandir"):
            patch.setattr(os, name, counts(getattr(os, name)))
        yield asked


async def test_without_a_limit_the_directory_is_not_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the size at the start plus the bytes that were written since."""
    stored(store, ONE, segment(0), segment(4))
    store = Store(CollectorSettings(directory=store.directory))
    storage = Storage(store, StoragePolicy())
    with counting(monkeypatch, store.streams) as asked:
        await looked(storage)
    view = storage.view()
    size = sum(one.stat().st_size for one in segment_paths(store.path(ONE)))
    assert view is not None and view.used_bytes == size and view.limit_bytes is None and view.free_bytes > 0
    assert not asked
    store.bytes += 100
    again = storage.view()
    assert again is not None and again.used_bytes == size + 100


async def test_a_look_asks_for_each_segment_once_and_is_not_repeated(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until so much was written that another one is due."""
    path = stored(store, ONE, *(segment(at) for at in range(0, 40, 4)))
    storage = Storage(store, StoragePolicy(max_bytes=1 << 30))
    with counting(monkeypatch, store.streams) as asked:
        await looked(storage)
    assert {asked[os.fspath(one)] for one in segment_paths(path)} == {1}
    size = (1 << 30) // 40
    for number in range(40):
        with contextlib.suppress(Exception):
            async with asyncio.timeout(0.1):
                await store.quota.reserve(size)
        if store.quota.due.is_set():
            assert number > 30
            return
    raise AssertionError("no look was due")


# files that cannot be removed or read


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, bad: Path) -> Generator[None]:
    """The disk answers nothing about what is below a directory, and that itself."""

    def fails(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def look(path: Any, **how: Any) -> os.stat_result:
            if not isinstance(path, int) and Path(path).is_relative_to(bad):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real(path, **how)

        return look

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat"):
            patch.setattr(os, name, fails(getattr(os, name)))
        yield


def test_a_stream_that_cannot_be_looked_at_does_not_keep_a_collector_from_starting(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named; the others are counted, and read."""
    good = stored(store, ONE, [run_of(), END])
    bad = stored(store, TWO, [run_of(), END])
    with failing(monkeypatch, bad.parent):
        again, streams = Store(CollectorSettings(directory=store.directory)), Streams(8)
        StartupRecovery(again, streams).look()
    assert again.bytes == good.stat().st_size and list(streams.unread) == [ONE]
    check_messages(caplog.records, bad, "Input/output error")


def test_a_file_that_cannot_be_read_costs_itself(store: Store) -> None:
    """A file with any fault is named until it is gone."""
    bad = stored(store, ONE, segment(0), segment(4))
    bad.write_bytes(os.urandom(300 * KIB))
    stored(store, TWO, segment(0, rank=1)).write_bytes(b"")
    good = stored(store, THREE, segment(0, rank=2), segment(4, rank=2), segment(8, rank=2))
    storage = Storage(store, StoragePolicy(max_bytes=disk_use(store.directory).total * 3 // 4, newest=0, slowest=0))
    storage.enforce()
    assert list(storage.unreadable) == [ONE] and "not a stepscope journal" in storage.unreadable[ONE]
    assert len(segment_paths(good)) < 3
    shutil.rmtree(bad.parent)
    (store.streams / "of somebody else").write_bytes(bytes(MIB))
    storage.enforce()
    assert not storage.unreadable


async def test_evictions_are_counted_though_the_disk_fails_then(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much of it is free cannot be asked: what was evicted is known all the same, and the problem reported."""
    path = stored(store, ONE, segment(0), segment(4))
    store = Store(CollectorSettings(directory=store.directory))
    streams = Streams(8)
    restoring = StartupRecovery(store, streams)
    restoring.look()
    await restoring.run()
    before = store.bytes

    def fails(path: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(shutil, "disk_usage", fails)
    storage = Storage(store, StoragePolicy(max_bytes=4096, newest=0, slowest=0), streams)
    running = asyncio.create_task(storage.run())
    await poll(lambda: store.bytes < before)
    await end_tasks(running)
    assert at_once(streams.totals())[0].discarded == read_evicted(path)[0].events == 4 * KIB
    assert at_once(streams.totals())[0].events == 8 * KIB


async def test_evicted_events_count_the_same_after_a_start(store: Store) -> None:
    """Events are what they were, windows say that a part is gone, and what was evicted is not missing."""
    stored(store, ONE, segment(0), segment(4), segment(8), [*segment(12), END])

    async def restored() -> Streams:
        streams = Streams(8)
        restoring = StartupRecovery(store, streams)
        await asyncio.to_thread(restoring.look)
        await restoring.run()
        return streams

    before = await restored()
    slow = Storage(
        store, StoragePolicy(max_bytes=disk_use(store.directory).total * 3 // 4, newest=0, slowest=1), before
    )
    done = await asyncio.to_thread(slow.enforce)
    for stream, evicted in done.evicted * 2:
        before.all[stream].windows.evict(evicted)
    after = await restored()
    one, other = before.all[ONE], after.all[ONE]
    assert done.evicted and one.amounts == other.amounts and other.amounts.discarded == 8 * KIB
    assert one.windows.count == 16 and other.windows.count == 8 and other.ended and not other.missing
    assert one.windows.evicted == other.windows.evicted == {evicted.segment for _, evicted in done.evicted}
    gone = {*range(16)} - {*events_in(store.path(ONE))}
    assert {window.index for window in one.windows if window.partly_evicted} == gone


# between two looks


async def sent(url: str, stream: str, made: list[Frame]) -> protocol.Header:
    """The collector's answer to a stream that is sent in messages of five frames."""
    async with connected(url.replace("http", "ws")) as one:
        await one.send(hello(stream=stream))
        found = await answer(one)
        assert isinstance(found, protocol.Welcome), found
        for first in range(0, len(made), 5):
            part = made[first : first + 5]
            await one.send(protocol.encode(frames_header(first, len(part)), encoded(part, first)))
            found = await answer(one)
            assert found == protocol.Ack(first + len(part))
        return found


async def test_fast_writers_do_not_run_past_the_limit(tmp_path: Path) -> None:
    """Their messages wait for room, none is refused, and the newest is there in the end."""
    limit = 4 * MIB
    settings = CollectorSettings(directory=tmp_path, port=0, disk_bytes=limit, keep_newest=2, keep_slowest=0)
    collector = Collector(settings)
    most = 0
    async with collector.serving() as url:
        for number in range(40):
            made = [run_of(0, began=100 * number), *windows(range(1), 256 * KIB, began=100 * number), END]
            await sent(url, f"{number:032x}", made)
            await poll(lambda: not collector.store.connected(f"{number:032x}"))  # noqa: B023
            most = max(most, disk_use(tmp_path).total)
        await poll(lambda: (view := collector.storage.view()) is not None and not view.problem)
    assert limit // 2 < most <= limit + 64 * KIB
    assert events_in(tmp_path / "streams" / f"{39:032x}" / "journal")[0] == 256 * KIB // 64


async def test_small_segments_count_with_their_blocks(tmp_path: Path) -> None:
    """A rank that begins one with each frame does not run past the limit, and the page says how much is used."""
    limit, count = MIB, 600
    collector = Collector(CollectorSettings(directory=tmp_path, port=0, disk_bytes=limit))
    async with collector.serving() as url:
        await poll(collector.storage.view)
        async with connected(url.replace("http", "ws")) as one:
            await one.send(hello())
            await answer(one)
            position, most = 20, 0
            for number in range(count):
                data = frames(number, 1)
                await one.send(protocol.encode(frames_header(number, 1, number, position), data))
                assert await answer(one) == protocol.Ack(number + 1)
                position += len(data)
                used = disk_use(tmp_path).total
                most = max(most, used)
                assert (view := collector.storage.view()) is not None and view.used_bytes >= used - 64 * KIB
        assert limit // 2 < most <= limit
