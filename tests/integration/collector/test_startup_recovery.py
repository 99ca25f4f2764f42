"""A collector that starts again reads its files, whatever is in them: one that is odd costs itself only."""

from __future__ import annotations

import asyncio
import os
import time
import tracemalloc
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.analysis.live import judge_steps
from stepscope.collector.files.disk import SegmentFile
from stepscope.collector.files.store import Store
from stepscope.collector.live import startup_recovery
from stepscope.collector.live.live import rank_view
from stepscope.collector.live.startup_recovery import StartupRecovery
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.verdicts import Verdicts
from stepscope.collector.live.views import RankView
from stepscope.collector.retention.inventory import Segment
from stepscope.collector.runs.evicted import evict
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.address import Address
from stepscope.exporters.stream.delivery import deliver
from stepscope.exporters.stream.exporter import CollectorExporter
from stepscope.exporters.stream.protocol import Hello
from stepscope.exporters.stream.transport import Feed, LinkSettings
from stepscope.exporters.stream.websocket import WebSocketTransport
from stepscope.runtime.events.record import empty_block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import frame_reader
from stepscope.runtime.journal.index import ROW
from stepscope.runtime.journal.records import IndexRecord, encode_record
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.basics import poll
from tests.support.collectors import answer, collecting, welcomed
from tests.support.messages import check_messages
from tests.support.object_stores import Stream as SegmentedStream
from tests.support.streams import CONNECTION, frames, frames_header
from tests.unit.collector.test_collector_live import SECOND, START, a_life, events_frame, record_frame, run_of, sync

SYNC = fmt.new_sync_word()
Frame = tuple[int, int, bytes]


def stored(store: Store, id: str, frames: list[Frame]) -> Path:
    """The file of a stream with these frames."""
    path = store.path(id)
    path.parent.mkdir(mode=0o700)
    data = [b"".join(fmt.encode_frame(SYNC, kind, n, [body], flags)) for n, (kind, flags, body) in enumerate(frames)]
    path.write_bytes(fmt.encode_file_header(SYNC) + b"".join(data))
    return path


async def restored(store: Store) -> Streams:
    """The streams that a collector finds when it starts."""
    streams = Streams(8)
    recovery = StartupRecovery(store, streams)
    recovery.look()
    await recovery.run()
    assert not streams.unread
    return streams


class Reads:
    """Counts what is read of files from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.nbytes = 0
        real = os.pread

        def pread(file: int, size: int, at: int) -> bytes:
            data = real(file, size, at)
            self.calls += 1
            self.nbytes += len(data)
            return data

        monkeypatch.setattr(os, "pread", pread)


ODD: dict[str, list[Frame]] = {
    "begins with events": [events_frame(empty_block(10), source="recorder"), *a_life()],
    "has no run at all": a_life()[1:],
    "begins with a type that has no record": [(13, 0, b""), *a_life()],
    "begins with a type of the future": [(200, 0, b"x" * 50), *a_life()],
    "has a run that cannot be read": [(1, 0, b"\xc1"), *a_life()],
    "is empty": [],
}


@pytest.mark.parametrize("what", ODD)
async def test_an_odd_stream_costs_itself_only(tmp_path: Path, what: str) -> None:
    """The newest file is the odd one, and is read first; the other is shown, and the state says that all is read."""
    store, streams = Store(CollectorSettings(directory=tmp_path)), Streams(8)
    stored(store, "a" * 32, a_life())
    stored(store, "b" * 32, ODD[what])
    restoring = StartupRecovery(store, streams)
    restoring.look()
    streams.unread = dict(sorted(streams.unread.items()))  # the last is read first
    await restoring.run()
    assert not streams.unread
    assert streams.all["a" * 32].ended and not any(one.restoring for one in streams.all.values())
    shown = "b" * 32 in streams.all
    assert shown == any(kind == fmt.FrameType.RUN and body != b"\xc1" for kind, _, body in ODD[what])
    if shown:
        assert streams.all["b" * 32].ended and streams.all["b" * 32].windows.count == 1


@pytest.mark.parametrize("what", ODD)
async def test_an_odd_stream_that_is_connected_goes_on(tmp_path: Path, what: str) -> None:
    """Events that arrive after its file was read are shown: the page does not stay as it was."""
    store, streams = Store(CollectorSettings(directory=tmp_path)), Streams(8)
    path = stored(store, "b" * 32, ODD[what])
    restoring = StartupRecovery(store, streams)
    restoring.look()
    with streams.connected(Hello("b" * 32, SYNC, run_of()), CONNECTION) as stream:
        assert stream.restoring
        await restoring.run()
        assert not stream.restoring and not streams.unread
        before = stream.events
        more = events_frame(empty_block(7), source="recorder")
        stream.add_frames([more], path.stat().st_size, len(ODD[what]) + 1)
        assert stream.events == before + 7


async def test_small_frames_are_read_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day of round trips, among a few events, is not read one by one: a start over the files of many ranks takes seconds."""
    store, streams = Store(CollectorSettings(directory=tmp_path)), Streams(8)
    trips = [
        record_frame(fmt.FrameType.CLOCK_SYNC, sync(START + n * SECOND, START + n * SECOND, 9)) for n in range(2000)
    ]
    events = events_frame(empty_block(1), source="recorder")
    stored(store, "a" * 32, [record_frame(fmt.FrameType.RUN, run_of()), *trips, *[events, trips[-1]] * 1000])
    reads = Reads(monkeypatch)
    streams = await restored(store)
    stream = streams.all["a" * 32]
    assert (stream.events, stream.next, stream.clock.last) == (1000, 4001, START + 1999 * SECOND)
    assert stream.bytes == stream_size(store) and reads.calls < 100


def stream_size(store: Store) -> int:
    """Of the only file."""
    ((_, path),) = store.journals()
    return path.stat().st_size


@pytest.mark.parametrize("position", [3 << 26, 1 << 61])
async def test_bytes_are_those_that_came(tmp_path: Path, position: int) -> None:
    """Wherever the first segment begins that a rank sent: it has deleted those before, or lies."""
    async with collecting(tmp_path) as running, welcomed(running) as one:
        await one.send(protocol.encode(frames_header(1000, 5, 3, position), frames(1000, 5)))
        assert await answer(one) == protocol.Ack(1005)
        (live,) = running.collector.streams.all.values()
    store = Store(CollectorSettings(directory=tmp_path))
    streams = await restored(store)
    (again,) = streams.all.values()
    there = sum(path.stat().st_size for path in segment_paths(store.path(again.id)))
    assert live.bytes == again.bytes == there - fmt.MAX_FILE_HEADER + fmt.FILE_HEADER.size


async def test_a_file_that_is_no_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is named in the log, with what is wrong."""
    store, streams = Store(CollectorSettings(directory=tmp_path)), Streams(8)
    stored(store, "a" * 32, [record_frame(fmt.FrameType.RUN, run_of())])
    stored(store, "b" * 32, []).write_bytes(b"PK\3\4" * 100)
    restoring = StartupRecovery(store, streams)
    restoring.look()
    await restoring.run()
    assert list(streams.all) == ["a" * 32]
    check_messages(caplog.records, "b" * 32)


async def test_of_earlier_segments_the_index_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events and windows are those of all segments, whatever was deleted or damaged."""
    store = Store(CollectorSettings(directory=tmp_path))
    for name in "abc":
        writer = JournalWriter(store.path(name * 32), segment_bytes=2000)
        writer.open(run_in(tmp_path))
        for index in range(40):
            batch = batch_of(spans([f"span {n}" for n in range(10)]), window=index)
            writer.write_batch(batch)
            writer.write_window(window_of(index, batch))
        writer.close()
    files = {name: segment_paths(store.path(name * 32)) for name in "abc"}
    assert len(files["a"]) > 5
    files["b"][2].unlink()
    data = files["c"][1].read_bytes()
    files["c"][1].write_bytes(data[:100] + b"\0" * 200 + data[300:])
    found: list[dict[str, tuple[int, int, int]]] = []
    for read_bytes in (3000, 1 << 30):
        monkeypatch.setattr(startup_recovery, "READ_BYTES", read_bytes)
        streams = await restored(store)
        assert all(one.ended for one in streams.all.values())
        assert streams.all["a" * 32].windows.count == 40
        shown = len(list(streams.all["a" * 32].windows))
        assert shown < 20 if read_bytes == 3000 else shown == 40
        found.append({one.id[0]: (one.events, one.windows.count, one.missing) for one in streams.all.values()})
    assert found[0]["a"] == found[1]["a"] == (400, 40, 0)
    assert found[0]["b"] == found[1]["b"] and found[1]["b"][2] and found[0]["b"][0] < 400
    assert found[1]["c"][2] and found[0]["c"][1] <= 40


@pytest.mark.parametrize("read_bytes", [3000, 1 << 30])
@pytest.mark.parametrize("files", [0, 1 << 20])
@pytest.mark.parametrize("windows", [1, 40])
async def test_evicted_events_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: int, read_bytes: int, files: int
) -> None:
    """Also those of a window that goes on after the segments that were evicted: the index has all of it."""
    store = Store(CollectorSettings(directory=tmp_path))
    writer = JournalWriter(store.path("a" * 32), segment_bytes=2000)
    writer.open(run_in(tmp_path))
    for number in range(40):
        batch = batch_of(spans([f"span {n}" for n in range(10)]), window=number % windows)
        writer.write_batch(batch)
        if windows > 1:
            writer.write_window(window_of(number, batch))
    writer.close()
    evicted = [Segment.read(SegmentFile(path, path.stat())).counted() for path in segment_paths(writer.path)[:3]]
    for one in evicted:
        evict(writer.path, one)
    monkeypatch.setattr(startup_recovery, "READ_BYTES", read_bytes)
    monkeypatch.setattr(startup_recovery, "ALL_FILES", files)
    streams = await restored(store)
    stream = streams.all["a" * 32]
    assert stream.windows.discarded == sum(one.events for one in evicted) > 0 and not stream.missing
    assert stream.events == 400


async def test_indexes_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may send any number of them. Of more than have room the newest count."""
    store = Store(CollectorSettings(directory=tmp_path))
    frames: list[Frame] = [(fmt.FrameType.RUN, 0, encode_record(run_of()))]
    position, before = fmt.FILE_HEADER.size + fmt.FRAME_HEADER.size + len(frames[0][2]), 0
    for _ in range(40):
        record = encode_record(IndexRecord(before=before, rows=memoryview(bytes(ROW.size * 40_000))))
        frames.append((fmt.FrameType.INDEX, 0, record))
        before, position = position, position + fmt.FRAME_HEADER.size + len(record)
    stored(store, "a" * 32, [*frames, (99, 0, bytes(100))])
    monkeypatch.setattr(startup_recovery, "READ_BYTES", 50)
    tracemalloc.start()
    try:
        streams = await restored(store)
        assert tracemalloc.get_traced_memory()[1] < 128 << 20
    finally:
        tracemalloc.stop()
    assert 0 < streams.all["a" * 32].windows.count < 40 * 40_000


@pytest.mark.parametrize("where", ["middle", "begin", "end"])
async def test_a_stream_with_a_damaged_index_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Its windows and events are counted by its frames."""
    made = SegmentedStream(tmp_path, segment_bytes=20_000)
    made.grow(700)
    made.end()
    store = Store(CollectorSettings(directory=tmp_path))
    monkeypatch.setattr(startup_recovery, "ALL_FILES", 0)

    async def counted() -> tuple[int, int, int, int]:
        streams = await restored(store)
        (stream,) = streams.all.values()
        return stream.events, stream.windows.count, stream.bytes, stream.missing

    whole = await counted()
    path = made.segments[{"middle": len(made.segments) // 2, "begin": 0, "end": -4}[where]]
    reader = frame_reader.FrameReader(path, alone=True)
    offset = reader.files.at(reader.files.begin).offset(reader.find_last(fmt.FrameType.INDEX))
    reader.close()
    with path.open("r+b") as file:
        file.seek(offset + fmt.FRAME_HEADER.size)
        file.write(bytes(40))
    assert await counted() == (*whole[:3], 1)


def view_of(streams: Streams) -> RankView:
    """The only rank, as the page shows it."""
    (rank,) = streams
    return rank_view(rank, time.monotonic(), slow=False)


async def train(url: str, directory: Path) -> None:
    """Steps that wait for other ranks for most of their time."""
    async with sc.trace(
        exporters=[CollectorExporter(url, settings=LinkSettings(closing_seconds=0.1))], output_dir=directory
    ) as profiler:
        for _ in range(60):
            with sc.span("forward"):
                await asyncio.sleep(0.001)
            with sc.span("all_reduce"):
                await asyncio.sleep(0.004)
            profiler.step()


async def test_own_times_and_the_verdict_come_back(tmp_path: Path) -> None:
    """The journal has the facts of steps, so a collector that is started again knows as much of a rank that has ended as before."""
    async with collecting(tmp_path / "collector") as running:
        await train(running.url, tmp_path / "run")
        before = view_of(running.collector.streams)
    assert before.own_ms is not None and before.step_ms is not None and before.own_ms < 0.7 * before.step_ms
    streams = Streams(8)
    restoring = StartupRecovery(Store(CollectorSettings(directory=tmp_path / "collector")), streams)
    restoring.look()
    await restoring.run()
    after = view_of(streams)
    for name in ("state", "step", "communication_share", "cpu_share", "resident_bytes"):
        assert getattr(after, name) == getattr(before, name)
    assert (after.step_ms, after.own_ms) == pytest.approx((before.step_ms, before.own_ms), rel=0.1)
    verdicts = Verdicts(streams, judge_steps)
    task = asyncio.create_task(verdicts.run())
    await poll(lambda: verdicts.of(None))
    task.cancel()


async def test_a_run_that_is_delivered_has_own_times(tmp_path: Path) -> None:
    """Its facts of steps come with its frames only, and those of a running rank count once."""
    await train("ws://127.0.0.1:1", tmp_path / "run")
    async with collecting(tmp_path / "collector") as running:

        def link(feed: Feed) -> WebSocketTransport:
            return WebSocketTransport(Address(running.url, None), LinkSettings(), None, feed)

        await deliver(tmp_path / "run" / "journal", link, 30)
        delivered = view_of(running.collector.streams)
    assert delivered.own_ms is not None and delivered.step_ms is not None and delivered.own_ms < 0.7 * delivered.step_ms
