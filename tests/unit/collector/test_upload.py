"""Uploading to object stores: resumed part by part, whatever was interrupted, and the same bytes in the end."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from stepscope.collector.archive.upload import Uploader
from stepscope.collector.discarding.discard import discard, places
from stepscope.collector.files.store import Store
from stepscope.collector.settings import CollectorSettings
from stepscope.runtime.errors import FormatError, OutputError
from tests.integration.collector.test_storage_limits import kept
from tests.support.archives import borders, parts_of, restored
from tests.support.messages import refused
from tests.support.streams import STREAM
from tests.support.windowed import END, run_of, stored, windows

PART = 10_000


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path / 'remote'}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(CollectorSettings(directory=tmp_path / "collected"))
    stored(made, STREAM, [run_of(), *windows(range(3), 16_000), END])
    return made


def test_what_was_uploaded_comes_back(store: Store, url: str) -> None:
    uploader = Uploader(store, url, part_bytes=PART)
    done = uploader.upload()
    path = store.path(STREAM)
    data = path.read_bytes()
    assert (done.streams, done.complete, done.nbytes) == (1, 1, len(data))
    sizes = [part.size for part in uploader.archive.manifest(STREAM).parts]
    assert sizes == parts_of(path, PART) and max(sizes) <= PART
    assert uploader.upload().parts == 0
    assert restored(uploader.archive, STREAM) == data


def test_an_interrupted_upload_goes_on(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stops, what was uploaded is not uploaded again."""
    uploader = Uploader(store, url, part_bytes=PART)
    files: Any = uploader.archive.files
    opened = files.open
    for fails_at in (0, 1, 3):
        calls = 0

        def failing(path: str, mode: str = "rb", **options: Any) -> Any:
            nonlocal calls
            if mode == "wb" and "journal" in path:
                calls += 1
                if calls > fails_at:  # noqa: B023
                    raise OSError("the network is gone")
            return opened(path, mode, **options)

        before = len(uploader.archive.manifest(STREAM).parts)
        monkeypatch.setattr(files, "open", failing)
        with refused(OutputError, "journal.", "the network is gone"):
            uploader.upload()
        monkeypatch.setattr(files, "open", opened)
        assert len(uploader.archive.manifest(STREAM).parts) == before + fails_at
    done = uploader.upload()
    assert done.parts == len(parts_of(store.path(STREAM), PART)) - 4 and done.complete == 1
    assert restored(uploader.archive, STREAM) == store.path(STREAM).read_bytes()


def test_a_stream_that_grows_is_uploaded_part_by_part(store: Store, url: str) -> None:
    """Parts that are full at once, the last one when the stream has ended; never half a frame, written or being written."""
    path = store.path(STREAM)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    whole = parts_of(path, PART)
    uploader = Uploader(store, url, part_bytes=PART)
    done = uploader.upload()
    assert done.complete == 0 and done.parts == len(whole) - 1 and done.nbytes == sum(whole[:-1])
    assert uploader.upload(rest=True).nbytes == whole[-1]
    path.write_bytes(data)
    assert uploader.upload().complete == 1
    assert restored(uploader.archive, STREAM) == data


@pytest.mark.parametrize("most", [3000, 5000])
def test_no_frame_is_in_two_parts(store: Store, url: str, most: int) -> None:
    """Else what is given up between two uploads would leave half a frame there; one that is larger is a part of its own."""
    path = store.path(STREAM)
    whole = kept(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    uploader = Uploader(store, url, part_bytes=most)
    uploader.upload()
    copied = uploader.copied(STREAM)
    assert copied
    path.write_bytes(data)
    discard(path, places(path), borders=store.borders.of(STREAM))
    assert uploader.upload().complete == 1 and not store.borders.of(STREAM)
    back = path.with_name("back.journal")
    back.write_bytes(restored(uploader.archive, STREAM))
    ends = [end for end, _ in borders(path)]
    assert copied in ends
    assert [end for end, _ in borders(back) if end > copied] == [end for end in ends if end > copied]
    there = kept(back)  # and nothing in it is damaged
    assert 0 < there.total() < whole.total() and there[0] == whole[0]


def test_a_part_that_was_removed_or_damaged(store: Store, url: str) -> None:
    uploader = Uploader(store, url, part_bytes=PART)
    uploader.upload()
    archive = uploader.archive
    second = archive.manifest(STREAM).parts[1]
    archive.files.rm(f"{archive.root}/{STREAM}/{second.name}")
    assert len(archive.manifest(STREAM).parts) == 1
    assert uploader.upload().complete == 1
    archive.files.pipe_file(f"{archive.root}/{STREAM}/{second.name}", b"x" * second.size)
    with refused(FormatError, "journal.000000000008236-000000000016529", "0123456789abcdef0123456789abcdef"):
        restored(archive, STREAM)
    archive.files.pipe_file(f"{archive.root}/{STREAM}/manifest.json", b"{")
    with refused(FormatError, "manifest.json"):
        uploader.upload()


def test_a_url_that_nothing_handles(store: Store) -> None:
    with refused(OutputError, "nosuch"):
        Uploader(store, "nosuch://bucket/x")
