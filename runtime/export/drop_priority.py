"""Shedding: what is kept where there is no room for all.

The order is the same in rings, in the inbox and in the queue of an exporter: the categories of `Options.shed` one
after the other, of each its small events before its large ones; then everything else; step marks last. Each of these
levels may fill a share of what there is, so that what goes later finds room when what goes first comes in floods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.events.record import EVENT_DTYPE, Block, EventBatch, Flag
from stepscope.runtime.options import Options

LOWEST, HIGHEST = 1 / 2, 7 / 8
"""Shares of what goes first of all, and of the last that may be shed; the others lie in between."""
KEPT = 15 / 16
"""Share of all that is not to be shed; the rest is for step marks."""
SPARE = 8
"""Where the oldest makes room, it makes room for this part of a queue more, so as not to be asked for every batch."""


class Shedding(msgspec.Struct, frozen=True):
    """Who goes first, and how full a place may be for whom. Pure: it is told how full it is."""

    native: tuple[tuple[str, ...], int, tuple[str, ...]]
    """The order, as `_core` takes it: categories, ns from which on an event is large, names that are kept."""
    shares: tuple[float, ...]
    """By level, from what goes first."""
    overflow: str

    @classmethod
    def of(cls, options: Options) -> Self:
        """The order that a profiler's options ask for."""
        levels = 2 * len(options.shed)
        step = (HIGHEST - LOWEST) / max(levels - 1, 1)
        shares = (*(LOWEST + step * level for level in range(levels)), KEPT, 1.0)
        return cls((tuple(options.shed), options.small_ns, tuple(options.shed_never)), shares, options.overflow)

    def admit(self, events: Block, args: bytes, used: int, limit: int) -> tuple[Block, bytes]:
        """What of a block may enter a place that holds `used` of `limit` bytes.

        Of the level that does not fit whole, the first events are kept, or with `drop_oldest` the last, or with
        `sample` evenly distributed ones; of the levels below, nothing that has no room beside it.

        Returns:
            The events, in their order, and their arguments; the very same objects if all fit.
        """
        if used + events.nbytes + len(args) <= limit * self.shares[0]:
            return events, args
        levels = self._levels(events)
        cost = _bytes_of(events)
        keep = np.zeros(len(events), np.bool_)
        for level in range(len(self.shares) - 1, -1, -1):
            rows = np.flatnonzero(levels == level)
            room = int(limit * self.shares[level]) - used
            if not len(rows) or room <= 0:
                continue
            chosen = self._choose(rows, cost, room)
            keep[chosen] = True
            used += int(cost[chosen].sum())
        return (events, args) if keep.all() else _select(events, args, keep)

    def admit_batch(self, batch: EventBatch, used: int, limit: int) -> EventBatch:
        """What of a batch may enter a queue that holds `used` of `limit` bytes; the very same object if all may."""
        events, args = self.admit(batch.events, batch.args, used, limit)
        if len(events) == len(batch):
            return batch
        events.flags.writeable = False
        return msgspec.structs.replace(batch, events=events, args=args)

    def evict(self, waiting: list[EventBatch], need: int) -> Iterator[tuple[int, EventBatch]]:
        """Makes room by what has waited longest: for `drop_oldest`.

        Of what goes first the oldest goes, then of what goes next, until `need` bytes are free.

        Args:
            waiting: batches from the oldest on.
            need: bytes that are missing.

        Yields:
            The place of each batch that loses something, and what is left of it, which may be nothing.
        """
        levels = [self._levels(batch.events) for batch in waiting]
        left = [np.ones(len(batch), np.bool_) for batch in waiting]
        for level in range(len(self.shares)):
            for batch, mine, keep in zip(waiting, levels, left, strict=True):
                rows = np.flatnonzero(mine == level)
                if need <= 0 or not len(rows):
                    continue
                freed = np.cumsum(_bytes_of(batch.events[rows]))
                count = int(np.searchsorted(freed, need)) + 1
                keep[rows[:count]] = False
                need -= int(freed[min(count, len(rows)) - 1])
        for place, (batch, keep) in enumerate(zip(waiting, left, strict=True)):
            if not keep.all():
                events, args = _select(batch.events, batch.args, keep)
                events.flags.writeable = False
                yield place, msgspec.structs.replace(batch, events=events, args=args)

    def _levels(self, events: Block) -> NDArray[np.uint8]:
        contiguous = np.ascontiguousarray(events)
        return np.frombuffer(_core.shed_levels(contiguous.view(np.uint8), self.native), np.uint8)

    def _choose(self, rows: NDArray[np.intp], cost: NDArray[np.int64], room: int) -> NDArray[np.intp]:
        """Those of `rows` that `room` bytes hold."""
        sizes = np.cumsum(cost[rows])
        if sizes[-1] <= room:
            return rows
        if self.overflow == "drop_oldest":
            return rows[len(rows) - int(np.searchsorted(np.cumsum(cost[rows][::-1]), room, "right")) :]
        if self.overflow == "sample":
            every = -(-int(sizes[-1]) // room)
            rows = rows[::every]
            sizes = np.cumsum(cost[rows])
        return rows[: int(np.searchsorted(sizes, room, "right"))]


def _lengths(events: Block) -> NDArray[np.int64]:
    """Bytes of arguments of each event in its heap."""
    inline = events["flags"] & int(Flag.ARG_INLINE) != 0
    lengths: NDArray[np.int64] = np.where(inline, 0, events["args_len"]).astype(np.int64)
    return lengths


def _bytes_of(events: Block) -> NDArray[np.int64]:
    cost: NDArray[np.int64] = _lengths(events) + EVENT_DTYPE.itemsize
    return cost


def _select(events: Block, args: bytes, keep: NDArray[np.bool_]) -> tuple[Block, bytes]:
    """The events to keep, with a heap that holds their arguments only."""
    chosen: Any = np.ascontiguousarray(events[keep])
    lengths = _lengths(chosen)
    held = (lengths > 0) & (chosen["args_at"] + lengths <= len(args))
    chosen["args_len"][(lengths > 0) & ~held] = 0  # they point nowhere, as whoever made them has it
    at, sizes = chosen["args_at"][held].astype(np.int64), lengths[held]
    begins = np.cumsum(sizes) - sizes
    # Where each byte of the new heap was in the old one.
    where = np.repeat(at - begins, sizes) + np.arange(int(sizes.sum()))
    chosen["args_at"][held] = begins
    return chosen, np.frombuffer(args, np.uint8)[where].tobytes()
