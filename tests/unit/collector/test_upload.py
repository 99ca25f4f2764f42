"""Closed segments in an object store: each is one object of the same name and bytes, whatever was interrupted."""

from __future__ import annotations

import io
import json
import os
import re
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from stepscope.collector.clocks import server_clock
from stepscope.collector.upload import uploader as uploader_module
from stepscope.collector.upload.object_store import CALLS, REFUSALS, ObjectStore
from stepscope.collector.upload.restore import restore
from stepscope.collector.upload.uploader import Uploader
from stepscope.runtime.errors import FormatError, OutputError
from tests.support.messages import refused
from tests.support.object_stores import Stream, contents


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path / 'remote'}"


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    return tmp_path / "collected"


def in_store(url: str) -> dict[str, bytes]:
    """All objects."""
    store = ObjectStore(url)
    found: dict[str, bytes] = {}
    for name, size in store.sizes().items():
        content = io.BytesIO()
        store.get(name, content, size)
        found[name] = content.getvalue()
    return found


def test_a_segment_is_put_when_it_is_closed(collected: Path, url: str) -> None:
    """The last one when the stream has ended. Each once; they come back as they were."""
    stream = Stream(collected)
    uploader = Uploader(collected, url)
    for _ in range(12):
        stream.grow()
        uploader.upload()
        assert sorted(in_store(url)) == stream.names(last=False)
        assert (uploader.objects, uploader.complete) == (len(stream.segments) - 1, 0)
    assert len(stream.segments) > 3
    stream.end()
    uploader.upload()
    uploader.upload()
    there = contents(collected / "streams")
    assert in_store(url) == there
    assert (uploader.streams, uploader.complete, uploader.objects) == (1, 1, len(there))
    assert uploader.nbytes == sum(map(len, there.values())) and uploader.waiting == 0
    again = Uploader(collected, url)
    again.upload()
    assert (again.streams, again.complete, again.objects) == (1, 1, 0)
    back = restore(ObjectStore(url), collected.parent / "back")
    assert (back.streams, back.segments, back.errors) == (1, len(there), [])
    assert contents(collected.parent / "back" / "streams") == there


def test_the_rest_is_put_again_when_it_has_grown(collected: Path, url: str) -> None:
    stream = Stream(collected, windows=6)
    uploader = Uploader(collected, url)
    uploader.upload(rest=True)
    assert in_store(url) == contents(collected / "streams") and uploader.complete == 0
    before = uploader.objects
    stream.grow()
    uploader.upload(rest=True)
    assert in_store(url) == contents(collected / "streams") and uploader.objects > before
    stream.end()
    later = Uploader(collected, url)
    later.upload()
    assert in_store(url) == contents(collected / "streams") and (later.objects, later.complete) == (1, 1)


def test_the_last_segment_of_a_killed_rank_is_put(collected: Path, url: str) -> None:
    """After an hour of silence, as retention calls its stream over then; not while a connection has it."""
    stream = Stream(collected, windows=6)
    uploader = Uploader(collected, url)
    uploader.upload(walk=False)
    assert sorted(in_store(url)) == stream.names(last=False) and not uploader.complete
    for path in stream.segments:
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 7200))
    busy = Uploader(collected, url, connected=lambda id: id == stream.id)
    busy.upload(walk=False)
    assert sorted(in_store(url)) == stream.names(last=False)
    waiting = Uploader(collected, url)
    waiting.store.stop()
    waiting.upload(walk=False)
    assert waiting.waiting == stream.segments[-1].stat().st_size
    uploader.note_change(stream.id)
    uploader.upload(walk=False)
    assert sorted(in_store(url)) == stream.names()
    assert (uploader.complete, uploader.waiting) == (1, 0)


def test_only_directories_of_changed_streams_are_listed(
    collected: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first look: a stream that is reported as changed, and no other one."""
    streams = [Stream(collected, number, windows=6) for number in range(5)]
    uploader = Uploader(collected, url)
    uploader.upload(walk=False)
    looked: list[str] = []
    listed = os.scandir

    def noted(path: Any = ".") -> Any:
        looked.append(str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", noted)
    before = uploader.objects
    uploader.upload(walk=False)
    assert not looked
    for stream in streams:
        stream.grow(6)
    uploader.note_change(streams[2].id)
    uploader.upload(walk=False)
    assert {path for path in looked if path.startswith(str(collected))} == {str(streams[2].journal.parent)}
    assert uploader.objects > before and streams[2].names(last=False)[-1] in in_store(url)
    assert streams[3].names(last=False)[-1] not in in_store(url)
    uploader.upload()
    assert sorted(in_store(url)) == sorted(name for stream in streams for name in stream.names(last=False))


def test_segments_known_to_be_in_the_store(collected: Path, url: str) -> None:
    """Segments that never change: retention deletes these first."""
    stream = Stream(collected, windows=6)
    uploader = Uploader(collected, url)
    assert not any(map(uploader.uploaded, stream.segments))
    uploader.upload(rest=True)
    assert [uploader.uploaded(path) for path in stream.segments] == [True] * (len(stream.segments) - 1) + [False]
    stream.end()
    assert not uploader.uploaded(stream.segments[-1])
    uploader.upload()
    assert all(map(uploader.uploaded, stream.segments))
    listed = Uploader(collected, url)
    listed.upload()
    assert all(map(listed.uploaded, stream.segments)) and not listed.objects
    ObjectStore(url).files.rm(f"{ObjectStore(url).root}/{stream.id}/journal.1")
    listed = Uploader(collected, url)
    listed.store.stop()
    listed.upload()
    assert [uploader.uploaded(path) for path in stream.segments] != [listed.uploaded(path) for path in stream.segments]


def test_an_upload_that_failed_goes_on(collected: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the store refuses delays no others, and is put the next time."""
    stream = Stream(collected, windows=12).end()
    uploader = Uploader(collected, url)
    files: Any = uploader.store.files
    opened = files.open

    def failing(path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb" and re.search(r"/journal\.2(\.\w+\.part)?$", path):
            raise OSError("the network is gone")
        return opened(path, mode, **options)

    with monkeypatch.context() as away:
        away.setattr(files, "open", failing)
        with refused(OutputError, "journal.2", "the network is gone"):
            uploader.upload()
    assert sorted(in_store(url)) == [name for name in stream.names() if not name.endswith("journal.2")]
    assert uploader.waiting == stream.segments[2].stat().st_size and not uploader.uploaded(stream.segments[2])
    before = uploader.objects
    uploader.upload()
    assert uploader.objects == before + 1 and in_store(url) == contents(collected / "streams")


def test_a_put_that_fails_leaves_no_object(tmp_path: Path) -> None:
    """Neither under its name nor under another one; what was there stays."""
    store = ObjectStore(f"file://{tmp_path}")
    for there in ({}, {"a/b": 7}):
        with refused(OutputError, "a/b", "shorter"):
            store.put("a/b", io.BytesIO(bytes(3 << 20)), 4 << 20)
        assert store.sizes() == there
        store.put("a/b", io.BytesIO(b"content"), 7)
    store.stop()
    with refused(OutputError, "a/b", "stopped"):
        store.put("a/b", io.BytesIO(bytes(9)), 9)
    assert store.sizes() == {"a/b": 7}


def test_differing_objects_are_put_again(collected: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that was deleted or is shorter, as soon as the store is listed again."""
    stream = Stream(collected, windows=12).end()
    uploader = Uploader(collected, url)
    uploader.upload()
    files, root = uploader.store.files, uploader.store.root
    files.rm(f"{root}/{stream.id}/journal.1")
    files.pipe_file(f"{root}/{stream.id}/journal.2", b"short")
    before = uploader.objects
    uploader.upload()
    assert uploader.objects == before
    monkeypatch.setattr(uploader_module, "LIST_S", 0.0)
    uploader.upload()
    assert uploader.objects == before + 2 and in_store(url) == contents(collected / "streams")


def test_counts_of_evicted_segments_are_put(collected: Path, url: str) -> None:
    """As often as they change; they come back, too, and what was evicted stays in the store."""
    stream = Stream(collected, windows=12).end()
    uploader = Uploader(collected, url)
    uploader.upload()
    evicted = stream.journal.with_name("evicted")
    for number, path in enumerate(stream.segments[:2]):
        with evicted.open("a") as lines:
            lines.write(json.dumps({"segment": number}) + "\n")
        path.unlink()
        uploader.upload()
        assert in_store(url)[f"{stream.id}/evicted"] == evicted.read_bytes()
    assert {f"{stream.id}/journal", f"{stream.id}/journal.1"} < set(in_store(url))
    back = collected.parent / "back"
    assert restore(ObjectStore(url), back).segments == len(stream.segments) + 2
    assert contents(back / "streams") == in_store(url)


def test_the_names_of_clocks_of_all_collectors_are_put(tmp_path: Path, url: str) -> None:
    for number, clock in enumerate(("a" * 32, "b" * 32)):
        Stream(tmp_path / str(number), number, windows=3).end()
        server_clock.add_clock_name(tmp_path / str(number), clock)
        Uploader(tmp_path / str(number), url).upload()
    assert json.loads(in_store(url)["clocks.json"]) == ["a" * 32, "b" * 32]
    restore(ObjectStore(url), tmp_path / "back")
    assert server_clock.read_clock_names(tmp_path / "back") == frozenset({"a" * 32, "b" * 32})
    store = ObjectStore(url)
    store.put("clocks.json", io.BytesIO(b"["), 1)
    server_clock.add_clock_name(tmp_path / "0", "c" * 32)
    Stream(tmp_path / "0", 7, windows=3).end()
    uploader = Uploader(tmp_path / "0", url)
    with refused(FormatError, "clocks.json"):
        uploader.upload()
    assert uploader.complete == 2, "all else was put"


def test_several_may_upload_the_same_at_once(collected: Path, url: str) -> None:
    for number in range(4):
        Stream(collected, number, windows=12).end()
    uploaders = [Uploader(collected, url) for _ in range(4)]
    threads = [threading.Thread(target=uploader.upload) for uploader in uploaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [uploader.complete for uploader in uploaders] == [4] * 4
    assert in_store(url) == contents(collected / "streams")


def test_links_are_not_followed(collected: Path, tmp_path: Path, url: str) -> None:
    """Neither to directories nor to files, here or where it is restored."""
    stream = Stream(collected, windows=6).end()
    elsewhere = Stream(tmp_path / "elsewhere", 1, windows=6).end()
    names = stream.names()
    (collected / "streams" / elsewhere.id).symlink_to(elsewhere.journal.parent)
    (stream.journal.parent / "journal.77").symlink_to(elsewhere.journal)
    (stream.journal.parent / "evicted").symlink_to(elsewhere.journal)
    os.mkfifo(stream.journal.parent / "journal.76")
    uploader = Uploader(collected, url)
    uploader.upload()
    assert sorted(in_store(url)) == names and uploader.complete == 1
    back = tmp_path / "back" / "streams"
    back.mkdir(parents=True)
    (back / stream.id).symlink_to(elsewhere.journal.parent)
    before = contents(tmp_path / "elsewhere")
    assert len(restore(ObjectStore(url), tmp_path / "back").errors) == len(names)
    assert contents(tmp_path / "elsewhere") == before
    streams = collected / "streams"
    streams.rename(tmp_path / "moved")
    streams.symlink_to(tmp_path / "moved")
    with refused(OSError, streams):
        Uploader(collected, url).upload()


def test_a_last_segment_that_is_no_journal_costs_itself(collected: Path, url: str) -> None:
    good, bad = Stream(collected, 0, windows=6).end(), Stream(collected, 1, windows=6)
    bad.end().segments[-1].write_bytes(b"no journal" * 10)
    uploader = Uploader(collected, url)
    with refused(FormatError, bad.segments[-1]):
        uploader.upload()
    assert sorted(in_store(url)) == sorted(good.names() + bad.names(last=False))
    assert (uploader.streams, uploader.complete) == (2, 1)


def test_a_store_that_refuses_everything_is_asked_a_few_times(collected: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refused files come last the next time; the pauses grow."""
    for number in range(30):
        Stream(collected, number, windows=12).end()
    uploader = Uploader(collected, f"memory://{uuid.uuid4().hex}", every=30)
    asked: list[str] = []

    def refusing(path: str, mode: str = "rb", **options: Any) -> Any:
        asked.append(path)
        raise OSError("no route")

    monkeypatch.setattr(uploader.store.files, "open", refusing)
    with refused(OutputError, "no route", snapshot=False):
        uploader.upload()
    first = set(asked)
    assert REFUSALS <= len(first) < REFUSALS + CALLS and uploader.pause == 30
    asked.clear()
    with refused(OutputError, "no route", snapshot=False):
        uploader.upload()
    assert not first & set(asked)
    assert 30 <= uploader.pause <= 60


def test_damage_is_named_and_the_rest_is_restored(collected: Path, url: str) -> None:
    """A segment with some damage comes back as it is; one that is none does not."""
    stream = Stream(collected, windows=20).end()
    there = contents(collected / "streams")
    Uploader(collected, url).upload()
    store = ObjectStore(url)
    names = [f"{stream.id}/{path.name}" for path in stream.segments]
    flipped = bytearray(there[names[1]])
    flipped[len(flipped) // 2] ^= 1
    damaged = {names[1]: bytes(flipped), names[2]: there[names[2]][:-10], names[3]: bytes(1000)}
    for name, data in damaged.items():
        store.put(name, io.BytesIO(data), len(data))
    back = collected.parent / "back"
    done = restore(ObjectStore(url), back)
    assert len(done.errors) == 3 and done.segments == len(names) - 1
    for text, name, word in zip(
        done.errors, names[1:4], ("skipped bytes", "torn bytes", "not a stepscope journal"), strict=True
    ):
        assert name in text and word in text
    expected = {**there, **damaged}
    del expected[names[3]]
    assert contents(back / "streams") == expected


def test_a_url_that_nothing_handles(collected: Path) -> None:
    with refused(OutputError, "nosuch"):
        Uploader(collected, "nosuch://bucket/x")
