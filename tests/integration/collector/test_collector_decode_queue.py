"""Messages and files are decoded in parts: their content delays no other client, and all of it counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.collector.files.store import Store
from stepscope.collector.live.startup_recovery import StartupRecovery
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.stream import protocol
from stepscope.runtime.accounting.ledger import Ledger, SourceLedger
from stepscope.runtime.events.record import empty_block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from stepscope.runtime.journal.records import WindowRecord
from tests.support.basics import poll
from tests.support.collectors import answer, collecting, connected, welcomed
from tests.support.streams import STREAM, SYNC, frames_header, hello
from tests.support.window_streams import encoded
from tests.unit.collector.test_collector_live import (
    SECOND,
    START,
    a_life,
    events_frame,
    record_frame,
    run_of,
    steps,
    sync,
)

Frame = tuple[int, int, bytes]

MANY = 5000
"""Frames that take a loop a good while."""


def many() -> list[Frame]:
    """Frames of a step each, and round trips."""
    step = events_frame(steps([SECOND]))
    trips = [
        record_frame(fmt.FrameType.CLOCK_SYNC, sync(START + n * SECOND, START + n * SECOND, 100, "ab"[n % 2]))
        for n in range(2)
    ]
    return [step, trips[0], step, trips[1]] * (MANY // 4)


def message(frames: list[Frame], first: int = 0) -> bytes:
    """All of them at once."""
    return protocol.encode(frames_header(first, len(frames)), encoded(frames, first))


@contextlib.asynccontextmanager
async def turns(look: Callable[[], int]) -> AsyncGenerator[set[int]]:
    """The values of `look` in the turns of the loop during the block."""
    found = set[int]()

    async def watch() -> None:
        while True:
            found.add(look())
            await asyncio.sleep(0)

    task = asyncio.create_task(watch())
    try:
        yield found
    finally:
        task.cancel()


def events_of(streams: Streams) -> int:
    """Of all of them."""
    return sum(stream.events for stream in streams.all.values())


async def test_a_message_of_many_frames_does_not_hold_the_loop(tmp_path: Path) -> None:
    """Its steps are counted over many turns; it is confirmed when all are, and the next one counts after them."""
    async with collecting(tmp_path) as running, welcomed(running) as one:
        async with turns(lambda: events_of(running.collector.streams)) as seen:
            await one.send(message(many()))
            assert await answer(one) == protocol.Ack(MANY)
            assert max(seen) <= MANY // 2 and len(seen - {0, MANY // 2}) >= 2
        assert events_of(running.collector.streams) == MANY // 2
        await one.send(message([events_frame(steps([SECOND]))], MANY))
        assert await answer(one) == protocol.Ack(MANY + 1)
        stream = running.collector.streams.all[STREAM]
        assert (stream.events, stream.steps.count, stream.next) == (MANY // 2 + 1, MANY // 2 + 1, MANY + 1)
        assert stream.bytes == running.journal().stat().st_size and not stream.undecodable


async def test_all_parts_of_a_message_count_though_its_connection_ends(tmp_path: Path) -> None:
    """Another connection of the stream takes over in the midst of it, and goes on behind it."""
    async with collecting(tmp_path) as running:
        async with connected(running.url) as one, connected(running.url) as other:
            await one.send(hello())
            await answer(one)
            await one.send(message(many()))
            await poll(lambda: 0 < events_of(running.collector.streams) < MANY // 2)
            await other.send(hello())
            welcome = await answer(other)
            assert isinstance(welcome, protocol.Welcome) and welcome.next == MANY
            await other.send(message([events_frame(steps([SECOND]))], MANY))
            assert await answer(other) == protocol.Ack(MANY + 1)
        stream = running.collector.streams.all[STREAM]
        assert (stream.events, stream.steps.count) == (MANY // 2 + 1, MANY // 2 + 1)
        assert stream.bytes == running.journal().stat().st_size


async def test_files_are_read_again_without_holding_the_loop(tmp_path: Path) -> None:
    """The streams of a collector that starts are counted over many turns."""
    store, streams = Store(CollectorSettings(directory=tmp_path)), Streams(8)
    frames = [record_frame(fmt.FrameType.RUN, run_of()), *many()]
    for id in ("a" * 32, "b" * 32):
        store.path(id).parent.mkdir(mode=0o700)
        store.path(id).write_bytes(fmt.encode_file_header(SYNC) + encoded(frames))
    restoring = StartupRecovery(store, streams)
    restoring.look()
    async with turns(lambda: events_of(streams)) as seen:
        await restoring.run()
    assert events_of(streams) == MANY and len(seen - {0, MANY // 2, MANY}) >= 4
    assert all(stream.event_rate.per_second(stream.seen + 1) == 0 for stream in streams.all.values())


def test_steps_are_placed_by_the_collectors_clock() -> None:
    """As the round trips say, whatever the rank's clock shows."""
    stream = Stream(STREAM, run_of(), born_ns=START)
    ahead = 50 * SECOND
    trip = record_frame(fmt.FrameType.CLOCK_SYNC, sync(START, START + ahead, 0))
    stream.add_frames([trip, events_frame(steps([SECOND]))], 0, 2)
    index, _ = stream.steps.recent.sums().means(SECOND)
    assert index.tolist() == [(START + SECOND + ahead) // SECOND]


def large_ledger(entries: int) -> Ledger:
    """Of so many sources."""
    return Ledger(sources={f"s{n}": SourceLedger(produced=1, dropped={"r": 1}) for n in range(entries)})


def window(**fields: Any) -> Frame:
    """The end of one."""
    record = WindowRecord(index=7, start_ns=START, end_ns=START + 1, complete=True, **fields)
    return record_frame(fmt.FrameType.WINDOW_CLOSED, record)


LARGE: dict[str, tuple[Frame, Frame, Callable[[Stream], object]]] = {
    "a ledger": (
        record_frame(fmt.FrameType.LEDGER, large_ledger(900)),
        record_frame(fmt.FrameType.LEDGER, large_ledger(2000)),
        lambda stream: stream.lost,
    ),
    "the accounts of a window": (
        window(ledger=large_ledger(900)),
        window(ledger=large_ledger(2000)),
        lambda stream: stream.lost,
    ),
    "the diagnostics of a window": (
        window(diagnostics=["x" * 60_000]),
        window(diagnostics=["x" * 70_000]),
        lambda stream: next(iter(stream.windows)).diagnostics,
    ),
    "a round trip": (
        record_frame(fmt.FrameType.CLOCK_SYNC, sync(START, START, 10, "x" * 4000)),
        record_frame(fmt.FrameType.CLOCK_SYNC, sync(START, START, 10, "x" * 5000)),
        lambda stream: stream.clock.last,
    ),
}


@pytest.mark.parametrize("what", LARGE)
def test_records_that_are_too_large_are_passed_over(what: str) -> None:
    """One that would hold the loop counts as not shown; what an exporter makes is shown, and a window in any case."""
    usual, large, shown = LARGE[what]
    for frame, there in ((usual, True), (large, False)):
        stream = Stream(STREAM, run_of())
        stream.add_frames([frame, events_frame(empty_block(0), source="recorder")], 0, 2)
        stream.decode()
        assert stream.undecodable == (not there), len(frame[2])
        if frame[0] == fmt.FrameType.WINDOW_CLOSED:
            assert [one.index for one in stream.windows] == [7]
        assert bool(shown(stream)) == there


def test_a_window_of_very_many_steps_is_reported_whole() -> None:
    """Its steps are no reason to leave its accounts out."""
    stream = Stream(STREAM, run_of())
    frame = window(steps=bytes(24 * 100_000), ledger=large_ledger(3))
    stream.add_frames([frame], len(frame[2]), 1)
    stream.decode()
    (only,) = stream.windows
    assert (only.steps, only.dropped, stream.undecodable) == (100_000, 3, 0)
    assert not msgspec.to_builtins(only)["diagnostics"]


Found = tuple[list[Frame], tuple[int, int], Damage, list[int]]


def content() -> list[bytes]:
    """The frames of a journal: small and large, with and without events; four are missing."""
    frames = [*a_life()[:4], events_frame(empty_block(100), "recorder"), *a_life()[1:4], *a_life() * 5]
    numbers = [number + 4 * (number >= 5) for number in range(len(frames))]
    return [
        b"".join(fmt.encode_frame(SYNC, kind, number, [body], flags))
        for number, (kind, flags, body) in zip(numbers, frames, strict=True)
    ]


def read(path: Path, following: int) -> Found:
    """Everything of a journal, by so many bytes at once, or one by one (0); events of other sources are passed over."""
    frames, events = list[Frame](), list[int]()

    def passed(beginning: bytes) -> bool:
        header = fmt.decode_events_header(beginning)
        if header is None or header[0].source == "steps":
            return False
        events.append(header[0].count)
        return True

    reader = FrameReader(path)
    try:
        while True:
            at = reader.position
            frames += reader.following(following, passed) if following else []
            if reader.position == at:
                frame = reader.next(passed)
                if frame is None:
                    return frames, reader.position, reader.damage, events
                frames.append(frame)
    finally:
        reader.close()


def flipped(data: bytearray, at: int) -> None:
    """A byte that the disk has changed."""
    data[at] ^= 0x55


WRONG: dict[str, Callable[[bytearray, int], object]] = {
    "nothing": lambda data, at: None,
    "a byte": flipped,
    "bytes that are missing": lambda data, at: data.__delitem__(slice(at, at + 300)),
    "the end": lambda data, at: data.__delitem__(slice(at, None)),
    "zeros": lambda data, at: data.__setitem__(slice(at, at + 50), bytes(50)),
}


@pytest.mark.parametrize("what", WRONG)
def test_many_at_once_are_the_same(tmp_path: Path, what: str) -> None:
    """The same frames, numbers, events and damage, wherever something is wrong, and however few bytes are read at once."""
    path = tmp_path / "journal"
    whole = fmt.encode_file_header(SYNC) + b"".join(content())
    for at in range(fmt.FILE_HEADER.size, len(whole), 1 if what == "nothing" else 463):
        data = bytearray(whole)
        WRONG[what](data, at)
        path.write_bytes(data)
        one_by_one = read(path, 0)
        for nbytes in (100, 1000, 1 << 16):
            assert read(path, nbytes) == one_by_one, (at, nbytes)
        if what == "nothing":
            assert len(one_by_one[0]) + len(one_by_one[3]) == len(content()) and one_by_one[2] == Damage(lost_frames=4)
            break
