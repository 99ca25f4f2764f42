"""What a collector uploads by itself: windows as they end, whatever is killed in between, and what it tells of it."""

from __future__ import annotations

import asyncio
import math
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from stepscope.collector import clock_names
from stepscope.collector.app import Collector
from stepscope.collector.archive.archive import MANIFEST, Archive
from stepscope.collector.archive.upload import Uploader
from stepscope.collector.archive.uploading import Uploading
from stepscope.collector.discarding.discard import discard, places
from stepscope.collector.files.store import Store
from stepscope.collector.settings import CollectorSettings
from stepscope.runtime.errors import FormatError, OutputError
from stepscope.runtime.journal import format as fmt
from tests.support.archives import HangingStore, borders, restored
from tests.support.basics import poll
from tests.support.collecting import ask, collecting, trained, until
from tests.support.messages import refused
from tests.support.windowed import END, run_of, stored, windows
from tests.system.collector.test_storage import STREAM, read, record

PART = 20_000


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path / 'remote'}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(CollectorSettings(directory=tmp_path / "collected"))


def names(archive: Archive) -> set[str]:
    """Objects of the stream in the store."""
    return {str(found).rpartition("/")[2] for found in archive.files.ls(f"{archive.root}/{STREAM}", detail=False)}


def test_windows_are_uploaded_as_they_end(store: Store, url: str) -> None:
    """However the file grows, what is in the store ends with a window, or with as many frames as fit into a part."""
    path = stored(store, STREAM, [run_of(), *windows(range(6), 48_000, frames=12), END])
    data = path.read_bytes()
    ends = borders(path)
    uploader = Uploader(store, url, part_bytes=PART, alone=True)
    for size in range(200, len(data), len(data) // 60):
        path.write_bytes(data[:size])
        uploader.upload(windows=True)
        closed = max((at for at, kind in ends if kind == fmt.FrameType.WINDOW_CLOSED and at <= size), default=0)
        copied = uploader.copied(STREAM)
        assert closed <= copied <= size and (copied == 0 or copied in {at for at, _ in ends})
        # Parts that are full do not wait for a window to end.
        assert max((at for at, _ in ends if at <= size), default=0) - copied < PART
        assert uploader.waiting() == 0
    path.write_bytes(data)
    assert uploader.upload(windows=True).complete == 1
    archive = Archive(url)
    manifest = archive.manifest(STREAM)
    assert manifest.complete and manifest.size == len(data)
    assert names(archive) == {MANIFEST, *(part.name for part in manifest.parts)}
    assert restored(archive, STREAM) == data


def test_small_additions_become_few_parts(store: Store, url: str) -> None:
    """A stream that grows by a little each time: parts are few, and each byte is copied a few times."""
    path = record(store.path(STREAM), 3, spans=300)
    data = path.read_bytes()
    uploader = Uploader(store, url, part_bytes=1 << 30, alone=True)
    written = 0
    for at, _ in borders(path):
        path.write_bytes(data[:at])
        uploader.upload(rest=True)
        parts = uploader.archive.manifest(STREAM).parts
        assert len(parts) <= math.log2(at) + 1
        written += parts[-1].size
    assert written <= len(data) * (math.log2(len(data)) + 1)
    assert restored(uploader.archive, STREAM) == data


def test_what_was_given_up_since_stays_in_the_store(store: Store, url: str, tmp_path: Path) -> None:
    """A part that takes in another one takes it from the store."""
    path = record(store.path(STREAM), 4, spans=20_000)  # more than the names of all tests before
    data = path.read_bytes()
    first = [place.at for place in places(path) if place.length > 10_000][1]
    path.write_bytes(data[:first])
    uploader = Uploader(store, url, part_bytes=1 << 30)
    uploader.upload(rest=True)
    assert uploader.copied(STREAM) == first > 1000
    with path.open("ab") as file:
        file.write(data[first:])
    assert discard(path, [place for place in places(path) if place.at + place.length < first])
    assert path.read_bytes() != data
    assert uploader.upload().complete == 1
    assert len(uploader.archive.manifest(STREAM).parts) == 1, "the first part was taken in"
    (tmp_path / "back").write_bytes(restored(uploader.archive, STREAM))
    assert (tmp_path / "back").read_bytes() == data
    assert read(tmp_path / "back")[2] == 0


def streams(store: Store, count: int) -> dict[str, bytes]:
    """Streams that have ended, by id."""
    data = record(store.path(STREAM), 2, spans=300).read_bytes()
    store.path(STREAM).unlink()
    for number in range(count):
        path = store.path(f"{number:032x}")
        path.parent.mkdir(mode=0o700)
        path.write_bytes(data)
    return {f"{number:032x}": data for number in range(count)}


def test_a_collector_that_is_killed_in_the_middle_goes_on(store: Store, tmp_path: Path) -> None:
    """Killed three times, in the end everything is there once, and complete."""
    made = streams(store, 200)
    remote = tmp_path / "remote"

    def complete() -> int:
        return sum('"complete": true' in path.read_text() for path in remote.glob(f"*/{MANIFEST}"))

    for kills in range(4):
        with collecting(tmp_path / "collected", "--upload", f"file://{remote}") as collector:
            if kills < 3:
                wanted = kills * 50 + 1
                until(lambda: complete() >= wanted)  # noqa: B023
                collector.process.send_signal(signal.SIGKILL)
                collector.process.wait()
            else:
                upload = until(lambda: (u := collector.get("/v1/job")["upload"])["complete"] == len(made) and u)
                assert (upload["streams"], upload["waiting_bytes"], upload["problem"]) == (len(made), 0, "")
                assert upload["url"] == f"file://{remote}" and upload["at_ns"] != 0
    archive = Archive(f"file://{remote}")
    assert all(restored(archive, stream) == data for stream, data in made.items())


async def test_one_that_ends_in_the_middle_goes_on(store: Store, url: str) -> None:
    """It ends without waiting for what is left, which the next one uploads; what is there is not uploaded again."""
    made = streams(store, 30)
    total = sum(map(len, made.values()))
    settings = CollectorSettings(
        directory=store.directory, port=0, upload=url, upload_seconds=0.05, upload_part_bytes=PART
    )
    first = Collector(settings)
    assert first.uploading is not None
    async with first.serving():
        await poll(lambda: first.uploading is not None and first.uploading.view().bytes > 0)
    before = first.uploading.view().bytes
    second = Collector(settings)
    async with second.serving():
        await poll(lambda: second.uploading is not None and second.uploading.view().complete == len(made))
        assert second.uploading is not None
        after = second.uploading.view()
    assert after.problem == ""
    # Not more than the part that was being copied is copied again.
    archive = Archive(url)
    largest = max(part.size for stream in made for part in archive.manifest(stream).parts)
    assert total <= before + after.bytes <= total + largest
    assert all(restored(archive, stream) == data for stream, data in made.items())


async def test_nothing_is_written_there_when_it_has_ended(store: Store, tmp_path: Path) -> None:
    """Else it could put an older manifest in the place of that of the next one, which goes on from there."""
    streams(store, 1)
    remote = tmp_path / "remote"
    other = HangingStore(remote)
    uploading = Uploading(store, other.url, every=0.05)
    task = asyncio.create_task(uploading.run())
    await poll(other.hangs.is_set)
    task.cancel()
    archive = uploading._uploader.archive  # pyright: ignore[reportPrivateUsage]
    await poll(lambda: archive.stopped)
    other.go.set()
    await asyncio.wait([task])
    assert list(remote.rglob("journal.*")) and not list(remote.rglob(MANIFEST))


def test_ranks_that_train_are_uploaded(tmp_path: Path) -> None:
    """What was streamed is in the store when the ranks have ended; Prometheus is told, too."""
    remote = tmp_path / "remote"
    with collecting(tmp_path / "collected", "--upload", f"file://{remote}", "--upload-every", "0.2") as collector:
        trained(collector.url, 0)
        stream = collector.ranks()[0]["stream"]
        until((remote / stream / MANIFEST).exists)
        until(lambda: collector.get("/v1/job")["upload"]["complete"] == 1)
        text = ask(f"{collector.url}/metrics").body.decode()
        assert "stepscope_upload_waiting_bytes 0.0" in text and "stepscope_uploaded_bytes_total" in text
        journal = (tmp_path / "collected" / "streams" / stream / "journal").read_bytes()
        archive = Archive(f"file://{remote}")
        assert restored(archive, stream) == journal
        assert archive.clocks() == clock_names.read(tmp_path / "collected")


async def test_a_store_that_fails_is_told_and_asked_again(store: Store, tmp_path: Path) -> None:
    """A journal that cannot be read costs itself alone."""
    made = streams(store, 3)
    bad = store.path("f" * 32)
    bad.parent.mkdir(mode=0o700)
    bad.write_bytes(b"no journal" * 10)
    remote = tmp_path / "remote"
    remote.write_text("in the way")
    uploading = Uploading(store, f"file://{remote}", every=0.05)
    task = asyncio.create_task(uploading.run())
    await poll(lambda: uploading.view().problem)
    assert uploading.view().bytes == 0
    remote.unlink()
    await poll(lambda: uploading.view().bytes == sum(map(len, made.values())))
    await poll(lambda: "not a stepscope journal" in uploading.view().problem)
    assert all(uploading.copied(stream) == len(data) for stream, data in made.items())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class StrangeError(Exception):
    """As of a library that knows nothing of OSError."""


@pytest.mark.parametrize("operation", ["exists", "open", "pipe_file"])
async def test_whatever_a_store_raises_is_told_and_over_the_next_time(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Libraries of object stores have errors of their own."""

    def fails(*_: Any, **options: Any) -> None:
        raise StrangeError("no route")

    made = streams(store, 3)
    uploading = Uploading(store, url, every=0.05)
    files: Any = uploading._uploader.archive.files  # pyright: ignore[reportPrivateUsage]
    with monkeypatch.context() as away:
        away.setattr(files, operation, fails)
        task = asyncio.create_task(uploading.run())
        await poll(lambda: "StrangeError: no route" in uploading.view().problem)
    await poll(lambda: uploading.view().complete == len(made) and not uploading.view().problem)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_what_is_wrong_with_one_stream_costs_that_one(store: Store, tmp_path: Path) -> None:
    """Manifests that are none; and one stream, or some in a row, that the store refuses."""
    first, second, third, *others = streams(store, 6)
    remote = tmp_path / "remote"
    for stream in (first, second):
        (remote / stream).mkdir(parents=True)
        (remote / stream / MANIFEST).write_text("{")
    (remote / third).write_text("in the way")
    uploader = Uploader(store, f"file://{remote}", alone=True)
    with refused(FormatError, "manifest.json"):
        uploader.upload()
    assert uploader.done.complete == len(others)
    assert all(uploader.copied(stream) for stream in others)
    for stream in others:
        (remote / stream / MANIFEST).unlink()
        (remote / stream / MANIFEST).mkdir()  # now the store fails for more than one: those after them have their turn
    later = Uploader(store, f"file://{remote}")
    for _ in range(4):
        with pytest.raises((OutputError, FormatError)):
            later.upload()
    last = store.path("e" * 32)
    last.parent.mkdir(mode=0o700)
    last.write_bytes(store.path(first).read_bytes())
    for _ in range(4):
        with pytest.raises((OutputError, FormatError)):
            later.upload()
    assert later.copied("e" * 32)


def test_a_wrong_url_is_told_at_once_and_no_password(store: Store, tmp_path: Path, capfd: Any) -> None:
    with refused(OutputError) as told:
        Uploading(store, "ftp://me:secret@host/x", every=1.0)
    assert "secret" not in str(told.value)
    with refused(OutputError, "nosuch"):
        Collector(CollectorSettings(directory=tmp_path / "other", upload="nosuch://x"))
