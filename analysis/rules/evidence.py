"""Parts that rules share: the job that they check, in which part of a program a sampled stack is, and evidence in one form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.analysis.findings import EventReference, Place
from stepscope.analysis.tables.collectives import Key, fastest_of
from stepscope.analysis.tables.rank_summary import Call, RankSummary, Sample, parse_frame, program_functions
from stepscope.analysis.thresholds import DISTINCT, FEWEST_SAMPLES
from stepscope.runtime.display.code_places import in_library
from stepscope.runtime.windows.step_facts import Facts


class Job:
    """All ranks, and the one that stands for all of them where a rule looks at one process."""

    def __init__(self, ranks: list[RankSummary], main: RankSummary | None = None) -> None:
        self.ranks = ranks
        self.main = main or max(ranks, key=lambda rank: (len(rank.facts), -(rank.rank or 0)))


def fastest_in(ranks: list[RankSummary]) -> dict[Key, int]:
    """`fastest_of` all collectives of a job; empty if one of its ranks is missing: the others may have waited for that one."""
    size = max((each.recorded.world_size or 1 for each in ranks), default=1)
    whole = len({each.rank for each in ranks}) >= size
    return fastest_of([each.collectives for each in ranks]) if whole else {}


def number_of(rank: RankSummary) -> tuple[int, ...]:
    """The rank's number, as a finding has those that it is about; none if it has none."""
    return () if rank.rank is None else (rank.rank,)


def on_rank(ranks: Iterable[int]) -> str:
    """` on rank 2`, or nothing."""
    return "".join(f" on rank {rank}" for rank in ranks)


SAME_SHARE = 0.05
"""If the shares of two functions differ by less, the inner one is named."""
LOADER_FILES = ("torch/utils/data/",)


def in_loader(sample: Sample) -> bool:
    """Whether the thread was in a DataLoader."""
    return any(file in sample.stack for file in LOADER_FILES)


def in_collate(sample: Sample, facts: dict[str, Any]) -> bool:
    """Whether a loader's own `collate_fn` is on the stack.

    Args:
        facts: those of the loader, as recorded where its iteration begins.
    """
    file, _, _ = str(facts.get("collate_place", "")).rpartition(":")
    name = str(facts.get("collate", ""))
    return not in_library(file) and any(
        where == file and name.endswith((f".{function}", f".{function.removesuffix('.__call__')}"))
        for function, where in program_functions(sample.stack)
    )


def in_backward(sample: Sample) -> bool:
    """Whether autograd runs, on this thread, below the sampled function."""
    return "_engine_run_backward" in sample.stack


def in_backward_hook(sample: Sample) -> bool:
    """Whether autograd has called a function of the program."""
    after = sample.stack.partition("_engine_run_backward")[2].split(";")[1:]
    return any((frame := parse_frame(each)) is not None and not in_library(frame.file) for each in after)


COMPUTING_LIBRARIES = tuple(f"site-packages/{name}/" for name in ("torch", "mindspore", "mxnet", "jax", "keras"))
"""Libraries in which a thread runs operators, or waits for them."""


def in_program_code(sample: Sample) -> bool:
    """Whether the innermost function is the program's own, or of a library called by it that computes no operators, such as Python's."""
    files = [frame.file for text in sample.stack.split(";") if (frame := parse_frame(text)) is not None]
    own = max((at for at, file in enumerate(files) if not in_library(file)), default=-1)
    return bool(files) and not any(file.startswith(COMPUTING_LIBRARIES) for file in files[own + 1 :])


def waits_in_library(sample: Sample) -> bool:
    """Whether the thread waits in a library that the program calls, such as the client of a server."""
    frame = parse_frame(sample.stack.rpartition(";")[2])
    return frame is not None and sample.state in {"S", "D"} and not frame.file.startswith(COMPUTING_LIBRARIES)


def waits_in_computing(sample: Sample) -> bool:
    """Whether the thread waits in a library that computes, as in a collective for other ranks."""
    frame = parse_frame(sample.stack.rpartition(";")[2])
    return frame is not None and sample.state in {"S", "D"} and frame.file.startswith(COMPUTING_LIBRARIES)


def only_in(slow: list[Sample], usual: list[Sample], distinct: float = DISTINCT) -> Place | None:
    """The innermost function of the program that has many more of some samples than of others.

    Args:
        slow: samples of what is slow.
        usual: samples of the same where it is not.
        distinct: by how much its share must be larger, from 0 to 1.
    """
    if len(slow) < FEWEST_SAMPLES:
        return None
    stacks = [program_functions(sample.stack) for sample in slow]
    here = Counter(function for stack in stacks for function in stack)
    there = Counter(function for sample in usual for function in program_functions(sample.stack))
    best, most = None, 0.0
    for function, count in here.items():  # outer ones first
        share = count / len(slow)
        distance = share - there[function] / max(len(usual), 1)
        if distance >= distinct and distance >= most - SAME_SHARE:
            best, most = function, max(distance, most)
    if best is None:
        return None
    line, _ = Counter(stack[best] for stack in stacks if best in stack).most_common(1)[0]
    return Place(*best, line, here[best] / len(slow))


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


def have_one_of(steps: Facts, times: list[int]) -> NDArray[np.bool_]:
    """Which of the steps have one of these times, in ns, in them."""
    ordered = np.sort(np.array(times, np.int64))
    begun, ended = (np.searchsorted(ordered, steps[name]) for name in ("begin", "end"))
    return ended > begun


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
