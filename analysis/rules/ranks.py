"""Ranks that others wait for."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.job import Job, Rule
from stepscope.analysis.rank_summary import durations, hottest
from stepscope.analysis.thresholds import FEWEST_STEPS, RANK_LAST, RANK_WAIT, UNEVEN_WORK
from stepscope.runtime.step_parts import is_uncovered, parts_of
from stepscope.runtime.table import human_time


def check(job: Job) -> list[Finding]:
    """Compares the own work (all but communication) of the ranks in each step. The rank with most of it is the one that the others
    wait for. This compares no clocks."""
    ranks = [rank for rank in job.ranks if len(rank.judged_steps) and rank.communication().any()]
    if len(ranks) < 2:
        return []
    numbers: list[set[int]] = [set(rank.judged_steps["step"].tolist()) for rank in ranks]
    common = sorted(numbers[0].intersection(*numbers[1:]))
    if len(common) < FEWEST_STEPS:
        return []
    index = [np.searchsorted(rank.judged_steps["step"], common) for rank in ranks]
    communication = np.array([rank.communication()[at] for rank, at in zip(ranks, index, strict=True)])
    step = np.array([durations(rank.judged_steps)[at] for rank, at in zip(ranks, index, strict=True)])
    queued = np.array(
        [np.nan_to_num(rank.judged_steps["run_queue_ns"])[at] for rank, at in zip(ranks, index, strict=True)]
    )
    # Without what a rank waits for processors, which is no work of its own.
    own: Any = np.maximum(step - communication - queued, 0)
    last: Any = own.argmax(axis=0)
    # What the others wait, in the mean, beyond what the last one communicates.
    waits: Any = _others(communication, communication.min(axis=0)) - communication.min(axis=0)
    cost = float(waits.mean()) / float(np.mean(step))
    if cost < RANK_WAIT:
        return []
    beyond: Any = own.max(axis=0) - _others(own, own.max(axis=0))
    if float(beyond.mean()) < RANK_WAIT * float(np.mean(step)):
        return []
    counts: Any = np.bincount(last, minlength=len(ranks))
    worst = int(counts.argmax())
    known = ranks[worst].rank
    number = worst if known is None else known
    others = [index for index in range(len(ranks)) if index != worst]
    faster = "rank " + str(ranks[others[0]].rank) if len(others) == 1 else "the others"
    wait = human_time(float(waits.mean()))
    if counts[worst] >= RANK_LAST * len(common):
        medians = [
            {name: float(np.median(column)) for name, column in parts_of(rank.judged_steps).items()} for rank in ranks
        ]
        mine = medians[worst]
        theirs = {name: float(np.median([medians[at].get(name, 0.0) for at in others])) for name in mine}
        more = {name: value - theirs[name] for name, value in mine.items() if name != "communication"}
        phase = max(more, key=lambda name: more[name])
        looked_at = f"what rank {number} does" if is_uncovered(phase) else f"{phase} of rank {number}"
        place = hottest(ranks[worst].samples_in_steps())
        longest: list[int] = waits.argsort()[-3:].tolist()
        return [
            Finding(
                id="slow-rank",
                title=f"Rank {number} holds {faster} up, for {wait} of each step.",
                cost=cost,
                cost_ns=float(waits.mean()),
                evidence=(
                    f"it comes last to the collectives in {counts[worst]} of {len(common)} steps",
                    f"without communication its step takes {human_time(float(np.median(own[worst])))}, and "
                    f"{human_time(float(np.median(own[others])))} on {faster}; most of the difference is {phase}: "
                    f"{human_time(mine[phase])} here, {human_time(theirs[phase])} there",
                    *(() if place is None else (f"{place.share:.0%} of its stack samples are in {place}",)),
                ),
                action=f"look at {looked_at} on host {ranks[worst].recorded.host}{'' if place is None else f': {place}'}",
                gain=f"without the wait a step takes about {human_time(float(np.median(step.mean(axis=0) - waits)))}",
                certainty="certain",
                ranks=(number,),
                steps=tuple(common[at] for at in longest),
                places=() if place is None else (place,),
            )
        ]
    if cost < UNEVEN_WORK:
        return []
    more_ns = float(beyond.mean())
    return [
        Finding(
            id="uneven-work",
            title=f"Work is uneven: in each step the ranks wait {wait} for the slowest of them.",
            cost=cost,
            cost_ns=float(waits.mean()),
            evidence=(
                "which rank comes last to the collectives changes: "
                + ", ".join(
                    f"rank {rank.rank if rank.rank is not None else at} in {counts[at]}"
                    for at, rank in enumerate(ranks)
                )
                + f" of {len(common)} steps",
                f"the last rank has {human_time(more_ns)} more to do than the others in that step; over all steps no rank is slower",
            ),
            action="give all ranks equal work in each step: batches of equal total length, or samples bucketed by length",
            gain=f"up to {wait} of each step",
            certainty="likely",
        )
    ]


def _others(values: Any, extreme: Any) -> Any:
    """The mean of each step over the ranks but for the one with the extreme value."""
    return (values.sum(axis=0) - extreme) / (len(values) - 1)


RULES = (
    Rule(
        id="ranks",
        needs="two ranks or more of one job, with steps of the same numbers and their collectives",
        finds="a rank that the others wait for, and in which phase it is slower; or uneven work without a slow rank",
        wrong_if="the same ranks are fast with the collectives left out, or another rank is slow when hosts are swapped",
        check=check,
    ),
)
