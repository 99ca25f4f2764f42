"""Evidence that several rules give in the same form: steps, events, places and samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from stepscope.analysis.findings import EventReference, Place
from stepscope.analysis.tables.rank_summary import Call, RankSummary, parse_frame
from stepscope.runtime.windows.step_facts import Facts

MOST_STEPS = 3
"""Steps of a finding that are the clearest of all."""
MOST_EVENTS = 3


class Timed(Protocol):
    """Something with a begin and a duration in ns."""

    @property
    def ts(self) -> int: ...

    @property
    def dur(self) -> int: ...


def steps_with_most(steps: Facts, values: ArrayLike) -> tuple[int, ...]:
    """The numbers of the steps with the largest values, the largest first; none whose value is 0 or is not known."""
    finite = np.nan_to_num(np.asarray(values, np.float64))
    order = np.argsort(-finite, kind="stable")[:MOST_STEPS]
    return tuple(steps["step"][order[finite[order] > 0]].tolist())


def longest(rank: RankSummary, events: Iterable[Timed], name: str = "") -> tuple[EventReference, ...]:
    """The longest of some events, by their own names or by one that they all get."""
    chosen = sorted(events, key=lambda event: -event.dur)[:MOST_EVENTS]
    return tuple(EventReference(name or getattr(event, "name", ""), event.ts, event.dur, rank.rank) for event in chosen)


def intervals(events: Iterable[Timed]) -> list[tuple[int, int]]:
    """Begin and end of each event."""
    return [(event.ts, event.ts + event.dur) for event in events]


def places(place: Place | None) -> tuple[Place, ...]:
    """The places of a finding that has one, or none."""
    return () if place is None else (place,)


def samples_at(place: Place | None, when: str) -> tuple[str, ...]:
    """The sentence that says which share of some samples is at a place, where there is one."""
    return () if place is None else (f"{place.share:.0%} of the stack samples {when} are in {place}",)


def place_of_calls(calls: Iterable[Call]) -> Place | None:
    """The place that has most of the time of some calls, with its share of that; `None` if it is not known."""
    spent = Counter[str]()
    for call in calls:
        spent[call.place] += call.dur
    if not spent.total():
        return None
    text, most = spent.most_common(1)[0]
    place = parse_frame(text)
    return None if place is None else msgspec.structs.replace(place, share=most / spent.total())
