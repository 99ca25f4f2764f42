"""The fields of events as Arrow's columns."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.events import tracks
from stepscope.runtime.events.record import EVENT_DTYPE, Block, Flag, Kind

WIDE = ("ts", "dur", "self_dur", "value", "id", "parent")
OF_TRACKS = ("pid", "tid")
NARROW = ("step", "kind", "category", "name", "track")
BITS = 10
AHEAD = 10**18


def any_events(number: int) -> Block:
    """Events of whatever content, of some hundred names."""
    bits = np.random.default_rng(number).integers(0, 256, (number, EVENT_DTYPE.itemsize), np.uint8)
    events: Block = bits.view(EVENT_DTYPE).reshape(-1).copy()
    events["kind"] %= 14
    events["name"] %= 700
    events["track"] %= 3
    events["step"] = np.arange(number) % 5 - 1
    events["ts"] >>= 2
    for field in ("id", "parent"):
        events[field][::3] = 0
    return events


def room_for(number: int) -> tuple[bytearray, int]:
    """Room for the columns of so many events, and for how many of each."""
    rows = -(-number // 64) * 64
    return bytearray(rows * (8 * len(WIDE + OF_TRACKS) + 4 * len(NARROW)) + rows // 8 * BITS), rows


@pytest.mark.parametrize("number", [0, 1, 63, 64, 65, 2000])
def test_columns_have_the_values_of_the_events(number: int) -> None:
    """Each field of each event of several blocks, and a bit for each that says whether it applies."""
    tracks.read(tracks.TrackKind.THREAD, 7, 8, "first", 0)
    events = any_events(number)
    room, rows = room_for(number)
    blocks = [events[: number // 3], events[number // 3 : number // 2], events[number // 2 :]]
    columns, keys = _core.arrow_columns(blocks, AHEAD, room)
    at = 0
    for field in WIDE:
        column = np.frombuffer(room, np.uint64, number, at)
        assert (column == events[field].copy().view(np.uint64) + np.uint64(AHEAD if field == "ts" else 0)).all(), field
        at += 8 * rows
    rows_of = [tracks.get(track) for track in events["track"].tolist()]
    for field in OF_TRACKS:
        column = np.frombuffer(room, np.int64, number, at)
        assert column.tolist() == [getattr(row, field, 0) for row in rows_of], field
        at += 8 * rows
    assert (np.frombuffer(room, np.int32, number, at) == events["step"]).all()
    shown = (events["flags"] & int(Flag.NUMBERED) != 0) & (events["step"] >= 0)
    names = events["name"] + (np.where(shown, events["step"] + 1, 0).astype(np.uint64) << np.uint64(32))
    for wanted, different in zip((events["kind"], events["category"], names, events["track"]), keys, strict=True):
        at += 4 * rows
        places = np.frombuffer(room, np.int32, number, at)
        assert (np.array([*different, 0], np.uint64)[places] == wanted).all()
        assert sorted(different) == np.unique(wanted).tolist()
    at += 4 * rows
    bits = np.unpackbits(np.frombuffer(room, np.uint8, BITS * rows // 8, at), bitorder="little").reshape(BITS, rows)
    assert columns == bits.sum(1).tolist()
    for found, applies in zip(bits, facts(events), strict=True):
        assert (found[:number] == applies).all()


def facts(events: Block) -> list[NDArray[np.bool_]]:
    """The facts that the bits have, in their order."""
    kind, flags = events["kind"], events["flags"]
    span = kind == int(Kind.SPAN)
    return [
        events["step"] >= 0,
        span & (flags & int(Flag.NUMBERED) == 0),
        np.isin(kind, (int(Kind.COUNTER), int(Kind.MEMORY))),
        (events["id"] > 0) & (kind != int(Kind.STEP)),
        events["parent"] > 0,
        (events["args_len"] > 0) | (flags & int(Flag.ARG_INLINE) != 0),
        span,
        *(flags & int(flag) != 0 for flag in (Flag.CLIPPED, Flag.OPEN, Flag.ERROR)),
    ]


@pytest.mark.parametrize("missing", [-1, 1])
def test_room_of_another_size_is_refused(missing: int) -> None:
    """A room of another size is refused before anything is written."""
    room, _ = room_for(65)
    with pytest.raises(ValueError, match="whole events"):
        _core.arrow_columns([any_events(65)], 0, bytearray(len(room) - missing))
    with pytest.raises(ValueError, match="whole events"):
        _core.arrow_columns([any_events(65).tobytes()[missing:]], 0, room)
