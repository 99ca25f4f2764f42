"""Payloads of events frames: a batch is divided as it must be, and comes back from the pieces as it was."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.specimens import run_in
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EVENT_DTYPE, EventBatch, empty_block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.journals import Described, batch_with_arguments, described, events_payloads, read_journal

int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def batch_of_sizes(sizes: Sequence[int]) -> EventBatch:
    """Events with an argument of so many characters, which hardly anything makes smaller."""
    noise = random.Random(0)
    arguments = [{"text": noise.randbytes(size // 2).hex()} if size else {} for size in sizes]
    return batch_with_arguments([f"name {size}" for size in sizes], arguments, window=3)


@given(sizes=st.lists(st.sampled_from([0, 0, 8, 40, 700, 3000]), min_size=1, max_size=40))
def test_batches_come_back_from_their_payloads(sizes: list[int]) -> None:
    """Every event with its arguments."""
    batch = batch_of_sizes(sizes)
    ids = IdMap()
    found: list[Described] = []
    for flags, payload in events_payloads(batch):
        decoded = fmt.decode_columns(payload, flags, ids)
        assert decoded is not None
        header, events, heap = decoded
        assert (header.source, header.window, header.count) == (batch.source, 3, len(events))
        assert (header.first_ns, header.last_ns) == fmt.time_range(events)
        unnamed = fmt.decode_unnamed(payload, flags)
        assert unnamed is not None and unnamed[0]["ts"].tolist() == events["ts"].tolist()
        assert [unnamed[1][place] for place in unnamed[0]["name"].tolist()] == [
            strings.text(int(each)) for each in events["name"]
        ]
        found += described(EventBatch(header.source, header.window, events, heap))
    assert found == described(batch)


@given(st.binary(max_size=640), st.binary(max_size=50), st.integers(0, 400))
def test_rows_come_back_as_they_were(data: bytes, heap: bytes, short: int) -> None:
    """Whatever they hold; and nothing of a payload that is not whole."""
    events = np.frombuffer(data[: len(data) // 64 * 64], EVENT_DTYPE)
    payload = b"".join(map(bytes, fmt.encode_rows("any", 3, events, heap)))
    decoded = fmt.decode_rows(payload, 0)
    assert decoded is not None
    header, back, args = decoded
    assert (header.source, header.window, back.tobytes(), bytes(args)) == ("any", 3, events.tobytes(), heap)
    assert short == 0 or fmt.decode_rows(payload[:-short], 0) is None
    assert fmt.decode_rows(payload, fmt.COLUMNS) is None and fmt.decode_columns(payload, 0, IdMap()) is None


def test_what_becomes_small_is_not_divided(tmp_path: Path) -> None:
    """The limit of a frame is one of what is written: spans that are alike are one frame, noise of that size is several."""
    noise = np.frombuffer(random.Random(0).randbytes(64 * 20_000), EVENT_DTYPE).copy()
    noise["args_len"] = 0
    noise["category"] = 0  # else names that other tests used become categories, of which a process has a thousand
    sizes: list[list[int]] = []
    for number, events in enumerate((empty_block(20_000), noise)):
        writer = JournalWriter(tmp_path / f"journal{number}")
        writer.open(run_in(tmp_path))
        writer.write_batch(EventBatch("recorder", 0, events, b""))
        writer.close()
        reader = FrameReader(writer.path)
        frames = iter(reader.next, None)
        sizes.append([len(payload) for kind, _, payload in frames if kind == fmt.FrameType.EVENTS])
        reader.close()
        batches = [item.events for item in read_journal(writer.path)[0] if isinstance(item, EventBatch)]
        assert sum(map(len, batches)) == 20_000
    assert len(sizes[0]) == 1 and len(sizes[1]) > 1 and max(sizes[1]) <= 512 << 10


def test_threads_encode_at_the_same_time() -> None:
    """Each gets what it had encoded."""

    def encoded(seed: int) -> bool:
        batch = batch_with_arguments([f"{seed} {at}" for at in range(500)], [{"at": at} for at in range(500)])
        ((flags, payload),) = events_payloads(batch)
        back = fmt.decode_columns(payload, flags, IdMap())
        return back is not None and described(EventBatch(batch.source, 0, back[1], back[2])) == described(batch)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(encoded, range(40)))


@given(st.lists(st.tuples(int64, int64), max_size=20))
def test_time_range_is_that_of_the_events(times: list[tuple[int, int]]) -> None:
    """From the first begin to the last end; a negative duration is none, and sums beyond 64 bits wrap."""
    events = empty_block(len(times))
    events["ts"], events["dur"] = [ts for ts, _ in times], [dur for _, dur in times]
    ends = [(ts + max(dur, 0) + (1 << 63)) % (1 << 64) - (1 << 63) for ts, dur in times]
    assert fmt.time_range(events) == (min((ts for ts, _ in times), default=0), max(ends, default=0))
    for piece in (events[::2], events[1:]):
        assert fmt.time_range(piece) == fmt.time_range(piece.copy())
