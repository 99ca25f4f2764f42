"""Parts of a collector's work that end though they should not: page, API and metrics show it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stepscope.collector.app import BackgroundTasks, Collector
from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.live import Live
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.views import StorageView
from stepscope.collector.retention.storage import Measurement, Storage
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web.live_events import LiveEvents
from tests.support.basics import poll
from tests.support.collecting import send_request, wait_until
from tests.support.messages import check_messages
from tests.system.collector.test_collector_page import quiet_page


async def goes_on() -> None:
    """Work that does not end."""
    await asyncio.Event().wait()


async def is_done() -> None:
    """Work that ends at once."""


async def fails() -> None:
    """Work that has a fault."""
    raise ValueError("a fault of ours")


async def test_which_have_ended_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """With the reason; not of those that go on, or may be done, and not of the end of all."""
    parts = BackgroundTasks()
    async with parts.working({"a": goes_on(), "b": fails(), "c": is_done()}, {"d": is_done(), "e": fails()}):
        fault = "ValueError: a fault of ours"
        wanted = {"a": "", "b": fault, "c": "it ended without an error", "d": "", "e": fault}
        await poll(lambda: {part.name: part.problem for part in parts.view()} == wanted)
    assert {part.name: part.problem for part in parts.view()} == wanted
    assert len(check_messages(caplog.records)) == 3


async def test_everybody_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says what has ended and why; so do the state and Prometheus. The others go on."""

    def broken(storage: Storage, wanted: int = 0, surplus_streams: int = 0) -> Measurement:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Storage, "enforce", broken)

    def look(url: str) -> None:
        part = {"name": "storage", "problem": "RuntimeError: a fault of ours"}
        wait_until(lambda: part in send_request(f"{url}/v1/job").json()["parts"])
        text = send_request(f"{url}/metrics").body.decode()
        assert 'stepscope_part_ended{part="storage"} 1.0' in text
        assert 'stepscope_part_ended{part="restoring"} 0.0' in text
        with quiet_page() as page:
            page.goto(url)
            page.get_by_text("A part of the collector has ended, storage: RuntimeError: a fault of ours.").wait_for()

    async with Collector(CollectorSettings(directory=tmp_path, port=0, disk_bytes=1 << 30)).serving() as url:
        await asyncio.to_thread(look, url)


async def test_live_events_that_cannot_be_reported_any_more() -> None:
    """A listener is disconnected instead of waiting for ever, and a new connection gets the state again."""
    faults = [ValueError("a fault of ours")]
    errors: list[BaseException] = []
    looks = 0

    def stored(discarded: int) -> StorageView | None:
        nonlocal looks
        looks += 1
        if looks > 1 and faults:
            raise faults.pop()
        return None

    events = LiveEvents(Live(Streams(8), Downloads(Path("/nowhere")), exposed=False, storage=stored), errors.append)
    heard = [chunk async for chunk in events.listen()]
    assert b"snapshot" in heard[0] and heard[-1].startswith(b"event: end")
    assert [str(error) for error in errors] == ["a fault of ours"]
    again = events.listen()
    assert b'"full":true' in await anext(again)
    assert b'"full":false' in await anext(again)
    await again.aclose()
    await events.stop()
