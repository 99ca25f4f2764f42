"""The format of events, in blocks and batches.

A block is a numpy structured array over memory of the native core, with 64 bytes per event and no Python objects. Names,
categories and argument keys are ids of the process-wide table (`strings.py`), tracks are ids of the process-wide track table
(`tracks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, IntEnum, IntFlag
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.documented import Documented

Block: TypeAlias = NDArray[np.void]
"""One-dimensional array of `EVENT_DTYPE`."""

EVENT_DTYPE = np.dtype(
    {
        "names": [
            "ts", "dur", "self_dur", "value", "id", "parent", "args_at", "args_len",
            "name", "track", "step", "category", "kind", "flags",
        ],
        "formats": ["<i8", "<i8", "<i8", "<f8", "<u8", "<u8", "<u4", "<u4", "<u4", "<u4", "<i4", "<u2", "u1", "u1"],
        "offsets": [0, 8, 16, 16, 24, 32, 40, 44, 48, 52, 56, 60, 62, 63],
        "itemsize": 64,
    }
)  # fmt: skip
"""The record (`core.h`: Event). `self_dur` and `value` share their bytes: spans use the first, counters the second."""

NO_STEP = -1

QUIET = ("step signal", "thread cpu", "stack sample", "processor demand")
"""Categories of events that are recorded all the time, independent of the program (`Options.signals`). A window with only such
events counts as empty."""
OF_SIGNALS = (*QUIET, "asyncio queue", "task waits", "loader")
"""Categories of counters and instants that are not the program's own. Tables do not show them."""
RESERVED = (
    *OF_SIGNALS,
    *("user_annotation", "overhead", "gc", "loop callback", "forced write", "checkpoint", "logging"),
    *("cpu_op", "python_function", "kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset"),
)
"""Categories that stepscope itself records, and those of devices and operators that rules read. They have an id before the program's
first category, so that the table always has room for them."""


class Kind(IntEnum):
    """Kind of an event (`EVENT_DTYPE["kind"]`)."""

    SPAN = 1
    INSTANT = 2
    COUNTER = 3
    FLOW_START = 4
    FLOW_STEP = 5
    FLOW_END = 6
    ASYNC_BEGIN = 7
    ASYNC_END = 8
    MEMORY = 9
    """An allocation (argument `Bytes` > 0) or release (< 0); `value` is the total allocated after it."""
    METADATA = 10
    STEP = 11
    """A call of `Profiler.step()` or `start()`: `step` begins at `ts`."""
    GAP = 12
    """Nothing was recorded from `ts` for `dur` ns: a pause, or `id` events that were dropped or excluded by sampling, according to
    the name."""


class Flag(IntFlag):
    """Bits of `EVENT_DTYPE["flags"]`."""

    ARG_INLINE = 1
    """The only argument is in the record: key in `args_at`, unsigned value in `args_len`."""
    CLIPPED = 2
    """Cut at the border of a recording."""
    OPEN = 4
    """The span had not ended when it was written."""
    ASYNC = 8
    """The span does not nest on its track. It is an async pair."""
    ERROR = 16
    """An exception ended the span."""
    NUMBERED = 64
    """Viewers show its name with `#` and its step, so that all steps of a run share one name in the table."""
    NO_NUMBER = 128
    """The value of the counter was no number: it is NaN."""


def find_at_once(members: type[Enum]) -> None:
    """Makes members plain attributes of the class: Python 3.11 calls two functions for each access, 3.12 none."""
    for member in members:
        type.__setattr__(members, member.name, member)


find_at_once(Kind)
find_at_once(Flag)


class EventBatch(Documented, frozen=True, gc=False):
    """Events of one source and one window, on their way to the exporters.

    Batches are shared between exporters: their arrays are read-only.
    """

    source: str
    """Name of the backend, or `"recorder"` for user events."""
    window: int
    """Index of the window, from 0; -1 before windows were assigned."""
    events: Block
    """One row for each event, see `EVENT_DTYPE`."""
    args: bytes
    """Heap of the arguments, into which `args_at` and `args_len` point."""

    def __len__(self) -> int:
        return len(self.events)

    @property
    def nbytes(self) -> int:
        """Its bytes, which count against limits of queues."""
        return int(self.events.nbytes) + len(self.args)


def empty_block(n: int = 0) -> Block:
    """A zeroed block of `n` events with `step` set to `NO_STEP`."""
    block: Any = np.zeros(n, EVENT_DTYPE)
    block["step"] = NO_STEP
    return block  # type: ignore[no-any-return]


_MAX_NS = 1 << 62
_MAX_LOST = 1 << 48
_SMALL_BYTES = 1 << 20


def check_block(block: object, source: str) -> None:
    """Checks a block of a source, so that its events can spoil neither files nor accounts.

    Raises:
        TypeError: if it is no block.
        ValueError: if an event in it has an unknown kind, or times or a number of lost events that nothing can have.
    """
    if not isinstance(block, np.ndarray):
        raise TypeError(f"a block of {source!r} must be an array of EVENT_DTYPE, {got(block)}")
    array = cast(NDArray[Any], block)
    if array.dtype != EVENT_DTYPE:
        raise TypeError(f"a block of {source!r} must have EVENT_DTYPE, got {array.dtype}")
    if array.ndim != 1:
        raise TypeError(f"a block of {source!r} must have one dimension, got the shape {array.shape}")
    kinds = array["kind"]
    gaps = kinds == int(Kind.GAP)
    timed = gaps | (kinds == int(Kind.SPAN))
    possible = {
        "kind": (kinds > 0) & (kinds <= int(max(Kind))),
        "ts": (array["ts"] >= 0) & (array["ts"] < _MAX_NS),
        # That of a device whose clock ran backwards may be a little below 0, and counts as 0.
        "dur": ~timed | ((array["dur"] > -_MAX_NS) & (array["dur"] < _MAX_NS)),
        "id": ~gaps | (array["id"] < _MAX_LOST),
    }
    for field, fits in possible.items():
        if not fits.all():
            index = int(np.argmin(fits))
            raise ValueError(
                f"event {index} of a block of {source!r} has the impossible {field} {array[index][field]}; see EVENT_DTYPE"
            )


def join_blocks(blocks: Iterable[Block]) -> Block:
    """Joins blocks, in their order.

    `np.concatenate` would rebuild the record type without its overlapping fields, and so change its layout.
    """
    whole: list[Any] = [np.ascontiguousarray(block) for block in blocks]
    if sum(block.nbytes for block in whole) <= _SMALL_BYTES:
        # Numpy would hand over the interpreter's lock, and get it back after 5 ms.
        joined: Block = np.frombuffer(bytearray().join(whole), EVENT_DTYPE)
    else:
        joined = np.concatenate([np.frombuffer(block, np.uint8) for block in whole]).view(EVENT_DTYPE)
    return joined


def join_batches(batches: Iterable[EventBatch], max_events: int) -> Iterator[EventBatch]:
    """Joins consecutive batches of one window, up to `max_events` events, as each batch has a fixed cost. The source is that of the
    first."""
    parts: list[EventBatch] = []
    count = 0
    for batch in batches:
        if parts and (parts[0].window != batch.window or count + len(batch) > max_events):
            yield _one(parts)
            parts, count = [], 0
        parts.append(batch)
        count += len(batch)
    if parts:
        yield _one(parts)


def _one(parts: list[EventBatch]) -> EventBatch:
    if len(parts) == 1:
        return parts[0]
    events = join_blocks(part.events for part in parts)
    in_heap = events["flags"] & int(Flag.ARG_INLINE) == 0
    begins = np.cumsum([0, *(len(part.args) for part in parts[:-1])])
    events["args_at"][in_heap] += np.repeat(begins, [len(part) for part in parts])[in_heap].astype(np.uint32)
    return EventBatch(parts[0].source, parts[0].window, events, b"".join(part.args for part in parts))


def cut_block(events: Block, args: bytes, max_bytes: int) -> tuple[Block, bytes]:
    """The first events of a block that fit so many bytes with their arguments; the same objects if all fit."""
    if events.nbytes + len(args) <= max_bytes:
        return events, args
    in_heap = (events["args_len"] > 0) & (events["flags"] & int(Flag.ARG_INLINE) == 0)
    ends = np.where(in_heap, events["args_at"].astype(np.int64) + events["args_len"], 0)
    heap = np.maximum.accumulate(np.minimum(ends, len(args)))
    sizes = heap + EVENT_DTYPE.itemsize * np.arange(1, len(events) + 1)
    count = int(np.searchsorted(sizes, max_bytes, "right"))
    return events[:count].copy(), args[: int(heap[count - 1])] if count else b""


def heap_bytes(events: Block) -> int:
    """Bytes of the arguments of these events."""
    return _core.heap_range(np.ascontiguousarray(events))[2]


def own_heap(part: Block, args: bytes) -> tuple[Block, bytes]:
    """Events of a block with only their arguments, of the heap of the block. They are copied if they do not begin there."""
    part = np.ascontiguousarray(part)
    start, end, size = _core.heap_range(part)
    if not size:
        return part, b""
    if start:
        part = join_blocks([part])  # a copy; that of numpy goes field by field
        part["args_at"][(part["args_len"] > 0) & (part["flags"] & int(Flag.ARG_INLINE) == 0)] -= start
    return part, args[start:end]


def distinct(numbers: NDArray[Any]) -> list[int]:
    """The numbers in order, each once. `np.unique` imports numpy.ma at its first call, which keeps a training waiting for 30 ms."""
    ordered = np.sort(numbers)
    new = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(ordered) else slice(0)
    found: list[int] = ordered[new].tolist()
    return found


def without_ids(few: Block, many: Block) -> Block:
    """`few` without events whose id is in `many`. The time is linear in `many`, which are not sorted."""
    if not len(few):
        return few
    ids = np.sort(few["id"])
    at = np.minimum(np.searchsorted(ids, many["id"]), len(ids) - 1)
    found = many["id"][ids[at] == many["id"]]
    return few[~np.isin(few["id"], found)]
