"""Counts and times of a block of events, in one pass."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EVENT_DTYPE, QUIET, Block, Kind

_ALWAYS = (-(1 << 63), (1 << 63) - 1)
OPERATORS_CATEGORY = strings.category("cpu_op")
_core.set_survey_categories(OPERATORS_CATEGORY, tuple(strings.category(name) for name in QUIET))


class Survey(NamedTuple):
    """The counts and times of a block. Operators of frameworks are counted separately from other events of their kind."""

    events: int
    first_ns: int
    """Begin of the first event."""
    last_ns: int
    """Begin of the last one."""
    end_ns: int
    """End of the last one."""
    spans: int
    steps: int
    gaps: int
    others: int
    """Events of other kinds."""
    operators: int
    arguments: int
    """Events with arguments in the heap."""
    lost: int
    """Lost events, according to the gaps."""
    loud: int
    """Events other than step marks and `QUIET` ones."""
    loud_last_ns: int
    """Begin of the last event that is not `QUIET`."""
    program_last_ns: int
    """The same, without step marks."""
    first_step: int
    """Lowest number of a step; larger than `last_step` if no event belongs to one."""
    last_step: int
    last_mark_ns: int
    """Begin of the last step mark."""
    heap_bytes: int
    """Bytes of the arguments in the heap."""


_known: dict[int, tuple[weakref.ref[Block], Survey]] = {}
"""Surveys of living blocks, by the `id` of the block."""


def survey(events: Block) -> Survey:
    """Counts a block, unless its survey is known. The times of an empty block mean nothing."""
    known = _known.get(id(events))
    if known is not None and known[0]() is events:
        return known[1]
    return Survey(*_core.survey(np.ascontiguousarray(events)))


def remember_survey(events: Block, found: Survey) -> None:
    """Makes the survey of a block known, so that the block is not read again for it. The block must not change any more."""
    key = id(events)
    _known[key] = weakref.ref(events, lambda _: _known.pop(key, None)), found


def parts_in(events: Block, interval: tuple[int, int]) -> Block:
    """A copy of the events that lie in an interval (ns), at least in part."""
    found: Block = np.frombuffer(_core.part_of_block(np.ascontiguousarray(events), 0, *interval), EVENT_DTYPE)
    return found


def count_in(events: Block, intervals: list[tuple[int, int]]) -> int:
    """Number of events, without gaps, that lie in one of the sorted, disjoint intervals (ns), at least in part."""
    return _core.count_touching(np.ascontiguousarray(events), np.array(intervals, np.int64))


def of_kind(events: Block, kind: Kind) -> Block:
    """A copy of the events of one kind."""
    found: Block = np.frombuffer(_core.part_of_block(np.ascontiguousarray(events), int(kind), *_ALWAYS), EVENT_DTYPE)
    return found
