"""Events of another process get ids of this one, whatever ids and arguments they claim to have."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import EventBatch, Flag, empty_block
from stepscope.runtime.journal.ids import LOST_NAME, IdMap
from stepscope.runtime.journal.records import TrackRecord
from tests.support.journals import described


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), max_size=12), st.binary(max_size=80))
def test_any_arguments_are_safe(ranges: list[tuple[int, int]], heap: bytes) -> None:
    """Argument ranges of any kind, over any bytes, end up inside the heap or cut off."""
    block = empty_block(len(ranges))
    for event, (at, length) in zip(block, ranges, strict=True):
        event["args_at"], event["args_len"] = at, length
    args = bytearray(heap)
    IdMap().localise(block, args)
    ends = block["args_at"].astype(np.uint64) + block["args_len"]
    assert (ends[block["args_len"] > 0] <= len(args)).all()
    described(EventBatch("x", 0, block, bytes(args)))


def test_endless_arguments_are_cut_off() -> None:
    """A heap of a million items of no length, claimed by every event, is walked once and not for ever."""
    block = empty_block(10_000)
    block["args_at"] = np.arange(10_000)
    block["args_len"] = (8 << 20) - 10_000
    IdMap().localise(block, bytearray(8 << 20))
    assert not block["args_len"].all()


def test_ids_beyond_the_tables_are_unknown() -> None:
    """They do not make the tables as large."""
    block = empty_block(1)
    block["name"], block["track"] = 0xFFFFFFFF, 0xFFFFFFFF
    tracemalloc.start()
    ids = IdMap()
    ids.add_strings([(0xFFFFFFFF, "far away")])
    ids.add_tracks([TrackRecord(0xFFFFFFFF, 2, 0, 0, 0xFFFFFFFF, "far away")])
    ids.localise(block, bytearray())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert described(EventBatch("x", 0, block, b""))[0][2] == LOST_NAME
    assert peak < 8 << 20


def test_ids_are_translated() -> None:
    """Ids that mean something else here are rewritten, also those inside the arguments, shared ones once."""
    ids = IdMap()
    ids.add_strings(
        [(40_000, "their name"), (40_001, "their key"), (40_002, "their inline key"), (5, "user_annotation")]
    )
    ids.add_tracks([TrackRecord(77, 2, 5, 6, 0, "their track")])
    item = (40_001).to_bytes(4, "little") + bytes([1, 0, ord("b"), 0, 1])
    block = empty_block(4)
    block["name"], block["category"], block["track"] = 40_000, 5, 77
    block["args_len"][:3] = len(item)
    block["flags"][3], block["args_at"][3], block["args_len"][3] = int(Flag.ARG_INLINE), 40_002, 8
    heap = bytearray(item)
    ids.localise(block, heap)
    assert [row[2:5] for row in described(EventBatch("x", 0, block, bytes(heap)))] == [
        *[("their name", "user_annotation", "{'their key': True}")] * 3,
        ("their name", "user_annotation", "{'their inline key': 8}"),
    ]
    track = tracks.get(int(block["track"][0]))
    assert track is not None
    assert (track.pid, track.tid, track.name) == (5, 6, "their track")


def test_unknown_ids_are_lost_names() -> None:
    """An id whose text never came does not become another name by chance."""
    block = empty_block(1)
    block["name"], block["category"], block["track"] = strings.intern("known here"), 1000, 0xFFFFFFFF
    ids = IdMap()
    ids.localise(block, bytearray())
    assert strings.text(int(block["name"][0])) == LOST_NAME
    assert (int(block["category"][0]), int(block["track"][0])) == (0, 0)
