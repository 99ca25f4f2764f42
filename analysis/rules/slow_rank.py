"""A rank that the others wait for."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.evidence import MOST_STEPS, places
from stepscope.analysis.findings import Finding
from stepscope.analysis.job import Job, Rule
from stepscope.analysis.rank_comparison import compare_ranks
from stepscope.analysis.rank_summary import hottest
from stepscope.analysis.sampled_stacks import only_in
from stepscope.analysis.thresholds import RANK_DISTINCT, RANK_LAST, RANK_WAIT
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_parts import is_uncovered, parts_of


def check(job: Job) -> list[Finding]:
    """Finds the rank that comes last in most steps, and the part of its steps that is longer than on the others."""
    compared = compare_ranks(job)
    if compared is None or not compared.is_one_rank:
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


RULE = Rule(
    id="slow-rank",
    needs="two ranks or more of one job, with steps of the same numbers and their collectives",
    finds="a rank that the others wait for, and in which phase it is slower",
    threshold=f"the others wait {RANK_WAIT:.0%} of the step, and it is the last in {RANK_LAST:.0%} of the steps",
    wrong_if="the same rank is fast with the collectives left out, or another rank is slow when hosts are swapped",
    check=check,
)
