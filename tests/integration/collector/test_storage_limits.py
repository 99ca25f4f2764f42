"""The limit of a collector's disk: what counts, what goes first, what a look reads, and what cannot be done."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.collector.app import Collector
from stepscope.collector.discarding.discard import block_bytes, discard, places
from stepscope.collector.files import checkpoint
from stepscope.collector.files.disk_use import disk_use
from stepscope.collector.files.store import Store
from stepscope.collector.live.restoring import Restoring
from stepscope.collector.live.streams import Streams
from stepscope.collector.retention.deleting import Count, Deleted
from stepscope.collector.retention.inventory import Inventory
from stepscope.collector.retention.retention import StoragePolicy
from stepscope.collector.retention.storage import Storage
from stepscope.collector.runs.mark import SUPERSEDED
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.collector import protocol
from stepscope.runtime.errors import FormatError, OutputError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from tests.support.basics import poll
from tests.support.collecting import collecting, trained, until
from tests.support.collectors import answer, connected
from tests.support.disks import disk_without_holes
from tests.support.messages import refused, said
from tests.support.streams import frames, frames_header, hello
from tests.support.windowed import END, closed, encoded, events, run_of, stored, windows

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(CollectorSettings(directory=tmp_path / "c"))


def kept(path: Path) -> Counter[int]:
    """Events of each window that are in a journal, which must be whole but for its end."""
    found: Counter[int] = Counter()
    with JournalReader(path) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                found[item.window] += len(item)
        assert not reader.damage.skipped_bytes and not reader.damage.lost_frames
    return found


def gone(path: Path) -> set[int]:
    """Windows of which nothing is left."""
    there = set(kept(path))
    return {place for place in range(max(there, default=-1) + 1) if place not in there}


def taken(directory: Path) -> int:
    """Bytes on disk of a directory's content, as du counts them."""
    return sum(
        os.lstat(Path(at, name)).st_blocks * 512 for at, below, files in os.walk(directory) for name in below + files
    )


# what counts


def test_everything_counts_that_a_collector_writes(tmp_path: Path) -> None:
    """Streams, those that others supersede, what is beside them, files that are made for a download; nothing of others."""
    directory = tmp_path / "c"
    with collecting(directory, "--disk", str(1 << 40)) as collector:
        trained(collector.url, 0)
        stream = collector.when(lambda ranks: ranks and ranks[0]["state"] == "ended")[0]["stream"]
        (directory / "streams" / stream / SUPERSEDED).write_text(TWO)
        (directory / "downloads" / "one").mkdir(parents=True)
        (directory / "downloads" / "one" / "x").write_bytes(os.urandom(MIB))
        collector.stop()
    assert disk_use(directory).total == taken(directory) > MIB
    (directory / "of somebody else").write_bytes(os.urandom(MIB))
    assert disk_use(directory).total == taken(directory) - MIB


def test_what_another_stream_has_goes_first_and_whole(store: Store) -> None:
    """No window is given up for a copy; without the other stream it is no copy."""
    path = stored(store, ONE, [run_of(), *windows(range(4), 256 * KIB), END])
    for other, holder in ((TWO, ONE), (THREE, "9" * 32)):
        stored(store, other, [run_of(), *windows(range(2), 256 * KIB)]).with_name(SUPERSEDED).write_text(holder)
    before = disk_use(store.directory).total
    done = Storage(store, StoragePolicy(max_bytes=before * 15 // 16)).enforce()
    assert not store.path(TWO).exists() and store.path(THREE).exists() and done.events == 0
    assert done.freed >= 512 * KIB and done.used == disk_use(store.directory).total <= before - 512 * KIB
    assert done.removed_bytes > 512 * KIB and set(kept(path)) == set(range(4))


async def test_a_copy_that_is_connected_is_not_deleted(store: Store) -> None:
    """Its file is being written."""
    stored(store, ONE, [run_of(), END])
    stored(store, TWO, [run_of()]).with_name(SUPERSEDED).write_text(ONE)
    header, _ = protocol.decode(hello(stream=TWO))
    assert isinstance(header, protocol.Hello)
    async with store.stream(header, lambda: None):
        assert [stream for stream, _ in store.superseded()] == [TWO]
        assert not store.remove(TWO)
    assert store.remove(TWO) and not store.path(TWO).exists()


def test_an_older_start_of_a_rank_goes_before_the_newer(store: Store) -> None:
    """Also the window in which it died, which has no end; by its steps a window is one with those of other ranks."""
    first = stored(store, ONE, [run_of(), *windows(range(3), 256 * KIB, ended=False)])
    second = stored(store, TWO, [run_of(began=100), *windows(range(3), 256 * KIB, began=100, first=100), END])
    limit = disk_use(store.directory).total - 256 * KIB
    Storage(store, StoragePolicy(max_bytes=limit, newest=3, slowest=0)).enforce()
    assert set(kept(second)) == {0, 1, 2}
    assert not {0, 1} & set(kept(first))


def test_a_window_in_which_a_rank_died_goes_when_its_time_comes(store: Store) -> None:
    """It has no end on that rank, and will have none: it is not kept for ever on the others."""
    first = stored(store, ONE, [run_of(0), *windows(range(10), 128 * KIB), END])
    died = stored(store, TWO, [run_of(1), *windows(range(3), 128 * KIB, ended=False)])
    limit = disk_use(store.directory).total - 512 * KIB
    Storage(store, StoragePolicy(max_bytes=limit, newest=5, slowest=0), Streams(8)).enforce()
    assert {0, 1, 2} <= gone(first) and 9 in kept(first) and not kept(died)


def test_windows_of_one_time_go_on_all_ranks(store: Store) -> None:
    """A rank that was started again counts from 0; which windows are one its steps tell."""
    first = stored(store, ONE, [run_of(0), *windows(range(6), 128 * KIB), END])
    again = stored(store, TWO, [run_of(1, began=3), *windows(range(3), 128 * KIB, began=3, first=6), END])
    stored(store, THREE, [run_of(1), *windows(range(3), 128 * KIB), END])
    for part in range(4):
        limit = disk_use(store.directory).total - part * 32 * KIB
        Storage(store, StoragePolicy(max_bytes=limit, newest=1, slowest=0)).enforce()
        assert {window - 3 for window in gone(first) if window >= 3} == gone(again)
    assert gone(again)


@pytest.mark.parametrize("together", [True, False])
def test_another_run_of_a_job_has_windows_of_its_own(store: Store, together: bool) -> None:
    """It begins when the one before is over, and has the same steps; but two starts at one time have the same windows."""
    before = stored(store, ONE, [run_of(), *windows(range(3), 256 * KIB), END])
    after = stored(store, TWO, [run_of(began=100), *windows(range(3), 256 * KIB, began=100), END])
    written = os.stat(after.parent).st_mtime + (10 if together else -10)
    os.utime(before, (written, written))
    limit = disk_use(store.directory).total - 256 * KIB
    Storage(store, StoragePolicy(max_bytes=limit, newest=2, slowest=0)).enforce()
    assert set(kept(after)) == ({1, 2} if together else {0, 1, 2})
    assert set(kept(before)) == ({1, 2} if together else {2})


def test_blocks_that_small_frames_share_are_freed(store: Store) -> None:
    """Also those that hold parts of several frames; what counts as freed is what the file takes less."""
    small = stored(store, ONE, [run_of(), *windows(range(50), 16 * KIB, frames=16), END])
    before = kept(small)
    done = Storage(store, StoragePolicy(max_bytes=disk_use(store.directory).total // 2, newest=1, slowest=0)).enforce()
    there = kept(small)
    assert done.events == before.total() - there.total() and there[49] == before[49]
    given = sum(before[window] * 64 for window in gone(small))
    block = block_bytes(store.directory)
    # But for the first and the last block of each window, which hold something else as well.
    assert given * 3 // 4 - 2 * block < done.freed <= given + 2 * block * len(gone(small))
    large = stored(store, TWO, [run_of(), *windows(range(10), 100_000, frames=3), END])
    blocks = large.stat().st_blocks
    freed = discard(large, places(large)).freed
    assert freed == (blocks - large.stat().st_blocks) * 512
    # A file of many pieces takes blocks for where they are.
    assert 10 * 100_000 * 3 // 4 < freed <= 10 * 100_000


def test_a_run_that_is_over_goes_when_its_time_comes(store: Store) -> None:
    """Whole, the oldest first: not one with a window that is among the slowest, nor one that was not copied whole."""
    streams = [f"{number:032x}" for number in range(1, 7)]
    for at, stream in enumerate(streams):
        made = list(windows(range(3), 256 * KIB, began=100 * at, first=100 * at, packed=True))
        if at == 1:
            made[4] = closed(0, 100, 100, seconds=50.0)
        stored(store, stream, [run_of(began=100 * at), *made, END])
    copied = {stream: store.path(stream).stat().st_size - (at == 2) for at, stream in enumerate(streams)}
    limit = disk_use(store.directory).total * 5 // 8
    policy = StoragePolicy(max_bytes=limit, newest=3, slowest=1)
    storage = Storage(store, policy, copied=lambda stream: copied[stream])
    done = storage.enforce()
    assert streams[0] in done.deleted and not {streams[1], streams[2], streams[5]} & set(done.deleted)
    assert done.used <= limit and kept(store.path(streams[1]))[0] and kept(store.path(streams[5])).total() == 3 * 4096
    assert not any(store.path(stream).parent.exists() for stream in done.deleted)
    assert done.removed_bytes == sum(copied[stream] for stream in done.deleted)


def test_one_that_has_no_end_goes_when_nothing_was_heard_of_it(store: Store) -> None:
    """Its process was killed, and might deliver the rest: after an hour it is not waited for any longer."""
    died, again = stored(store, ONE, [run_of(), *windows(range(4), 256 * KIB)]), TWO
    stored(store, again, [run_of(began=100), *windows(range(4), 256 * KIB, began=100, first=100), END])
    policy = StoragePolicy(max_bytes=disk_use(store.directory).total * 3 // 5, newest=4, slowest=0)
    assert not Storage(store, policy).enforce().deleted and died.exists()
    stored_at = died.stat().st_mtime - 7200
    os.utime(died, (stored_at, stored_at))
    policy = StoragePolicy(max_bytes=disk_use(store.directory).total * 9 // 10, newest=1, slowest=0)
    assert Storage(store, policy).enforce().deleted == [ONE] and not died.exists()


# what a look costs


def test_a_look_reads_what_is_new(store: Store) -> None:
    """What was read before could be destroyed meanwhile, and it would not be seen."""
    path = stored(store, ONE, [run_of(), *windows(range(5), 64 * KIB)])
    inventory = Inventory(path)
    inventory.look()
    known = {at: copy(extent) for at, extent in inventory.windows.items()}
    assert set(known) == set(range(5)) and inventory.position == path.stat().st_size
    more = encoded(list(windows(range(5, 7), 64 * KIB)), 26)
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"\0" * (len(data) - 20))
        file.write(more)
    inventory.look()
    assert set(inventory.windows) == set(range(7)) and all(inventory.windows[at] == known[at] for at in known)
    path.unlink()
    path.write_bytes(data)
    inventory.look()
    assert set(inventory.windows) == set(range(5)), "another file is read anew"


def test_what_has_nothing_left_is_forgotten(store: Store) -> None:
    """Over weeks the windows that were given up cost no memory."""
    path = stored(store, ONE, [run_of(), *windows(range(20), 64 * KIB)])
    storage = Storage(store, StoragePolicy(max_bytes=704 * KIB, newest=2, slowest=0))
    storage.enforce()
    inventory = Inventory(path)
    inventory.look()
    assert set(inventory.windows) == set(kept(path)) and len(inventory.windows) < 12


def test_more_is_freed_than_must_be(store: Store) -> None:
    """So that it need not be done again for each block that is written."""
    path = stored(store, ONE, [run_of(), *windows(range(40), 64 * KIB)])
    limit = disk_use(store.directory).total * 15 // 16
    storage = Storage(store, StoragePolicy(max_bytes=limit, newest=1, slowest=0))
    done = storage.enforce()
    assert done.events and done.used <= limit * 14 // 16
    with path.open("ab") as file:
        file.write(encoded(list(windows(range(40, 41), 64 * KIB)), 1 + 40 * 5))
    assert storage.enforce().events == 0


# what is in the way


def test_a_file_that_cannot_be_read_costs_itself(store: Store) -> None:
    """Whatever is wrong with it; it is counted, and named once."""
    stored(store, ONE, []).write_bytes(os.urandom(300 * KIB))
    cut = stored(store, TWO, [run_of()])
    cut.write_bytes(b"")
    good = stored(store, THREE, [run_of(), *windows(range(8), 128 * KIB), END])
    limit = disk_use(store.directory).total - 256 * KIB
    storage = Storage(store, StoragePolicy(max_bytes=limit, newest=1, slowest=0))
    done = storage.enforce()
    assert done.events and done.used <= limit and 7 in kept(good)
    assert list(storage.unreadable) == [ONE] and "not a stepscope journal" in storage.unreadable[ONE]
    store.path(ONE).unlink()
    with good.open("ab") as file:
        file.write(os.urandom(512 * KIB))
    storage.enforce()
    assert not storage.unreadable


def test_a_copy_that_cannot_be_deleted_costs_itself(store: Store) -> None:
    """It is named, and the limit is kept with the others."""
    path = stored(store, ONE, [run_of(), *windows(range(8), 128 * KIB), END])
    copy = stored(store, TWO, [run_of()]).with_name(SUPERSEDED)
    copy.write_text(ONE)
    copy.with_name(checkpoint.NAME).mkdir()
    limit = disk_use(store.directory).total - 256 * KIB
    storage = Storage(store, StoragePolicy(max_bytes=limit, newest=1, slowest=0))
    done = storage.enforce()
    assert done.events and done.used <= limit and 7 in kept(path) and list(storage.unreadable) == [TWO]


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
        Restoring(again, streams).look()
    assert again.bytes == good.stat().st_size and list(streams.unread) == [ONE]
    said(caplog.records, bad, "Input/output error")


async def test_what_was_given_up_is_told_though_the_disk_fails_then(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much of it is free cannot be asked: what was deleted is known all the same, and the problem said."""
    stored(store, ONE, [run_of(), *windows(range(2), 6400), END])

    def fails(path: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(shutil, "disk_usage", fails)
    storage, before = Storage(store, StoragePolicy(max_bytes=4096, newest=0, slowest=0)), store.bytes
    running = asyncio.create_task(storage.run())
    await asyncio.to_thread(until, lambda: (view := storage.view()) is not None and view.problem)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    view = storage.view()
    assert view is not None and "Input/output error" in view.problem and store.bytes < before


def test_a_stream_that_cannot_be_looked_at_costs_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither it nor whether another one has it: both are named, and the limit is kept with the others."""
    good = stored(store, ONE, [run_of(), *windows(range(8), 128 * KIB), END])
    stored(store, TWO, [run_of()]).with_name(SUPERSEDED).mkdir()
    bad = stored(store, THREE, [run_of(), END]).parent
    limit = disk_use(store.directory).total - 256 * KIB

    storage = Storage(store, StoragePolicy(max_bytes=limit, newest=1, slowest=0))
    with failing(monkeypatch, bad):
        done = storage.enforce()
        assert sorted(storage.unreadable) == [TWO, THREE] and "Input/output error" in storage.unreadable[THREE]
    assert done.events and done.used <= limit and 7 in kept(good)


def test_what_was_deleted_is_told_though_the_disk_fails_then(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its events would count as there for ever."""
    path = stored(store, ONE, [run_of(), END])
    real = os.lstat

    def look(at: Any, **how: Any) -> os.stat_result:
        if at == store.streams and not os.path.exists(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))
        return real(at, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", look)
        done = Storage(store, StoragePolicy(max_bytes=1 << 30)).enforce(crowd=1)
    assert done.deleted == [ONE] and done.freed


def test_a_stream_that_comes_again_is_read_anew(store: Store, tmp_path: Path) -> None:
    """Though its file has the number of the one that was deleted."""
    path = stored(store, ONE, [run_of(), *windows(range(2), 6400), END])
    os.link(path, tmp_path / "same")
    storage = Storage(store, StoragePolicy(max_bytes=1 << 30))
    assert storage.enforce(crowd=1).deleted == [ONE]
    again = stored(store, ONE, [run_of(), *windows(range(5), 6400)])
    (tmp_path / "same").write_bytes(again.read_bytes())
    again.unlink()
    os.link(tmp_path / "same", again)
    assert not storage.enforce(crowd=1).deleted, "it has no end this time"


class Taken(Store):
    """Somebody takes a stream right before it is deleted."""

    def remove(self, stream: str) -> bool:
        return stream != TWO and super().remove(stream)


def test_what_cannot_be_deleted_does_not_count_as_deleted(store: Store) -> None:
    """However often it is tried, be it that the disk refuses it or that somebody has it; it counts when it goes."""
    for stream in (ONE, TWO):
        path = stored(store, stream, [run_of(), *windows(range(2), 6400), END])
        path.with_name(checkpoint.NAME).mkdir()
    storage = Storage(store, StoragePolicy(max_bytes=1 << 30))
    for _ in range(3):
        assert not storage.enforce(crowd=2).deleted and sorted(storage.unreadable) == [ONE, TWO]
        assert Deleted(store.directory).count == Count()
    for stream in (ONE, TWO):
        store.path(stream).with_name(checkpoint.NAME).rmdir()
    for taken, deleted in ((Taken(CollectorSettings(directory=store.directory)), ONE), (store, TWO)):
        assert Storage(taken, StoragePolicy(max_bytes=1 << 30)).enforce(crowd=2).deleted == [deleted]
    assert Deleted(store.directory).count == Count(2, 400, TWO)


def test_a_collector_goes_on_with_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """It says which, in the API, and keeps its limit with the others."""
    store = Store(CollectorSettings(directory=tmp_path))
    stored(store, ONE, []).write_bytes(os.urandom(64 * KIB))
    path = stored(store, TWO, [run_of(), *windows(range(16), 128 * KIB), END])
    with collecting(tmp_path, "--disk", str(MIB), "--keep-newest", "2", "--keep-slowest", "0") as collector:
        storage = until(lambda: (now := collector.get("/v1/job")["storage"]) and now["used_bytes"] <= MIB and now)
        assert storage["unreadable"] == 1 and ONE in storage["problem"]
    assert {14, 15} <= set(kept(path))


def test_a_file_system_that_frees_no_parts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is given up in vain; without a limit such a disk is as good as any."""
    with disk_without_holes(tmp_path / "disk") as disk:
        assert block_bytes(disk) == 0 and not list(disk.iterdir())
        store = Store(CollectorSettings(directory=disk / "c"))
        path = stored(store, ONE, [run_of(), *windows(range(4), 128 * KIB), END])
        with refused(OutputError, "disk_bytes", "--disk", "max_bytes", "--max-bytes"):
            Storage(store, StoragePolicy(max_bytes=MIB))
        assert main(["collect", "--dir", str(disk / "c"), "--port", "0", "--disk", "1000000"]) == 1
        said(capsys.readouterr().err, "--max-bytes")
        assert Storage(store, StoragePolicy()).enforce().used > 512 * KIB
        # Whoever tries all the same loses what was chosen at most, and the file is whole.
        before = kept(path).total()
        with pytest.raises(OSError, match="not supported"):
            discard(path, [place for place in places(path) if place.header.window < 2])
        assert kept(path).total() == before - 2 * 128 * KIB // 64
    assert block_bytes(tmp_path) > 0


# between two looks


async def test_a_fast_writer_does_not_run_past_the_limit(tmp_path: Path) -> None:
    """However fast it writes: what it sends waits for room, none of it is refused, and the newest is there in the end."""
    limit = 4 * MIB
    settings = CollectorSettings(directory=tmp_path, port=0, disk_bytes=limit, keep_newest=2, keep_slowest=0)
    collector = Collector(settings)
    made = [run_of(), *windows(range(30), 256 * KIB)]
    most = 0
    async with collector.serving() as url, connected(url.replace("http", "ws")) as one:
        await one.send(hello(stream=ONE))
        assert isinstance(await answer(one), protocol.Welcome)
        for first in range(0, len(made), 5):
            some = made[first : first + 5]
            await one.send(protocol.encode(frames_header(first, len(some)), encoded(some, first)))
            assert await answer(one) == protocol.Ack(first + len(some))
            most = max(most, disk_use(tmp_path).total)
        await poll(lambda: (view := collector.storage.view()) is not None and not view.problem)
    assert limit // 2 < most <= limit + 64 * KIB
    assert kept(tmp_path / "streams" / ONE / "journal")[29] == 256 * KIB // 64


async def test_what_cannot_be_given_up_is_not_exceeded(tmp_path: Path) -> None:
    """Frames of a kind that nobody knows stay: beyond the limit more of them are refused, and their exporter keeps them."""
    limit = 2 * MIB
    collector = Collector(CollectorSettings(directory=tmp_path, port=0, disk_bytes=limit))
    async with collector.serving() as url:
        for stream in (ONE, TWO):
            async with connected(url.replace("http", "ws")) as one:
                await one.send(hello(stream=stream))
                assert isinstance(await answer(one), protocol.Welcome)
                said: protocol.Header = protocol.Ack(0)
                first = 0
                while isinstance(said, protocol.Ack):
                    await one.send(protocol.encode(frames_header(first, 1), frames(first, 1, size=128 * KIB)))
                    said = await answer(one)
                    first += 1
                assert isinstance(said, protocol.Refused) and said.retry
                assert f"limit of {limit} bytes on disk" in said.reason
                assert disk_use(tmp_path).total <= limit + 64 * KIB
    assert store_bytes(tmp_path) > limit // 2


def store_bytes(directory: Path) -> int:
    """Of all journals."""
    return sum(path.stat().st_size for path in directory.glob("streams/*/journal"))


def test_a_long_window_that_is_open_gives_up_its_oldest(store: Store) -> None:
    """By the ranks' times, not by how much each has."""
    early = stored(store, ONE, [run_of(0), *(events(0, 64 * KIB, second) for second in range(0, 16))])
    late = stored(store, TWO, [run_of(1), *(events(0, 64 * KIB, second) for second in range(8, 24))])
    limit = disk_use(store.directory).total * 15 // 16
    done = Storage(store, StoragePolicy(max_bytes=limit)).enforce()
    assert done.used <= limit * 14 // 16 and kept(late).total() == KIB * 16 > kept(early).total()


def test_one_that_is_no_journal_is_no_inventory(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"text" * 100)
    with pytest.raises(FormatError):
        Inventory(tmp_path / "journal").look()
