"""The file of a stream that is downloaded while events in it are given up is whole, and nothing of it is uncounted."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from stepscope.collector.app import Collector
from stepscope.collector.files.borders import Borders
from stepscope.collector.files.frame_lock import FrameLock
from stepscope.collector.files.journal_copy import JournalCopy
from stepscope.exporters.specimens import spans
from tests.support import rotation
from tests.support.rotation import MIB, Training, held, settings
from tests.support.streams import STREAM
from tests.support.viewers.scene import START


async def downloaded(collector: Collector, path: str, meanwhile: Any) -> bytes:
    """What a reader gets who waits for `meanwhile()` after each chunk."""
    got = bytearray()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()  # it stays connected
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        elif message["body"]:
            got.extend(message["body"])
            await meanwhile()

    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2), "headers": [(b"host", b"127.0.0.1")],
    }  # fmt: skip
    await collector.app(scope, receive, send)
    return bytes(got)


async def test_a_download_while_events_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records move behind a reader who is slow, and frames become one: not around where it goes on."""
    names = ["forward", "backward", "optimizer", "load"] * 300
    monkeypatch.setattr(rotation, "some_spans", lambda: spans(names, start_ns=START))
    limit = 8 * MIB
    collector = Collector(settings(tmp_path / "c", limit))
    async with collector.serving() as url:
        rank = Training(url, tmp_path, 0, tasks=True)
        await rank.exporter.open(rank.run)
        journal = rank.journal(tmp_path / "c")
        count = 0

        async def trained(windows: int = 1) -> None:
            nonlocal count
            for _ in range(windows):
                await rank.window(count)
                count += 1

        chunks = 0

        async def slowly() -> None:
            nonlocal chunks
            chunks += 1
            await trained(60 if chunks in (1, 6) else 0)

        await trained()
        while journal.stat().st_size < limit // 2:
            await trained()
        before, sent = journal.stat().st_size, rank.sent.total()
        body = await downloaded(collector, f"/v1/streams/{rank.exporter.stream}/journal", slowly)
        assert collector.streams.totals()[0].discarded, "nothing was given up meanwhile"
        await rank.exporter.aclose()
    copy = tmp_path / "journal"
    copy.write_bytes(body)
    found, gone = held(copy)
    assert len(body) >= before and found.total() + gone >= sent and gone
    assert collector.store.borders.of(rank.exporter.stream) == frozenset()


def test_a_file_that_is_deleted_meanwhile_or_is_no_journal(tmp_path: Path) -> None:
    """It is read as it is, and as it was."""
    directory = tmp_path / "streams" / STREAM
    directory.mkdir(parents=True)
    journal = directory / "journal"
    data = bytes(range(256)) * 8192
    journal.write_bytes(data)
    borders = Borders(tmp_path)
    copy = JournalCopy(journal, FrameLock(tmp_path), borders)
    first = copy.next()
    assert borders.of(STREAM) == {len(first)}
    journal.unlink()
    journal.write_bytes(b"another one")
    assert first + copy.next() + copy.next() == data
    copy.close()
    copy.close()
    assert copy.next() == b"" and borders.of(STREAM) == frozenset()
