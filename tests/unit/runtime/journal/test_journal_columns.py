"""Events as columns: they give back what was written, to a reader of the page as well, and believe nothing."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.exporters.specimens import run_in
from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import EVENT_DTYPE, Block, EventBatch, Flag, Kind, empty_block
from stepscope.runtime.journal import columns
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.journals import Described, batch_with_arguments, described, events_payloads, read_journal
from tests.unit.runtime.journal import columns_reader

NAMES = ["forward", "läuft", "x" * 300, ""]
WORD = st.integers(0, (1 << 64) - 1)
TRACK = tracks.new(tracks.TrackKind.THREAD, 77, 78, "a thread", tracks.process())


@given(st.binary(max_size=1000), st.integers(0, (1 << 32) - 1))
def test_checksums_are_those_of_zlib(data: bytes, before: int) -> None:
    """Of bytes that lie anywhere in memory, and of those that follow others."""
    for begin in range(min(len(data), 17)):
        part = memoryview(data)[begin:]
        assert _core.crc32(part, before) == zlib.crc32(part, before)
    assert _core.crc32(data) == zlib.crc32(data)


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of an event, whatever they may be, and its arguments."""
    inline = draw(st.booleans())
    return {
        "kind": draw(st.sampled_from([int(kind) for kind in Kind])),
        "flags": (draw(st.integers(0, 255)) & ~int(Flag.ARG_INLINE)) | inline,
        "name": strings.intern(draw(st.sampled_from(NAMES))),
        "category": strings.category(draw(st.sampled_from(["cpu_op", "gc"]))),
        "track": draw(st.sampled_from([tracks.process(), TRACK])),
        "step": draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        **{field: draw(WORD) for field in ("ts", "dur", "self_dur", "id", "parent")},
        "inline": inline,
        "argument": draw(st.integers(0, (1 << 32) - 1)),
        "arguments": draw(
            st.dictionaries(st.sampled_from(NAMES[:2]), st.integers(0, 9) | st.text(max_size=9), max_size=2)
        ),
    }


def batch_of(rows: list[dict[str, Any]]) -> EventBatch:
    """A batch of such events. Arguments lie in the heap in the reverse order of the events."""
    block = empty_block(len(rows))
    heap = b""
    for row, fields in reversed(list(zip(block, rows, strict=True))):
        for name in ("kind", "flags", "name", "category", "track", "step"):
            row[name] = fields[name]
        for name in ("ts", "dur", "self_dur"):
            row[name] = np.uint64(fields[name]).astype(np.int64)
        row["id"], row["parent"] = fields["id"], fields["parent"]
        if fields["inline"]:
            row["args_at"], row["args_len"] = strings.intern("key"), fields["argument"]
        else:
            packed = _core.encode_arguments(fields["arguments"])
            row["args_at"], row["args_len"] = len(heap), len(packed)
            heap += packed
    return EventBatch("recorder", 3, block, heap)


def arguments_of(batch: EventBatch, row: Any) -> Any:
    """The arguments of an event, by name."""
    if row["flags"] & int(Flag.ARG_INLINE):
        return strings.text(int(row["args_at"])), int(row["args_len"])
    return dict(_core.decode_arguments(batch.args, int(row["args_at"]), int(row["args_len"])))


def encoded(batch: EventBatch) -> tuple[bytes, bool, int]:
    """Header and content of a batch, whether it is compressed, and events whose arguments were left out."""
    data, _, cut = _core.encode_frames(batch.events, batch.args, b"sync", int(fmt.FrameType.EVENTS), 0, 0, b"")
    ((_, flags, _, payload),) = fmt.frames_in(data, b"sync")
    return bytes(payload[fmt.EVENTS_HEADER.size :]), bool(flags & fmt.ZSTD), cut


def unpacked(batch: EventBatch) -> tuple[bytes, int, int]:
    """Content of a batch that is not compressed, and the bytes of arguments and table in it."""
    frame, compressed, _ = encoded(batch)
    length, arguments, table = columns.HEADER.unpack_from(frame)
    content = frame[columns.HEADER.size :]
    return _core.decompress(content, length) if compressed else content, arguments, table


def decoded(count: int, frame: bytes, compressed: bool) -> EventBatch:
    """The same read again."""
    return EventBatch("recorder", 3, *columns.decode(count, memoryview(frame), compressed, IdMap()))


def compare(before: EventBatch, after: EventBatch) -> None:
    """All fields but where arguments lie; tracks by what they are."""
    for name in ("kind", "flags", "name", "category", "step", "ts", "dur", "self_dur", "id", "parent"):
        np.testing.assert_array_equal(after.events[name], before.events[name], name)
    for one, other in zip(before.events, after.events, strict=True):
        assert arguments_of(before, one) == arguments_of(after, other)
        mine, theirs = tracks.get(int(one["track"])), tracks.get(int(other["track"]))
        assert mine and theirs
        assert (mine.kind, mine.pid, mine.tid, mine.name) == (theirs.kind, theirs.pid, theirs.tid, theirs.name)


@given(st.lists(events(), min_size=1, max_size=8))
@settings(max_examples=25)
def test_the_page_says_how_to_read_it(rows: list[dict[str, Any]]) -> None:
    """A reader that was written from docs/segment-format.md agrees on every field."""
    batch = batch_of(rows)
    frame, compressed, _ = encoded(batch)
    for row, found in zip(batch.events, columns_reader.events_of(len(batch), frame, compressed), strict=True):
        for name in ("kind", "flags", "step", "ts", "dur", "id", "parent"):
            assert found[name] == int(row[name]), name
        assert found["rest"] == int(row["self_dur"])
        assert found["name"] == strings.text(int(row["name"]))
        assert found["category"] == strings.text(int(row["category"]))
        track = tracks.get(int(row["track"]))
        assert track and found["track"] == [track.id, track.kind, track.pid, track.tid]
        if row["flags"] & int(Flag.ARG_INLINE):
            assert found["arguments"] == [("key", "u", struct.pack("<Q", int(row["args_len"])))]
        else:
            assert [key for key, _, _ in found["arguments"]] == list(arguments_of(batch, row))


def spans(count: int) -> Block:
    """Spans one after the other, each of 1 us."""
    block = empty_block(count)
    block["kind"], block["ts"], block["dur"] = Kind.SPAN, np.arange(count) * 1_500, 1_000
    block["self_dur"], block["id"], block["name"] = 1_000, np.arange(count) + 1, strings.intern("work")
    block["track"] = tracks.process()
    return block


def test_repeated_values_take_next_to_nothing() -> None:
    """Regular times and ids are hardly there."""
    frame, _, _ = encoded(EventBatch("recorder", 0, spans(8_000), b""))
    assert len(frame) < 8_000 // 4


def test_content_that_is_not_compressed_is_read() -> None:
    """As it is written where the system has no libzstd."""
    batch = EventBatch("recorder", 0, spans(20), b"")
    content, arguments, table = unpacked(batch)
    compare(batch, decoded(20, columns.HEADER.pack(len(content), arguments, table) + content, False))


def test_arguments_that_are_none_are_left_out() -> None:
    """Those beyond the heap when they are written, those that make no sense when they are read: the events stay."""
    block = spans(3)
    block["args_at"], block["args_len"] = [0, 4, 0], [9, 1 << 20, 0]
    frame, compressed, cut = encoded(EventBatch("recorder", 0, block, b"\xff" * 9))
    read = decoded(3, frame, compressed)
    assert cut == 1
    assert read.events["args_len"].tolist() == [0, 0, 0]
    assert read.events["ts"].tolist() == block["ts"].tolist()


@given(st.binary(max_size=400), st.integers(0, 70), st.integers(0, 200), st.integers(0, 60), st.booleans())
def test_nothing_in_a_forged_frame_is_believed(
    content: bytes, count: int, arguments: int, table: int, compressed: bool
) -> None:
    """It is refused, or read as events that lie within what is there."""
    with contextlib.suppress(FormatError):
        assert len(decoded(count, columns.HEADER.pack(len(content), arguments, table) + content, compressed)) == count


@given(st.data())
def test_a_forged_column_is_refused_or_read(data: st.DataObject) -> None:
    """Content whose table is right, with bytes of columns and arguments that are not."""
    block = spans(6)
    packed = _core.encode_arguments({"batch": 7})
    block["args_len"] = len(packed)
    content, arguments, table = unpacked(EventBatch("recorder", 0, block, packed))
    forged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        forged[data.draw(st.integers(0, len(forged) - table - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormatError):
        batch = decoded(6, columns.HEADER.pack(len(forged), arguments, table) + bytes(forged), False)
        for row in batch.events:
            if not row["flags"] & int(Flag.ARG_INLINE):
                assert int(row["args_at"]) + int(row["args_len"]) <= len(batch.args)


def test_tracks_of_a_recording_are_tracks_of_their_own() -> None:
    """With the rows above them; the same in the next frame."""
    block = spans(1)
    block["track"] = TRACK
    frame, compressed, _ = encoded(EventBatch("recorder", 0, block, b""))
    ids = IdMap(reuse=False)
    first, second = (columns.decode(1, memoryview(frame), compressed, ids)[0] for _ in range(2))
    assert first["track"] == second["track"]
    row = tracks.get(int(first["track"][0]))
    assert row and row.id != TRACK and (row.pid, row.tid, row.name) == (77, 78, "a thread")
    above = tracks.get(row.parent)
    assert above and above.kind == tracks.TrackKind.PROCESS


def test_a_program_forks_while_events_are_encoded() -> None:
    """A fork waits for the encoder, which must not wait for the interpreter's lock meanwhile."""
    block = empty_block(20_000)
    block["kind"], block["dur"], block["track"] = int(Kind.SPAN), 1, tracks.process()
    over = threading.Event()

    def encode() -> None:
        while not over.is_set():
            _core.encode_frames(block, b"", b"sync", int(fmt.FrameType.EVENTS), 0, 0, b"")

    threads = [threading.Thread(target=encode) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert os.waitpid(pid, 0) == (pid, 0)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def frames_of(batch: EventBatch, sync: bytes = b"\xf5abc", number: int = 7) -> tuple[list[tuple[int, EventBatch]], int]:
    """The frames that one call makes of a batch, each with its number, read again; and how many events lost their arguments."""
    data, count, cut = _core.encode_frames(
        batch.events, batch.args, sync, int(fmt.FrameType.EVENTS), number, batch.window, batch.source.encode()
    )
    found: list[tuple[int, EventBatch]] = []
    at = 0
    while at < len(data):
        head = fmt.decode_frame_header(data, at, sync)
        assert head is not None
        kind, flags, numbered, length, crc = head
        payload = data[at + fmt.FRAME_HEADER.size : at + fmt.FRAME_HEADER.size + length]
        assert kind == fmt.FrameType.EVENTS and flags & fmt.COLUMNS and zlib.crc32(payload) == crc
        decoded_columns = fmt.decode_columns(payload, flags, IdMap())
        assert decoded_columns is not None
        header, events, args = decoded_columns
        first, last = fmt.time_range(events)
        assert (header.first_ns, header.last_ns, header.count) == (first, last, len(events))
        found.append((numbered, EventBatch(header.source, header.window, events, args)))
        at += fmt.FRAME_HEADER.size + length
    assert len(found) == count
    return found, cut


@given(st.lists(events(), min_size=1, max_size=20))
def test_frames_are_made_in_one_call(rows: list[dict[str, Any]]) -> None:
    """Header, checksums and content are those of the format, whatever the events are."""
    batch = batch_of(rows)
    ((number, read),), cut = frames_of(batch)
    assert (number, read.source, read.window, cut) == (7, "recorder", 3, 0)
    compare(batch, read)


def test_a_frame_may_have_no_events() -> None:
    """It has times all the same, which are 0."""
    ((number, read),), cut = frames_of(EventBatch("recorder", 3, empty_block(0), b""))
    assert (number, len(read), cut) == (7, 0, 0)


def test_many_events_are_several_frames() -> None:
    """Each has at most 512 KiB of events and arguments, as they lie in memory, and the next number."""
    block = spans(150_000)
    packed = _core.encode_arguments({"text": "x" * 100})
    block["args_at"], block["args_len"] = np.arange(len(block)) * len(packed), len(packed)
    found, cut = frames_of(EventBatch("recorder", 0, block, packed * len(block)), number=(1 << 32) - 1)
    assert cut == 0 and [number for number, _ in found[:2]] == [(1 << 32) - 1, 0]
    assert all(batch.events.nbytes + len(batch.args) <= 512 << 10 for _, batch in found)
    assert np.concatenate([batch.events["id"] for _, batch in found]).tolist() == block["id"].tolist()


def test_arguments_that_would_fill_a_frame() -> None:
    """The event keeps its place and loses them."""
    block = spans(3)
    heap = _core.encode_arguments({"text": "x"})
    block["args_len"] = len(heap), (4 << 20) + 1, len(heap)
    block["args_at"] = 0, 0, 0
    ((_, read),), cut = frames_of(EventBatch("recorder", 0, block, heap + bytes(4 << 20)))
    assert cut == 1 and (read.events["args_len"] > 0).tolist() == [True, False, True]


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
    """Rows with any content; a payload that is not whole has none."""
    events = np.frombuffer(data[: len(data) // 64 * 64], EVENT_DTYPE)
    payload = b"".join(map(bytes, fmt.encode_rows("any", 3, events, heap)))
    decoded = fmt.decode_rows(payload, 0)
    assert decoded is not None
    header, back, args = decoded
    assert (header.source, header.window, back.tobytes(), bytes(args)) == ("any", 3, events.tobytes(), heap)
    assert short == 0 or fmt.decode_rows(payload[:-short], 0) is None
    assert fmt.decode_rows(payload, fmt.COLUMNS) is None and fmt.decode_columns(payload, 0, IdMap()) is None


def test_compressible_batches_are_not_divided(tmp_path: Path) -> None:
    """Frames have a limit of their own for what is written: events that are alike are one frame, noise with long names is several."""
    noise = np.frombuffer(random.Random(0).randbytes(64 * 8_000), EVENT_DTYPE).copy()
    noise["args_len"] = 0
    noise["category"] = 0  # else names that other tests used become categories, of which a process has a thousand
    noise["name"] = [strings.intern(random.Random(number).randbytes(40).hex()) for number in range(len(noise))]
    sizes: list[list[int]] = []
    for number, events in enumerate((empty_block(8_000), noise)):
        writer = JournalWriter(tmp_path / f"journal{number}")
        writer.open(run_in(tmp_path))
        writer.write_batch(EventBatch("recorder", 0, events, b""))
        writer.close()
        reader = FrameReader(writer.path)
        frames = iter(reader.next, None)
        sizes.append([len(payload) for kind, _, payload in frames if kind == fmt.FrameType.EVENTS])
        reader.close()
        batches = [item.events for item in read_journal(writer.path)[0] if isinstance(item, EventBatch)]
        assert sum(map(len, batches)) == 8_000
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
