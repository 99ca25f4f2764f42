"""Uploads beside what gives events up: neither waits for the other store, and no copy has half of what was given up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stepscope.collector.app import Collector
from stepscope.collector.archive import uploading
from stepscope.collector.archive.archive import MANIFEST, Archive
from stepscope.collector.archive.upload import Uploader
from stepscope.collector.archive.uploading import Uploading
from stepscope.collector.discarding.discard import discard, places
from stepscope.collector.files.disk_use import disk_use
from stepscope.collector.files.store import Store
from stepscope.collector.retention import storage
from stepscope.collector.retention.retention import StoragePolicy
from stepscope.collector.retention.storage import Storage
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.collector import protocol
from tests.integration.collector.test_storage_limits import kept
from tests.support.archives import HangingStore, following, restored
from tests.support.basics import poll
from tests.support.collecting import collecting, until
from tests.support.collectors import answer, connected
from tests.support.launch import start
from tests.support.streams import STREAM, frames_header, hello
from tests.support.windowed import END, Frame, encoded, run_of, stored, windows

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(CollectorSettings(directory=tmp_path / "collected"))


async def streamed(url: str, made: list[Frame], first: int, last: int) -> None:
    """Sends frames as an exporter does that waits for confirmations; each is taken."""
    async with connected(url.replace("http", "ws")) as one:
        await one.send(hello(stream=STREAM))
        welcome = await answer(one)
        assert isinstance(welcome, protocol.Welcome) and welcome.next == first
        for at in range(first, last, 5):
            some = made[at : min(at + 5, last)]
            await one.send(protocol.encode(frames_header(at, len(some)), encoded(some, at)))
            assert await answer(one) == protocol.Ack(at + len(some))


async def test_a_store_that_hangs_stops_neither_streams_nor_giving_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said. What was given up meanwhile is missing in the copy, which is whole otherwise."""
    monkeypatch.setattr(uploading, "SILENCE", 0.1)
    other = HangingStore(tmp_path / "remote")
    limit = 4 * MIB
    settings = CollectorSettings(
        directory=tmp_path / "collected", port=0, disk_bytes=limit, keep_newest=2, keep_slowest=0,
        upload=other.url, upload_seconds=0.05,
    )  # fmt: skip
    made = [run_of(), *windows(range(24), 256 * KIB), END]
    collector = Collector(settings)
    journal = collector.store.path(STREAM)
    try:
        async with collector.serving() as url:
            assert collector.uploading is not None
            view = collector.uploading.view
            await streamed(url, made, 0, 41)
            await poll(other.hangs.is_set)
            await streamed(url, made, 41, len(made))
            await poll(lambda: "nothing was heard of the store" in view().problem)
            assert disk_use(settings.directory).total <= limit and view().bytes == 0
            other.go.set()
            await poll(lambda: view().complete == 1 and not view().problem)
    finally:
        other.go.set()
    back = tmp_path / "back.journal"
    back.write_bytes(restored(Archive(other.url), STREAM))
    there, left = kept(back), kept(journal)
    assert min(left) > 8 and {22, 23} <= set(left), "the oldest were given up, and the newest are there"
    assert there >= left and 0 in there, "what was read for the copy before it was given up"
    assert there.total() < 24 * 256 * KIB // 64 and back.stat().st_size == journal.stat().st_size


def test_each_frame_is_copied_at_one_moment(store: Store, tmp_path: Path) -> None:
    """What is given up while a part is written is in it as it was, or as it is: never the beginning of the one with the end
    of the other."""
    path = stored(store, STREAM, [run_of(), *windows(range(6), 3 * MIB // 2, frames=2), END])
    before = kept(path)
    other = HangingStore(tmp_path / "remote", after=2)
    uploader = Uploader(store, other.url)
    thread = threading.Thread(target=uploader.upload)
    thread.start()
    try:
        assert other.hangs.wait(30)
        done = Storage(store, StoragePolicy(max_bytes=2 * MIB, newest=1, slowest=0)).enforce()
        assert not done.busy and done.events
    finally:
        other.go.set()
        thread.join()
    back = tmp_path / "back.journal"
    back.write_bytes(restored(Archive(other.url), STREAM))
    there = kept(back)
    assert there[0] == before[0] and kept(path)[0] == 0
    assert there.total() < before.total() and back.stat().st_size == path.stat().st_size


async def test_a_store_that_hangs_is_told_of(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(store, STREAM, [run_of(), END])
    other = HangingStore(tmp_path / "remote")
    found = Uploading(store, other.url, every=0.05)
    task = asyncio.create_task(found.run())
    await poll(other.hangs.is_set)
    assert not found.view().problem
    monkeypatch.setattr(uploading, "SILENCE", 0.01)
    await poll(lambda: "nothing was heard of the store" in found.view().problem)
    other.go.set()
    await poll(lambda: found.view().complete == 1 and not found.view().problem)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# in other processes


def waits(process: subprocess.Popen[str], lock: Path) -> bool:
    """Whether it has the file of a lock open."""
    fds = f"/proc/{process.pid}/fd"
    try:
        return any(os.path.samefile(f"{fds}/{fd}", lock) for fd in os.listdir(fds))
    except FileNotFoundError:
        return False  # that one was closed meanwhile


def test_another_process_does_not_copy_what_is_being_given_up(store: Store, tmp_path: Path) -> None:
    """Half of what was given up, as it may be for a moment, is never read."""
    path = stored(store, STREAM, [run_of(), *windows(range(4), 256 * KIB), END])
    data = path.read_bytes()
    remote = tmp_path / "remote"
    with store.frames.held(30):
        process = start(
            [sys.executable, "-m", "stepscope", "upload", str(store.directory), f"file://{remote}"],
            server="command",
            stdout=subprocess.PIPE,
            text=True,
        )
        # It opens the lock anew when it is to copy something.
        until(lambda: any(store.directory.glob("uploads/*")) and waits(process, store.directory / "rewriting"))
        path.write_bytes(bytes(len(data)))
        assert process.poll() is None and not (remote / STREAM / MANIFEST).exists()
        path.write_bytes(data)
        discard(path, places(path))
    assert process.communicate(timeout=60)[0].startswith("1 streams, 1 complete")
    assert restored(Archive(f"file://{remote}"), STREAM) == path.read_bytes()


HOLDING = """
import sys, time
from pathlib import Path
from stepscope.collector.files.frame_lock import FrameLock

with FrameLock(Path(sys.argv[1])).held(30):
    print("held", flush=True)
    time.sleep(1000)
"""


def test_one_that_is_killed_holds_nothing_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that was suspended keep the collector from saying why nothing is given up."""
    monkeypatch.setattr(storage, "PATIENCE", 0.05)
    path = stored(store, STREAM, [run_of(), *windows(range(8), 128 * KIB), END])
    keeping = Storage(store, StoragePolicy(max_bytes=disk_use(store.directory).total // 2, newest=1, slowest=0))
    process = start([sys.executable, "-c", HOLDING, str(store.directory)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert keeping.enforce().busy and len(kept(path)) == 8
    finally:
        process.kill()
        process.communicate()
    done = keeping.enforce()
    assert not done.busy and done.events and len(kept(path)) < 8


async def test_an_upload_follows_beside_a_collector_with_a_limit(tmp_path: Path) -> None:
    """As processes of their own: whatever is given up while it is copied, the copy is whole, and can be merged."""
    remote, directory = tmp_path / "remote", tmp_path / "collected"
    made = [run_of(), *windows(range(12), 256 * KIB), END]
    with collecting(directory, "--disk", str(2 * MIB), "--keep-newest", "2", "--keep-slowest", "0") as collector:
        with following(directory, remote, 0.05, "--rest") as process:
            await streamed(collector.url, made, 0, len(made))
            archive = Archive(f"file://{remote}")
            await poll(lambda: archive.manifest(STREAM).complete)
            assert process.poll() is None
        assert collector.get("/v1/job")["storage"]["problem"] == ""
    back = tmp_path / "back.journal"
    back.write_bytes(restored(archive, STREAM))
    journal = directory / "streams" / STREAM / "journal"
    left = kept(journal)
    assert min(left) > 0 and kept(back) >= left and back.stat().st_size == journal.stat().st_size
