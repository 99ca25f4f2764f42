"""Ranks that the others wait for, work that is uneven from step to step, and many collectives. This compares no clocks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.findings import Finding
from stepscope.analysis.rules.evidence import (
    MOST_STEPS,
    Job,
    fastest_in,
    intervals,
    only_in,
    places,
    samples_at,
    steps_with_most,
)
from stepscope.analysis.rules.processors import queued
from stepscope.analysis.rules.slow_steps import few_slow_steps
from stepscope.analysis.tables.collectives import is_collective
from stepscope.analysis.tables.rank_summary import RankSummary, Sample, durations, hottest, samples_in
from stepscope.analysis.thresholds import (
    CONTENDED_LONGER,
    COVERED,
    FEWEST_SAMPLES,
    FEWEST_STEPS,
    FINDING,
    MANY_COLLECTIVES,
    RANK_DISTINCT,
    RANK_LAST,
    RANK_LONGER,
    RANK_WAIT,
    RUN_QUEUE,
    UNEVEN_WORK,
)
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Phase, union
from stepscope.runtime.windows.step_parts import NAMES, QUEUED, is_uncovered, parts_of

COMPUTING = (NAMES[Phase.FORWARD], NAMES[Phase.BACKWARD])
"""Parts of a step that take as long on all ranks, if these have as much to compute."""
EQUAL_DATA = (
    "a loader that is further ahead: more workers, or a larger prefetch_factor; and items that take as long on all ranks, such as none that "
    "wait for a lock"
)
EQUAL_WORK = "if its batches are larger or longer, give all ranks as much to compute; else "


class RankComparison:
    """The own work of the ranks in the steps that all of them have: all but communication, and without what a rank waits for
    processors. The rank with most of it is the one that the others wait for. Arrays are of (ranks, steps), in ns.

    Single slow steps of one rank, such as those with a checkpoint, have rules of their own: they count as steps in which nobody waits.
    """

    def __init__(self, ranks: list[RankSummary], steps: list[int], single: NDArray[np.int64]) -> None:
        self.ranks, self.steps = ranks, steps
        index = [np.searchsorted(rank.judged_steps["step"], steps) for rank in ranks]
        pairs = list(zip(ranks, index, strict=True))
        communication = np.array([rank.communication()[at] for rank, at in pairs])
        queued = np.array([np.nan_to_num(rank.judged_steps["run_queue_ns"])[at] for rank, at in pairs])
        self.took: Any = np.array([durations(rank.judged_steps)[at] for rank, at in pairs])
        self.without_communication: Any = self.took - communication
        self.own: Any = np.maximum(self.without_communication - queued, 0)
        self.waits: Any = _others(communication, communication.min(axis=0)) - communication.min(axis=0)
        """ns of each step that the others wait, in the mean, beyond what the last one communicates."""
        self.longer: Any = self.own.max(axis=0) - _others(self.own, self.own.max(axis=0))
        """ns of each step that the last rank has to do beyond the others."""
        self._parts = [parts_of(rank.judged_steps[at]) for rank, at in pairs]
        last = self.own.argmax(axis=0)
        self.times_last: Any = np.bincount(last, minlength=len(ranks))
        slow = np.isin(steps, single)
        longer = self.longer[slow]
        if slow.any() and np.bincount(last[slow], weights=longer).max() >= COVERED * longer.sum():
            self.waits[slow] = self.longer[slow] = 0.0

    @property
    def cost(self) -> float:
        """Share of the steps for which ranks wait."""
        return float(self.waits.mean()) / float(self.took.mean())

    @property
    def last(self) -> int:
        """The index of the rank that is last most often."""
        return int(self.times_last.argmax())

    def part(self) -> str:
        """The part of a step of which the last rank has most more than the others in the same step."""
        last, steps, none = self.own.argmax(axis=0), np.arange(len(self.steps)), np.zeros(len(self.steps))
        more: dict[str, float] = {}
        for name in {name for parts in self._parts for name in parts} - {NAMES[Phase.COMMUNICATION], QUEUED}:
            times = np.array([parts.get(name, none) for parts in self._parts])
            its = times[last, steps]
            more[name] = float((its - _others(times, its)).mean())
        return max(more, key=lambda name: more[name])

    @property
    def is_one_rank(self) -> bool:
        """Whether it is the same rank in most steps."""
        return bool(self.times_last[self.last] >= RANK_LAST * len(self.steps))

    def number(self, index: int) -> int:
        """The rank's number; its index if it has none."""
        rank = self.ranks[index].rank
        return index if rank is None else rank


def compare_ranks(job: Job) -> RankComparison | None:
    """Compares the ranks that communicate; `None` if they do not wait for each other for long, or cannot be compared."""
    ranks = _in_step([rank for rank in job.ranks if len(rank.judged_steps) and rank.communication().any()])
    if len(ranks) < 2:
        return None
    numbers: list[set[int]] = [set(rank.judged_steps["step"].tolist()) for rank in ranks]
    common = sorted(numbers[0].intersection(*numbers[1:]))
    if len(common) < FEWEST_STEPS:
        return None
    found = RankComparison(ranks, common, job.main.judged_steps["step"][few_slow_steps(job)[1]])
    longer = float(found.longer.mean()) / float(found.took.mean())
    return found if found.cost >= RANK_WAIT and longer >= RANK_WAIT else None


def _in_step(ranks: list[RankSummary]) -> list[RankSummary]:
    """Returns the ranks that share steps with the median rank. One that has ended before, or counts otherwise, must not keep the others
    from being compared."""
    if not ranks:
        return []
    steps = sorted((rank.judged_steps["step"] for rank in ranks), key=lambda each: int(each[-1]))
    middle = steps[(len(steps) - 1) // 2]
    return [rank for rank in ranks if np.isin(middle, rank.judged_steps["step"]).sum() >= FEWEST_STEPS]


def _others(values: Any, extreme: Any) -> Any:
    """The mean of each step over the ranks but for the one with the extreme value."""
    return (values.sum(axis=0) - extreme) / (len(values) - 1)


def check_slow_rank(job: Job) -> list[Finding]:
    """Finds the rank that comes last in most steps, and the part of its steps that is longer than on the others."""
    compared = compare_ranks(job)
    if compared is None:
        return _without_collectives(job)
    if not compared.is_one_rank:
        return []
    ranks, worst, number = compared.ranks, compared.last, compared.number(compared.last)
    others = [index for index in range(len(ranks)) if index != worst]
    apart, step = compared.without_communication, compared.took.mean(axis=0)
    if np.median(apart[worst]) - np.median(apart[others]) < RANK_WAIT * np.median(step):
        return []  # the others mostly take about as long, as they wait for processors
    own = compared.own
    if queued(ranks[worst]) >= RUN_QUEUE and np.median(own[worst]) < CONTENDED_LONGER * np.median(own[others]):
        return []  # so does this one, and all that it does takes longer then
    faster = f"rank {ranks[others[0]].rank}" if len(others) == 1 else "the others"
    medians = [
        {name: float(np.median(column)) for name, column in parts_of(rank.judged_steps).items()} for rank in ranks
    ]
    mine = medians[worst]
    theirs = {name: float(np.median([medians[at].get(name, 0.0) for at in others])) for name in mine}
    more = {name: value - theirs[name] for name, value in mine.items() if name != "communication"}
    phase = max(more, key=lambda name: more[name])
    looked_at = f"what rank {number} does" if is_uncovered(phase) else f"{phase} of rank {number}"
    computes_longer = all(mine.get(name, 0.0) >= RANK_LONGER * theirs.get(name, np.inf) for name in COMPUTING)
    samples = ranks[worst].samples_in_steps()
    elsewhere = [sample for at in others for sample in ranks[at].samples_in_steps()]
    distinct = only_in(samples, elsewhere, RANK_DISTINCT)
    place = distinct or hottest(samples)
    hardly = "" if distinct is None else f", where {faster} hardly {'is' if len(others) == 1 else 'are'}"
    longest: list[int] = (-compared.waits).argsort(kind="stable")[:MOST_STEPS].tolist()
    return [
        Finding(
            id="slow-rank",
            title=f"Rank {number} holds {faster} up, for {human_time(float(compared.waits.mean()))} of each step.",
            cost=compared.cost,
            cost_ns=float(compared.waits.mean()),
            evidence=(
                f"it comes last to the collectives in {compared.times_last[worst]} of {len(compared.steps)} steps",
                f"without communication its step takes {human_time(float(np.median(apart[worst])))}, and "
                f"{human_time(float(np.median(apart[others])))} on {faster}; most of the difference is {phase}: "
                f"{human_time(mine[phase])} here, {human_time(theirs[phase])} there",
                *(() if place is None else (f"{place.share:.0%} of its stack samples are in {place}{hardly}",)),
            ),
            action=f"{EQUAL_WORK if computes_longer else ''}look at {looked_at} on host {ranks[worst].recorded.host}{'' if place is None else f': {place}'}",
            gain=f"without the wait a step takes about {human_time(float(np.median(step - compared.waits)))}",
            certainty="certain",
            ranks=(number,),
            steps=tuple(compared.steps[at] for at in longest),
            places=places(place),
        )
    ]


def _without_collectives(job: Job) -> list[Finding]:
    """Finds the rank whose steps take much longer than those of the others. Nothing shows whether these wait for it."""
    ranks = [rank for rank in job.ranks if len(rank.judged_steps) >= FEWEST_STEPS]
    if len(ranks) < 2 or any(rank.communication().any() for rank in ranks):
        return []
    medians = [float(np.median(durations(rank.judged_steps))) for rank in ranks]
    worst = int(np.argmax(medians))
    theirs = float(np.median(medians[:worst] + medians[worst + 1 :]))
    times = medians[worst] / max(theirs, 1)
    if times < RANK_LONGER:
        return []
    slow = ranks[worst]
    number = worst if slow.rank is None else slow.rank
    longer = medians[worst] - theirs
    samples = slow.samples_in_steps()
    elsewhere = [sample for rank in ranks if rank is not slow for sample in rank.samples_in_steps()]
    place = only_in(samples, elsewhere, RANK_DISTINCT) or hottest(samples)
    return [
        Finding(
            id="slow-rank",
            title=f"The steps of rank {number} take {times:.1f} times as long as those of the other ranks.",
            cost=longer / medians[worst],
            cost_ns=longer,
            evidence=(
                f"a step of rank {number} takes {human_time(medians[worst])} at the median, and {human_time(theirs)} on the others",
                "no collective was recorded, so it is not known whether the others wait for it",
                *(() if place is None else (f"{place.share:.0%} of its stack samples are in {place}",)),
            ),
            action=f"if all ranks should do the same work, look at rank {number} on host {slow.recorded.host}"
            f"{'' if place is None else f': {place}'}",
            gain=f"{human_time(longer)} of each of its steps",
            certainty="likely",
            ranks=(number,),
            places=places(place),
        )
    ]


def check_uneven_work(job: Job) -> list[Finding]:
    """Finds ranks that wait for each other, another one in each step."""
    compared = compare_ranks(job)
    if compared is None or compared.is_one_rank:
        return []
    waits, longer = float(compared.waits.mean()), float(compared.longer.mean())
    # Where processors are contended, ranks wait for others that have no more to do.
    if min(waits, longer) < UNEVEN_WORK * float(compared.took.mean()):
        return []
    wait, part = human_time(waits), compared.part()
    last = ", ".join(
        f"rank {compared.number(index)} in {count}" for index, count in enumerate(compared.times_last.tolist())
    )
    longest: list[int] = (-compared.waits).argsort(kind="stable")[:MOST_STEPS].tolist()
    return [
        Finding(
            id="uneven-work",
            title=f"Work is uneven: in each step the ranks wait {wait} for the slowest of them.",
            cost=compared.cost,
            cost_ns=float(compared.waits.mean()),
            evidence=(
                f"which rank comes last to the collectives changes: {last} of {len(compared.steps)} steps",
                f"the last rank has {human_time(longer)} more to do than the others in that step, most of it {part}; "
                "over all steps no rank is slower",
            ),
            action=EQUAL_DATA
            if part == NAMES[Phase.DATA]
            else "give all ranks equal work in each step: batches of equal total length, or samples bucketed by length",
            gain=f"up to {human_time(min(waits, longer))} of each step",
            certainty="likely",
            steps=tuple(compared.steps[at] for at in longest),
        )
    ]


def check_many_collectives(job: Job) -> list[Finding]:
    """Finds steps of many collectives, by what they take beyond waiting for other ranks while nothing else is done."""
    rank = job.main
    rows = [row for row in rank.rows if is_collective(row.name, row.category)]
    if max((row.count for row in rows), default=0) < MANY_COLLECTIVES * len(rank.facts):
        return []
    times = rank.collectives.answer(rank.judged_steps, fastest_in(job.ranks))
    if not times or times[0].calls < MANY_COLLECTIVES:
        return []
    first = times[0]
    waits = min(first.wait_ns or 0.0, first.ns)
    spent = min(first.ns, float(rank.communication().mean())) - waits
    cost = spent / float(durations(rank.judged_steps).mean())
    if cost < FINDING:
        return []
    begin, end = union(*np.array(intervals(rank.collectives.runs), np.int64).T)
    place = hottest(samples_in(rank.samples_in_steps(), np.stack((begin, end), axis=1)))
    waiting = "" if first.wait_ns is None else f"; waiting for other ranks takes {human_time(waits)} more"
    return [
        Finding(
            id="many-collectives",
            title=f"{first.calls:,.0f} collectives in each step take {cost:.0%} of it.",
            cost=cost,
            cost_ns=spent,
            evidence=(
                f"{first.name} takes {human_time(spent / first.calls)} each time, {human_time(spent)} of each step, in which nothing else is "
                f"done{waiting}",
                *samples_at(place, "taken then"),
            ),
            action="fewer and larger ones: DistributedDataParallel, which sends gradients in buckets, or one collective for many tensors that "
            "torch.cat joins",
            gain=f"up to {human_time(spent)} of each step",
            certainty="certain" if first.wait_ns is not None else "likely",
            steps=steps_with_most(rank.judged_steps, rank.communication()),
            places=places(place),
        )
    ]


OBJECTS = re.compile(r"(?:^|;)\w+_object(?:_list)? \([^;]*torch/distributed/distributed_c10d\.py:\d+\)")
"""torch's collectives of Python objects, such as `broadcast_object_list`."""


def check_object_collectives(job: Job) -> list[Finding]:
    """Finds collectives of Python objects that take long on each rank: one that is late waits for nobody in them."""
    found: list[tuple[float, RankSummary, list[Sample]]] = []
    for rank in job.ranks:
        samples = rank.samples_in_steps()
        inside = [sample for sample in samples if OBJECTS.search(sample.stack)]
        found.append((len(inside) / max(len(samples), 1), rank, inside))
    cost, rank, inside = min(found, key=lambda each: each[0])
    if cost < FINDING or len(inside) < FEWEST_SAMPLES:
        return []
    place = hottest(inside)
    return [
        Finding(
            id="object-collectives",
            title=f"Python objects are sent between ranks: {cost:.0%} of the time.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=(
                f"{cost:.0%} of the stack samples in steps are in collectives that pickle what they send",
                *samples_at(place, "in them"),
            ),
            action="send tensors (all_reduce, broadcast), or send objects only when they have changed",
            gain=f"up to {human_time(cost * rank.step_ns)} of each step",
            certainty="certain",
            places=places(place),
        )
    ]
