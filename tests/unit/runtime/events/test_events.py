"""Blocks: joined and divided without a change to any event."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime.events.record import Flag, empty_block, join_blocks, own_heap, without_ids


@given(st.lists(st.integers(-1, 300), max_size=40), st.integers(1, 12))
def test_parts_hold_every_event_with_its_own_arguments(sizes: list[int], most: int) -> None:
    """`sizes`: -1 is an inline argument, 0 none, otherwise text of that length."""
    events = empty_block(len(sizes))
    heap = b""
    for index, size in enumerate(sizes):
        events["id"][index] = index
        if size < 0:
            events["flags"][index] = int(Flag.ARG_INLINE)
            events["args_at"][index], events["args_len"][index] = 7, 1 << 31
        elif size:
            argument = _core.encode_arguments({"text": chr(65 + index % 26) * size})
            events["args_at"][index], events["args_len"][index] = len(heap), len(argument)
            heap += argument
    parts = [own_heap(events[first : first + most], heap) for first in range(0, len(events), most)]
    assert join_blocks([part for part, _ in parts] or [events])["id"].tolist() == list(range(len(sizes)))
    assert sum(len(args) for _, args in parts) == len(heap)
    found = [
        _core.decode_arguments(args, int(event["args_at"]), int(event["args_len"]))["text"]
        for part, args in parts
        for event in part
        if event["args_len"] and not event["flags"] & int(Flag.ARG_INLINE)
    ]
    assert found == [chr(65 + index % 26) * size for index, size in enumerate(sizes) if size > 0]


@given(st.lists(st.integers(0, 20), unique=True), st.lists(st.integers(0, 20)))
def test_without_ids(few: list[int], many: list[int]) -> None:
    """Those that are among the others are left out, whatever the order."""
    left, right = empty_block(len(few)), empty_block(len(many))
    left["id"], right["id"] = few, many
    assert without_ids(left, right)["id"].tolist() == [number for number in few if number not in many]
