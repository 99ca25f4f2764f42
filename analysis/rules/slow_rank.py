"""A rank that the others wait for."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.evidence import MOST_STEPS, places
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.rank_comparison import compare_ranks
from stepscope.analysis.measures.sampled_stacks import only_in
from stepscope.analysis.tables.rank_summary import durations, hottest
from stepscope.analysis.thresholds import FEWEST_STEPS, RANK_DISTINCT, RANK_LONGER
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_parts import is_uncovered, parts_of


def check(job: Job) -> list[Finding]:
    """Finds the rank that comes last in most steps, and the part of its steps that is longer than on the others."""
    compared = compare_ranks(job)
    if compared is None:
        return _without_collectives(job)
    if not compared.is_one_rank:
        return []
    ranks, worst, number = compared.ranks, compared.last, compared.number(compared.last)
    others = [index for index in range(len(ranks)) if index != worst]
    faster = f"rank {ranks[others[0]].rank}" if len(others) == 1 else "the others"
    medians = [
        {name: float(np.median(column)) for name, column in parts_of(rank.judged_steps).items()} for rank in ranks
    ]
    mine = medians[worst]
    theirs = {name: float(np.median([medians[at].get(name, 0.0) for at in others])) for name in mine}
    more = {name: value - theirs[name] for name, value in mine.items() if name != "communication"}
    phase = max(more, key=lambda name: more[name])
    looked_at = f"what rank {number} does" if is_uncovered(phase) else f"{phase} of rank {number}"
    samples = ranks[worst].samples_in_steps()
    elsewhere = [sample for at in others for sample in ranks[at].samples_in_steps()]
    distinct = only_in(samples, elsewhere, RANK_DISTINCT)
    place = distinct or hottest(samples)
    hardly = "" if distinct is None else f", where {faster} hardly {'is' if len(others) == 1 else 'are'}"
    longest: list[int] = (-compared.waits).argsort(kind="stable")[:MOST_STEPS].tolist()
    own, step = compared.own, compared.took.mean(axis=0)
    return [
        Finding(
            id="slow-rank",
            title=f"Rank {number} holds {faster} up, for {human_time(float(compared.waits.mean()))} of each step.",
            cost=compared.cost,
            cost_ns=float(compared.waits.mean()),
            evidence=(
                f"it comes last to the collectives in {compared.times_last[worst]} of {len(compared.steps)} steps",
                f"without communication its step takes {human_time(float(np.median(own[worst])))}, and "
                f"{human_time(float(np.median(own[others])))} on {faster}; most of the difference is {phase}: "
                f"{human_time(mine[phase])} here, {human_time(theirs[phase])} there",
                *(() if place is None else (f"{place.share:.0%} of its stack samples are in {place}{hardly}",)),
            ),
            action=f"look at {looked_at} on host {ranks[worst].recorded.host}{'' if place is None else f': {place}'}",
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
