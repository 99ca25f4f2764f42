"""Reads a ring file of `core/rings/ring.c`: its events, and gaps for lost events."""

from __future__ import annotations

import os
import struct
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.intervals import Mask
from stepscope.runtime.events.record import EVENT_DTYPE, NO_STEP, Block, Flag, Kind, empty_block

MAX_SLOTS = 1 << 24
RECENT_SLOTS = 1 << 14
"""Released slots that are read in any case: a window withholds up to so many events until another event begins in it."""

_HEADER = 4096
_FIELDS = struct.Struct("<8sIIIIq32xQQQ40xQQ")
"""Magic, version, slots, track, alive, thread, head, reserve, produced, tail, serial of the next event."""
_MAGIC = b"SSRING1\0"
_VERSION = 1
_MORE = 255
_MORE_BYTES = 62

_MOST_UNWRITTEN = 4 << 20
"""Bytes of a ring that may be missing from its file, such as on a full file system."""


class RingContent(msgspec.Struct, frozen=True):
    """Content of a ring file."""

    events: Block
    """Oldest first, including drained events that were not overwritten. Ids are those of the dead process."""
    args: bytearray
    gaps: Block
    """Gaps for dropped events that were not reported yet: `id` is their number. That of events after the last one has no end, `dur`
    -1; nor a begin if there is no event, `ts` 0."""
    source: str = "recorder"
    drained: Mask | None = None
    """Mask of the events that were drained; `None` = all."""


class _Header(NamedTuple):
    magic: bytes
    version: int
    slots: int
    track: int
    alive: int
    thread: int
    head: int
    reserve: int
    produced: int
    tail: int
    serial: int


def read_ring(file: int, number: int, counted: int, *, released: bool = True) -> RingContent:
    """Reads a ring from a descriptor. Every count is checked against the file.

    Args:
        counted: serial number below which lost events are counted elsewhere, such as in the journal.
        released: whether to read all released slots that were not overwritten, not only the latest.

    Raises:
        FormatError: if it is no ring, or contradicts itself.
    """
    head = os.pread(file, _HEADER, 0)
    if len(head) < _HEADER:
        raise FormatError("too short for a ring")
    ring = _Header(*_FIELDS.unpack_from(head))
    slots, end, size = ring.slots, ring.head, os.fstat(file).st_size
    if ring.magic != _MAGIC or ring.version != _VERSION:
        raise FormatError("not a ring of this version")
    if not 0 < slots <= MAX_SLOTS or slots & (slots - 1) or size < _HEADER + slots * EVENT_DTYPE.itemsize:
        raise FormatError(f"{size} bytes do not hold {slots} slots")
    # Older slots were overwritten, or may have been when the process died.
    first = max(max(ring.reserve, end) - slots, 0)
    if not first <= end < 1 << 62 or end - first > slots:
        raise FormatError("its counters contradict each other")
    if not released:
        first = max(first, min(ring.tail, end) - RECENT_SLOTS)
    if (end - first) * EVENT_DTYPE.itemsize > written(file):
        raise FormatError("its counters claim more than was ever written")
    raw = _read_slots(file, slots, first, end)
    if len(raw) != (end - first) * EVENT_DTYPE.itemsize:
        raise FormatError("it ends early")
    return _content(raw, first, number, ring, counted)


def waiting_in(file: int) -> int:
    """Number of events that were not drained, including lost ones; 0 if the header is invalid."""
    head = os.pread(file, _HEADER, 0)
    if len(head) < _HEADER:
        return 0
    ring = _Header(*_FIELDS.unpack_from(head))
    waiting = ring.produced - ring.serial
    return waiting if ring.magic == _MAGIC and 0 < waiting < 1 << 48 else 0


def written(file: int) -> int:
    """Bytes of a file that are really stored, and some more: a sparse file may claim any size."""
    return os.fstat(file).st_blocks * 512 + _MOST_UNWRITTEN


def _read_slots(file: int, slots: int, first: int, end: int) -> bytearray:
    """Slots `first` to `end`, in order."""
    data = bytearray()
    while first < end:
        index = first & (slots - 1)
        count = min(end - first, slots - index)
        part = os.pread(file, count * EVENT_DTYPE.itemsize, _HEADER + index * EVENT_DTYPE.itemsize)
        data += part
        if len(part) < count * EVENT_DTYPE.itemsize:
            break
        first += count
    return data


def _content(raw: bytearray, first: int, number: int, ring: _Header, counted: int) -> RingContent:
    slots: Block = np.frombuffer(raw, EVENT_DTYPE)
    more: Any = slots["kind"] == _MORE
    # Arguments follow their event, in order and without holes. Joined, they are the heap.
    heap = bytearray(np.frombuffer(raw, np.uint8).reshape(-1, EVENT_DTYPE.itemsize)[more, :_MORE_BYTES].tobytes())
    before = np.cumsum(more) - more
    where = np.flatnonzero(~more)
    events: Block = slots[where].copy()
    following = np.append(where[1:], len(slots)) - where - 1
    has_args = (events["args_len"] > 0) & (events["flags"] & int(Flag.ARG_INLINE) == 0)
    events["args_len"][has_args & (events["args_len"] > following * _MORE_BYTES)] = 0
    events["args_at"][has_args] = (before[where] * _MORE_BYTES)[has_args]
    serials = events["step"].astype(np.int64) & 0xFFFFFFFF
    marks = events["kind"] == int(Kind.STEP)
    events["step"] = np.where(marks, events["dur"].astype(np.int32), NO_STEP)
    events["dur"][marks] = 0
    # Slots that were never written to the file (`ring_back`), or are damaged, have no event: their numbers are missing.
    valid = (events["kind"] > 0) & (events["kind"] <= max(Kind))
    # A released slot is in the journal, and so are the gaps before it.
    expected = max(ring.serial, counted)
    waiting = valid & (where + first >= min(max(ring.tail, first), ring.head))
    waiting &= (serials - (expected & 0xFFFFFFFF)) & 0xFFFFFFFF < _FAR
    gaps = _gaps(events[waiting], serials[waiting], expected, ring.produced)
    gaps["track"], gaps["parent"] = ring.track, number + 1
    return RingContent(events[valid], heap, gaps, drained=~waiting[valid])


_FAR = 1 << 31
"""A ring cannot lose half of all serial numbers: a larger distance means a damaged number, or an older one."""
_MOST = (1 << 63) - 1


def _gaps(waiting: Block, serials: Any, expected: int, produced: int) -> Block:
    """Gaps where serial numbers are missing, from `expected` on."""
    after = np.append(serials, [produced & 0xFFFFFFFF])
    missing = (after - np.append([expected & 0xFFFFFFFF], (serials + 1) & 0xFFFFFFFF)) & 0xFFFFFFFF
    at = np.flatnonzero((missing > 0) & (missing < _FAR))
    block = empty_block(len(at))
    ends = np.append([0], waiting["ts"] + waiting["dur"]) if len(waiting) else np.zeros(1, np.int64)
    begins = np.append(waiting["ts"], ends[-1:])
    block["ts"] = np.where(ends[at] > 0, np.minimum(ends[at], begins[at]), begins[at])
    # Lost events were recorded before the next event, that is, before that one ended.
    block["dur"] = np.where(at < len(waiting), np.append(ends[1:], ends[-1:])[at] - block["ts"], -1)
    block["id"], block["kind"] = missing[at], int(Kind.GAP)
    block["self_dur"] = (expected & (_MOST >> 1)) + ((after[at] - (expected & 0xFFFFFFFF)) & 0xFFFFFFFF)
    return block
