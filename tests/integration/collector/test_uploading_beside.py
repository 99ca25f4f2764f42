"""Uploads beside streams that are written: neither waits for the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.collector.app import Collector
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.upload import uploader as uploader_module
from stepscope.collector.upload.object_store import ObjectStore
from stepscope.exporters.stream import protocol
from tests.support.basics import poll
from tests.support.collecting import ask, collecting, trained, until
from tests.support.collectors import answer, connected
from tests.support.object_stores import HangingStore, Stream, contents, following
from tests.support.streams import STREAM, frames_header, hello
from tests.support.windowed import END, Frame, encoded, run_of, windows


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


async def test_a_store_that_hangs_stops_no_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says so. What was streamed meanwhile is put when the store answers."""
    monkeypatch.setattr(uploader_module, "SILENCE_S", 0.1)
    collected = tmp_path / "collected"
    Stream(collected, 5, windows=6).end()
    other = HangingStore(tmp_path / "remote")
    made = [run_of(), *windows(range(24), 64 << 10), END]
    collector = Collector(CollectorSettings(directory=collected, port=0, upload=other.url, upload_seconds=0.05))
    try:
        async with collector.serving() as url:
            assert collector.uploading is not None
            view = collector.uploading.view
            await poll(other.hangs.is_set)
            await streamed(url, made, 0, len(made))
            await poll(lambda: "nothing was heard of the store" in view().problem)
            assert view().bytes == 0
            other.go.set()
            await poll(lambda: view().complete == 2 and not view().problem)
    finally:
        other.go.set()
    there = contents(collected / "streams")
    sizes = ObjectStore(f"file://{tmp_path / 'remote'}").sizes()
    assert sizes == {name: len(data) for name, data in there.items() if "/journal" in name} | {
        "clocks.json": sizes["clocks.json"]
    }


def test_an_upload_follows_streams_that_grow(tmp_path: Path) -> None:
    """Beside a collector that uploads the same to the same place; in the end all is there."""
    collected, remote = tmp_path / "collected", tmp_path / "remote"
    streams = [Stream(collected, number) for number in range(4)]
    upload = ("--upload", f"file://{remote}", "--upload-every", "0.05")
    with (
        following(collected, remote, 0.03, "--unfinished"),
        collecting(collected, *upload) as collector,
    ):
        for _ in range(20):
            for stream in streams:
                stream.grow()
        for stream in streams:
            stream.end()
        trained(collector.url, 0)
        until(lambda: collector.get("/v1/job")["upload"]["complete"] == 1)
        text = ask(f"{collector.url}/metrics").body.decode()
        assert "stepscope_upload_waiting_bytes 0.0" in text and "stepscope_uploaded_bytes_total" in text
        made = {name: data for name, data in contents(collected / "streams").items() if "/journal" in name}
        until(lambda: made.items() <= contents(remote).items())
