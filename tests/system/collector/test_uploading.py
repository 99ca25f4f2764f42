"""What a collector uploads by itself, whatever is killed in between, and what it shows of it."""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from stepscope.collector.app import Collector
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.upload.object_store import ObjectStore
from stepscope.collector.upload.uploader import Uploading
from stepscope.runtime.errors import OutputError
from tests.support.basics import poll
from tests.support.collecting import collecting, until
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
    for number in range(60):
        Stream(collected, number, windows=12).end()
    made = contents(collected / "streams")
    remote = tmp_path / "remote"
    for kills in range(4):
        with collecting(collected, "--upload", f"file://{remote}") as collector:
            if kills < 3:
                wanted = kills * 40 + 1
                until(lambda: len(list(remote.rglob("journal*"))) >= wanted)  # noqa: B023
                collector.process.send_signal(signal.SIGKILL)
                collector.process.wait()
                there = contents(remote)
                assert all(there[name] == made[name] for name in there.keys() & made.keys())
            else:
                upload = until(lambda: (u := collector.get("/v1/job")["upload"])["complete"] == 60 and u)
                assert (upload["streams"], upload["waiting_bytes"], upload["problem"]) == (60, 0, "")
                assert upload["url"] == f"file://{remote}" and upload["at_ns"] != 0
    there = contents(remote)
    assert {name: data for name, data in there.items() if name in made} == made
    assert all(name.endswith(".part") for name in there.keys() - made.keys() - {"clocks.json"})


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


def test_a_wrong_url_is_refused_at_once_and_no_password_shown(tmp_path: Path) -> None:
    with refused(OutputError) as told:
        Uploading(tmp_path, "ftp://me:secret@host/x", every=1.0)
    assert "secret" not in str(told.value)
    with refused(OutputError, "nosuch"):
        Collector(CollectorSettings(directory=tmp_path / "other", upload="nosuch://x"))
