"""What a collector uploads by itself, whatever is killed in between, and what it shows of it."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from stepscope.collector.app import Collector
from stepscope.collector.clocks import server_clock
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.upload import uploader as uploader_module
from stepscope.collector.upload.object_store import ObjectStore
from stepscope.collector.upload.uploader import Uploading
from stepscope.runtime.errors import OutputError
from tests.support.basics import poll
from tests.support.collecting import ask, collecting, trained, until
from tests.support.messages import refused
from tests.support.object_stores import HangingStore, Stream, contents


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path / 'remote'}"


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    return tmp_path / "collected"


async def ended(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_collector_that_is_killed_in_the_middle_goes_on(collected: Path, tmp_path: Path) -> None:
    """Killed three times: what is under the name of a segment is whole at any time, and in the end everything is there."""
    for number in range(100):
        Stream(collected, number, windows=12).end()
    made = contents(collected / "streams")
    remote = tmp_path / "remote"
    for kills in range(4):
        with collecting(collected, "--upload", f"file://{remote}") as collector:
            if kills < 3:
                wanted = kills * 80 + 1
                until(lambda: len(list(remote.rglob("journal*"))) >= wanted)  # noqa: B023
                collector.process.send_signal(signal.SIGKILL)
                collector.process.wait()
                there = contents(remote)
                assert all(there[name] == made[name] for name in there.keys() & made.keys())
            else:
                upload = until(lambda: (u := collector.get("/v1/job")["upload"])["complete"] == 100 and u)
                assert (upload["streams"], upload["waiting_bytes"], upload["problem"]) == (100, 0, "")
                assert upload["url"] == f"file://{remote}" and upload["at_ns"] != 0
    there = contents(remote)
    assert {name: data for name, data in there.items() if name in made} == made
    assert all(name.endswith(".part") for name in there.keys() - made.keys() - {"clocks.json"})


async def test_one_that_ends_in_the_middle_goes_on(collected: Path, url: str) -> None:
    """It ends without waiting for what is left, which the next one uploads; what is there is not uploaded again."""
    for number in range(30):
        Stream(collected, number, windows=12).end()
    made = contents(collected / "streams")
    settings = CollectorSettings(directory=collected, port=0, upload=url, upload_seconds=0.05)
    first = Collector(settings)
    assert first.uploading is not None
    async with first.serving():
        await poll(lambda: first.uploading is not None and first.uploading.view().bytes > 0)
    before = first.uploading.view().bytes
    second = Collector(settings)
    async with second.serving():
        await poll(lambda: second.uploading is not None and second.uploading.view().complete == 30)
        assert second.uploading is not None
        after = second.uploading.view()
    assert after.problem == "" and before + after.bytes == sum(map(len, made.values()))
    assert sum(size for name, size in ObjectStore(url).sizes().items() if name in made) == before + after.bytes


async def test_nothing_is_put_when_it_has_ended(collected: Path, tmp_path: Path) -> None:
    """Not even what was being put, if the store answers within two seconds."""
    Stream(collected, windows=12).end()
    remote = tmp_path / "remote"
    other = HangingStore(remote)
    uploading = Uploading(collected, other.url, every=0.05)
    task = asyncio.create_task(uploading.run())
    await poll(other.hangs.is_set)
    task.cancel()
    await asyncio.sleep(0.05)
    other.go.set()
    await asyncio.wait([task])
    assert contents(remote) == {}


def test_ranks_that_train_are_uploaded(tmp_path: Path) -> None:
    """What was streamed is in the store when the ranks have ended; Prometheus shows it, too."""
    remote, collected = tmp_path / "remote", tmp_path / "collected"
    with collecting(collected, "--upload", f"file://{remote}", "--upload-every", "0.2") as collector:
        trained(collector.url, 0)
        until(lambda: collector.get("/v1/job")["upload"]["complete"] == 1)
        text = ask(f"{collector.url}/metrics").body.decode()
        assert "stepscope_upload_waiting_bytes 0.0" in text and "stepscope_uploaded_bytes_total" in text
        stream = collector.ranks()[0]["stream"]
        journals = {path.name: path.read_bytes() for path in (collected / "streams" / stream).glob("journal*")}
        assert journals and {path.name: path.read_bytes() for path in (remote / stream).iterdir()} == journals
        assert frozenset(json.loads((remote / "clocks.json").read_text())) == server_clock.read_clock_names(collected)


async def test_a_store_that_fails_is_reported_and_asked_again(
    collected: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A journal that cannot be read costs itself alone. Each reason is logged once."""
    for number in range(3):
        Stream(collected, number, windows=12).end()
    bad = Stream(collected, 15).end()
    bad.journal.write_bytes(b"no journal" * 10)
    remote = tmp_path / "remote"
    remote.write_text("in the way")
    uploading = Uploading(collected, f"file://{remote}", every=0.02)
    with caplog.at_level(logging.ERROR, "stepscope.collector"):
        task = asyncio.create_task(uploading.run())
        await poll(lambda: uploading.view().problem)
        assert uploading.view().bytes == 0
        await asyncio.sleep(0.2)
        remote.unlink()
        await poll(lambda: uploading.view().complete == 3)
        await poll(lambda: "not a stepscope journal" in uploading.view().problem)
        await asyncio.sleep(0.1)
        await ended(task)
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2 and "in the way" not in logged[0] and "not a stepscope journal" in logged[1]
    there = {name for name in contents(collected / "streams") if bad.id not in name}
    assert set(ObjectStore(f"file://{remote}").sizes()) == there


class StrangeError(Exception):
    """As of a library that knows nothing of OSError."""


@pytest.mark.parametrize("operation", ["find", "open"])
async def test_whatever_a_store_raises_is_reported_and_over_the_next_time(
    collected: Path, url: str, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Libraries of object stores have errors of their own."""

    def fails(*_: Any, **options: Any) -> None:
        raise StrangeError("no route")

    Stream(collected, windows=6).end()
    uploading = Uploading(collected, url, every=0.05)
    files: Any = uploading._uploader.store.files  # pyright: ignore[reportPrivateUsage]
    with monkeypatch.context() as away:
        away.setattr(files, operation, fails)
        task = asyncio.create_task(uploading.run())
        await poll(lambda: "StrangeError: no route" in uploading.view().problem)
    await poll(lambda: uploading.view().complete == 1 and not uploading.view().problem)
    await ended(task)


async def test_a_store_that_hangs_is_reported(collected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Stream(collected, windows=80).end()
    other = HangingStore(tmp_path / "remote", after=20)
    uploading = Uploading(collected, other.url, every=0.05)
    task = asyncio.create_task(uploading.run())
    await poll(other.hangs.is_set)
    assert not uploading.view().problem
    monkeypatch.setattr(uploader_module, "SILENCE_S", 0.01)
    await poll(lambda: "nothing was heard of the store" in uploading.view().problem)
    await poll(lambda: uploading.view().bytes > 0)  # some do not hang
    other.go.set()
    await poll(lambda: uploading.view().complete == 1 and not uploading.view().problem)
    await ended(task)


def test_a_wrong_url_is_refused_at_once_and_no_password_shown(tmp_path: Path) -> None:
    with refused(OutputError) as told:
        Uploading(tmp_path, "ftp://me:secret@host/x", every=1.0)
    assert "secret" not in str(told.value)
    with refused(OutputError, "nosuch"):
        Collector(CollectorSettings(directory=tmp_path / "other", upload="nosuch://x"))
