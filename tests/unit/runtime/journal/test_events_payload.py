"""Payloads of events frames: a batch is divided as it must be, and comes back from the pieces as it was."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.exporters.specimens import run_in
from stepscope.runtime.events.record import EVENT_DTYPE, Block, EventBatch, Flag, empty_block, join_blocks
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.journals import read_journal

COMPRESSIONS: list[fmt.Compression] = ["", "zlib", "zstd"]
INLINE, OUTSIDE = -1, -2
"""In the place of a size: the only argument is in the record; the arguments lie outside the heap."""
sizes = st.lists(st.sampled_from([INLINE, OUTSIDE, 0, 0, 8, 40, 700, 3000]), max_size=40)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def batch_of_sizes(sizes: Sequence[int], seed: int = 0) -> EventBatch:
    """Events with arguments of so many bytes, which nothing makes smaller."""
    noise = random.Random(seed)
    events, heap = empty_block(len(sizes)), b""
    events["id"] = np.arange(len(sizes))
    for event, size in zip(events, sizes, strict=True):
        event["ts"], event["dur"] = noise.randrange(1 << 40), noise.randrange(-5, 1 << 20)
        if size == INLINE:
            event["flags"], event["args_at"], event["args_len"] = int(Flag.ARG_INLINE), 7, 1 << 31
        elif size == OUTSIDE:
            event["args_at"], event["args_len"] = (1 << 32) - 1, 9
        else:
            event["args_at"], event["args_len"] = len(heap), size
            heap += noise.randbytes(size)
    return EventBatch("any", 3, events, heap)


def own_arguments(events: Block, heap: bytes | bytearray) -> list[bytes]:
    """Of each event, where they lie in the heap."""
    held, _ = fmt.heap_arguments(events, len(heap))
    return [
        bytes(heap[int(event["args_at"]) :][: int(event["args_len"])]) if inside else b""
        for event, inside in zip(events, held, strict=True)
    ]


def without_arguments(events: Block) -> Block:
    """The events, without where arguments lie that are not in them."""
    events = events.copy()
    elsewhere = events["flags"] & int(Flag.ARG_INLINE) == 0
    events["args_at"][elsewhere] = events["args_len"][elsewhere] = 0
    return events


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(sizes=sizes, chunk=st.integers(64, 8000), most=st.integers(1000, 20_000))
@example(sizes=[40] * 40, chunk=8000, most=1000)
def test_batches_come_back_from_their_payloads(
    compression: fmt.Compression, sizes: list[int], chunk: int, most: int
) -> None:
    """Whatever a payload may hold: every event with its arguments, but those that point outside or fit no payload."""
    batch = batch_of_sizes(sizes)
    payloads = list(fmt.encode_events(batch, compression, chunk, most))
    parts: list[Block] = []
    arguments: list[bytes] = []
    for count, flags, pieces, _ in payloads:
        payload = b"".join(map(bytes, pieces))
        decoded = fmt.decode_events(payload, flags)
        assert decoded is not None and len(payload) <= most
        header, events, heap = decoded
        assert (header.source, header.window, header.count) == ("any", 3, count)
        assert (header.first_ns, header.last_ns) == fmt.time_range(events)
        parts.append(events)
        arguments += own_arguments(events, heap)
    assert without_arguments(join_blocks(parts)).tobytes() == without_arguments(batch.events).tobytes()
    expected = own_arguments(batch.events, batch.args)
    cut = [size == OUTSIDE or size > min(chunk, most // 2) for size in sizes]
    assert all(mine == theirs for mine, theirs, gone in zip(arguments, expected, cut, strict=True) if not gone)
    lost = sum(size != INLINE and size != 0 and not mine for size, mine in zip(sizes, arguments, strict=True))
    assert lost == sum(cut for _, _, _, cut in payloads)


def test_what_becomes_small_is_not_divided(tmp_path: Path) -> None:
    """The limit of a frame is one of what is written: spans that are alike are one frame, noise of that size is many."""
    noise = np.frombuffer(random.Random(0).randbytes(64 * 10_000), EVENT_DTYPE).copy()
    noise["args_len"] = 0
    sizes: list[list[int]] = []
    for number, events in enumerate((empty_block(10_000), noise)):
        writer = JournalWriter(tmp_path / f"journal{number}", compression="zstd", max_frame=64_000)
        writer.open(run_in(tmp_path))
        writer.write_batch(EventBatch("recorder", 0, events, b""))
        writer.close()
        reader = FrameReader(writer.path)
        frames = iter(reader.next, None)
        sizes.append([len(payload) for kind, _, payload in frames if kind == fmt.FrameType.EVENTS])
        reader.close()
        batches = [item.events for item in read_journal(writer.path)[0] if isinstance(item, EventBatch)]
        assert sum(map(len, batches)) == 10_000
    assert len(sizes[0]) == 1 and len(sizes[1]) > 10 and max(sizes[1]) <= 64_000


def test_threads_compress_beside_each_other() -> None:
    """Each has a compressor of its own, which serves one frame after the other."""

    def compressed(seed: int) -> bool:
        batches = [batch_of_sizes([0] * 500 + [40] * 20, seed + turn) for turn in range(5)]
        made = [next(iter(fmt.encode_events(batch, "zstd"))) for batch in batches]
        found = [fmt.decode_events(b"".join(map(bytes, parts)), flags) for _, flags, parts, _ in made]
        return all(
            flags == fmt.ZSTD
            and back is not None
            and (back[1].tobytes(), bytes(back[2])) == (b.events.tobytes(), b.args)
            for b, (_, flags, _, _), back in zip(batches, made, found, strict=True)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(compressed, range(0, 40, 5)))


@given(st.lists(st.tuples(int64, int64), max_size=20))
def test_time_range_is_that_of_the_events(times: list[tuple[int, int]]) -> None:
    """From the first begin to the last end; a negative duration is none, and sums beyond 64 bits wrap."""
    events = empty_block(len(times))
    events["ts"], events["dur"] = [ts for ts, _ in times], [dur for _, dur in times]
    ends = [(ts + max(dur, 0) + (1 << 63)) % (1 << 64) - (1 << 63) for ts, dur in times]
    assert fmt.time_range(events) == (min((ts for ts, _ in times), default=0), max(ends, default=0))
    for piece in (events[::2], events[1:]):
        assert fmt.time_range(piece) == fmt.time_range(piece.copy())
