"""A stream takes the place of another one only if it is of the same run and has all of it."""

from __future__ import annotations

import errno
import logging
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from stepscope.collector.errors import ExcessError
from stepscope.collector.files import succession
from stepscope.collector.files.succession import objection
from stepscope.collector.runs.coverage import Coverage
from stepscope.collector.runs.mark import SUPERSEDED
from stepscope.exporters.collector import protocol
from stepscope.exporters.collector.left_journal import Head
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.runtime.errors import FormatError
from stepscope.runtime.export.run import Run
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import EndRecord, encode_record, run_record
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.basics import poll
from tests.support.collectors import Running, answer, collecting, connected
from tests.support.journals import frame_borders
from tests.support.messages import refused, said
from tests.support.streams import STREAM, SYNC

OTHER = "fedcba9876543210" * 2


def journal(path: Path, run: Run, *counts: int) -> Path:
    """A whole journal with windows of so many spans."""
    writer = JournalWriter(path)
    writer.open(run)
    for index, count in enumerate(counts):
        batch = batch_of(spans(["x"] * count, start_ns=run.anchor.monotonic_ns + index * 1_000_000), window=index)
        writer.write_batch(batch)
        writer.write_window(window_of(index, batch))
    writer.close()
    return path


def test_which_stream_gives_way(tmp_path: Path) -> None:
    """Of the same run, and to one with as much in each window; not of one that has the same name, rank and process id."""
    run = msgspec.structs.replace(run_in(tmp_path), rank=0)
    old = journal(tmp_path / "old", run, 3, 3)
    later = msgspec.structs.replace(run.anchor, monotonic_ns=run.anchor.monotonic_ns + 1)
    for name, whose, counts, why in (
        ("same", run, (3, 3), ""),
        ("more", run, (4, 3, 9), ""),
        ("fewer windows", run, (9,), "which has events that it lacks"),
        ("fewer events", run, (9, 2), "which has events that it lacks"),
        ("another rank", msgspec.structs.replace(run, rank=1), (9, 9), "which is of another run"),
        ("another process", msgspec.structs.replace(run, pid=1), (9, 9), "which is of another run"),
        ("another host", msgspec.structs.replace(run, host="other"), (9, 9), "which is of another run"),
        ("another start", msgspec.structs.replace(run, anchor=later), (9, 9), "which is of another run"),
    ):
        said = objection(journal(tmp_path / name, whose, *counts), old)
        assert said.startswith(why) and bool(said) is bool(why), name
    (tmp_path / "text").write_text("no journal")
    assert "cannot be compared" in objection(tmp_path / "text", old)
    assert objection(old, tmp_path / "text") == ""
    with pytest.raises(FileNotFoundError):
        objection(tmp_path / "nothing", old)


def by_hand(path: Path, run: Run, *records: tuple[int, object]) -> Path:
    """A journal with these frames, whatever a writer would have made of them."""
    frames = [(fmt.FrameType.RUN, run_record(run, 0)), *records, (fmt.FrameType.END, EndRecord())]
    parts = [
        bytes(part)
        for number, (kind, record) in enumerate(frames)
        for part in fmt.encode_frame(SYNC, kind, number, [encode_record(record)])
    ]
    path.write_bytes(fmt.encode_file_header(SYNC) + b"".join(parts))
    return path


def test_what_is_compared_takes_little_memory(tmp_path: Path) -> None:
    """Accounts and metadata become many times as large when they are decoded: neither is, of whatever size."""
    many: dict[str, dict[str, int]] = {str(number): {} for number in range(10_000)}
    record = {"start_ns": 0, "end_ns": 1, "ledger": {"sources": many}, "metadata": many}
    closed = [(fmt.FrameType.WINDOW_CLOSED, {"index": index, **record}) for index in range(8)]
    metadata = [(fmt.FrameType.METADATA, {"values": many})]
    run = run_in(tmp_path)
    paths = [by_hand(tmp_path / name, run, *closed, *metadata) for name in ("old", "new")]
    tracemalloc.start()
    try:
        assert objection(*paths) == ""
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20, "some frames of 130 KB each, one after the other"


def test_what_would_take_too_much_is_not_compared(tmp_path: Path) -> None:
    """Too many windows, too long a reading, a run whose record is larger than any that an exporter sends: both stay."""
    run = run_in(tmp_path)
    path = journal(tmp_path / "journal", run, 3, 3)
    assert Coverage.of(path, windows=2).counts == {0: 3, 1: 3}
    with refused(ExcessError, "1"):
        Coverage.of(path, windows=1)
    with refused(ExcessError, "0"):
        Coverage.of(path, seconds=0)
    large = by_hand(tmp_path / "large", msgspec.structs.replace(run, name="x" * (1 << 16)))
    for pair, side in (((large, path), "with which it"), ((path, large), "which")):
        assert f"{side} cannot be compared: ExcessError: the record of its run has" in objection(*pair)


def test_what_the_beginning_of_a_journal_says(tmp_path: Path) -> None:
    """Nothing, if it is not there."""
    whole = journal(tmp_path / "whole", run_in(tmp_path), 1)
    assert (head := Head.of(whole)) is not None and head.run.pid == 1234 and len(head.stream) == 32
    (tmp_path / "begun").write_bytes(whole.read_bytes()[:40])
    assert Head.of(tmp_path / "begun") is None
    (tmp_path / "text").write_text("no journal, whatever else it may be")
    with pytest.raises(FormatError):
        Head.of(tmp_path / "text")


def content(path: Path) -> tuple[Head, bytes, list[int]]:
    """What its beginning says, its bytes, and where its frames begin and end."""
    data, head = path.read_bytes(), Head.of(path)
    assert head is not None
    return head, data, frame_borders(data)


async def send(running: Running, stream: str, path: Path, first: int, until: int, supersedes: str = "") -> None:
    """Sends frames of a journal as a stream."""
    head, data, borders = content(path)
    async with connected(running.url) as one:
        await one.send(protocol.encode(protocol.Hello(stream, head.sync, 0, protocol.short(head.run), supersedes)))
        welcome = await answer(one)
        assert isinstance(welcome, protocol.Welcome) and welcome.next == first
        frames = protocol.Frames(first, until - first)
        await one.send(protocol.encode(frames, data[borders[first] : borders[until]]))
        assert await answer(one) == protocol.Ack(until)
    await poll(lambda: not running.collector.store.connected(stream))


async def test_a_stream_that_gives_way_comes_back_with_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As through NATS, where the successor may be whole before the other one is: it has not all of that any more."""
    run = run_in(tmp_path)
    old, new = journal(tmp_path / "old", run, 3, 3), journal(tmp_path / "new", run, 3)
    whole, begun = len(content(old)[2]) - 1, len(content(new)[2]) - 2
    async with collecting(tmp_path / "c") as running:
        mark = running.journal().with_name(SUPERSEDED)
        await send(running, STREAM, old, 0, begun)
        await send(running, OTHER, new, 0, begun + 1, STREAM)
        assert mark.read_text() == OTHER and STREAM not in running.collector.streams.all
        with caplog.at_level(logging.WARNING):
            await send(running, STREAM, old, begun, whole)
        assert not mark.exists() and STREAM in running.collector.streams.all
        said(caplog.records, OTHER)


async def test_a_stream_that_is_not_replaced_stays_on_the_page(tmp_path: Path) -> None:
    """The successor has less: both are told of."""
    run = run_in(tmp_path)
    old, new = journal(tmp_path / "old", run, 3, 3), journal(tmp_path / "new", run, 3)
    async with collecting(tmp_path / "c") as running:
        for stream, path, before in ((STREAM, old, ""), (OTHER, new, STREAM)):
            await send(running, stream, path, 0, len(content(path)[2]) - 1, before)
        assert [stream for stream, _ in running.collector.store.journals()] == [STREAM, OTHER]
        assert set(running.collector.streams.all) == {STREAM, OTHER}


async def test_one_that_grows_while_it_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read before, and closed before the mark was there: it is compared once more, and keeps its place."""
    run = run_in(tmp_path)
    old, new, more = (tmp_path / name / "journal" for name in ("old", "new", "more"))
    for path, counts in ((old, (3,)), (new, (3,)), (more, (3, 3))):
        path.parent.mkdir()
        journal(path, run, *counts)
    compared = 0

    def then_grow(successor: Path, before: Path) -> str:
        nonlocal compared
        compared += 1
        said = objection(successor, before)
        before.write_bytes(more.read_bytes())
        return said

    monkeypatch.setattr(succession, "objection", then_grow)
    replaced = list[str]()
    both = succession.Succession({STREAM: old, OTHER: new}.get)
    both.replaced = replaced.append
    await both.compare(OTHER, STREAM)
    assert compared == 2 and not replaced and not old.with_name(SUPERSEDED).exists()
    await both.compare(OTHER, STREAM)
    assert compared == 2, "what came of it is remembered"


async def test_one_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays, and whose place it has kept is not refused for it."""
    path = journal(tmp_path / "journal", run_in(tmp_path), 3)

    def fails(successor: Path, before: Path) -> str:
        raise OSError(errno.EIO, "lost", str(before))

    monkeypatch.setattr(succession, "objection", fails)
    both = succession.Succession({STREAM: path, OTHER: path}.get)
    both.replaced = pytest.fail
    await both.compare(OTHER, STREAM)
    await both.over(OTHER)
    assert "lost" in caplog.text and not path.with_name(SUPERSEDED).exists()
