"""Uploading to object stores: resumed part by part, whatever was interrupted, and the same bytes in the end."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from stepscope.collector.settings import CollectorSettings
from stepscope.collector.store import Store
from stepscope.collector.upload import Uploader
from stepscope.runtime.errors import FormatError, OutputError
from tests.test_storage import STREAM, record

PART = 10_000


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path / 'remote'}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(CollectorSettings(directory=tmp_path / "collected"))
    record(made.path(STREAM), 3, spans=300)
    return made


def test_what_was_uploaded_comes_back(store: Store, url: str, tmp_path: Path) -> None:
    uploader = Uploader(store, url, part_bytes=PART)
    done = uploader.upload()
    data = store.path(STREAM).read_bytes()
    assert (done.streams, done.complete, done.nbytes) == (1, 1, len(data)) and done.parts == -(-len(data) // PART)
    assert uploader.upload().parts == 0
    assert uploader.restore(STREAM, tmp_path / "back") == len(data)
    assert (tmp_path / "back").read_bytes() == data
    with pytest.raises(OutputError):
        uploader.restore(STREAM, tmp_path / "back")


def test_an_interrupted_upload_goes_on(store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stops, what was uploaded is not uploaded again."""
    uploader = Uploader(store, url, part_bytes=PART)
    files: Any = uploader.files
    data = store.path(STREAM).read_bytes()
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

        before = len(uploader.manifest(STREAM).parts)
        monkeypatch.setattr(files, "open", failing)
        with pytest.raises(OutputError, match="network"):
            uploader.upload()
        monkeypatch.setattr(files, "open", opened)
        assert len(uploader.manifest(STREAM).parts) == before + fails_at
    done = uploader.upload()
    assert done.parts == -(-len(data) // PART) - 4 and done.complete == 1
    uploader.restore(STREAM, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


def test_a_stream_that_grows_is_uploaded_part_by_part(store: Store, url: str, tmp_path: Path) -> None:
    """Whole parts at once, the last one when the stream has ended; never half a frame that is being written."""
    path = store.path(STREAM)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    uploader = Uploader(store, url, part_bytes=PART)
    done = uploader.upload()
    assert done.complete == 0 and done.nbytes == done.parts * PART <= len(data) // 2
    assert uploader.upload(rest=True).nbytes < PART
    path.write_bytes(data)
    assert uploader.upload().complete == 1
    uploader.restore(STREAM, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


def test_a_part_that_was_removed_or_damaged(store: Store, url: str, tmp_path: Path) -> None:
    uploader = Uploader(store, url, part_bytes=PART)
    uploader.upload()
    files, root = uploader.files, url.removeprefix("memory:/").removeprefix("file://")
    second = uploader.manifest(STREAM).parts[1].name
    files.rm(f"{root}/{STREAM}/{second}")
    assert len(uploader.manifest(STREAM).parts) == 1
    assert uploader.upload().complete == 1
    files.pipe_file(f"{root}/{STREAM}/{second}", b"x" * PART)
    with pytest.raises(FormatError, match="damaged"):
        uploader.restore(STREAM, tmp_path / "back")
    files.pipe_file(f"{root}/{STREAM}/manifest.json", b"{")
    with pytest.raises(FormatError, match="no manifest"):
        uploader.upload()


def test_a_url_that_nothing_handles(store: Store) -> None:
    with pytest.raises(OutputError, match="nothing can be uploaded"):
        Uploader(store, "nosuch://bucket/x")
