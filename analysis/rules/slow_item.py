"""Single items of a data set that take a worker long."""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepscope.analysis.findings import EventReference, Finding, Place
from stepscope.analysis.measures.evidence import places, steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.processors import children_run
from stepscope.analysis.rules.input_bound import item_of
from stepscope.analysis.tables.rank_summary import durations
from stepscope.analysis.thresholds import FEWEST_SLOW_ITEMS, FEWEST_STEPS, FINDING, MAJORITY, SLOW_ITEM, SLOW_ITEM_NS
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Phase

MOST_NAMED = 3
"""Items that are named."""


def check(job: Job) -> list[Finding]:
    """Finds items that take their worker several times as long as others, while the training waits for the batches that they are
    in: batches come in order, so it waits for a late one even if others are ready."""
    rank = job.main
    fetches = [fetch for fetch in rank.fetches if fetch.items > 1]
    step = durations(rank.judged_steps)
    data = rank.phase(Phase.DATA)
    cost = float(data.sum()) / float(step.sum())
    if len(fetches) < FEWEST_STEPS or cost < FINDING:
        return []
    slowest = np.array([fetch.slowest_ns for fetch in fetches], np.float64)
    took = np.array([fetch.dur for fetch in fetches], np.float64)
    usual = float(np.median((took - slowest) / [fetch.items - 1 for fetch in fetches]))
    slow = np.flatnonzero(
        (slowest > SLOW_ITEM * usual) & (slowest > usual + SLOW_ITEM_NS) & (slowest > MAJORITY * took)
    )
    if len(slow) < FEWEST_SLOW_ITEMS:
        return []
    extra = float((slowest[slow] - usual).sum())
    if extra < MAJORITY * float(data.sum()):
        return []
    workers = int(rank.loaders[-1].get("workers") or 1) if rank.loaders else 1
    rest = float(step.mean()) * (1 - cost)
    without = (float(took.sum()) - extra) / len(took) * children_run(job)
    if without > workers * rest:
        return []  # without them the workers would be too slow as well
    named = Counter[str]()
    for at in slow.tolist():
        named[fetches[at].index] = max(named[fetches[at].index], fetches[at].slowest_ns)
    place: Place | None = item_of(rank.loaders[-1]) if rank.loaders else None
    items = ", ".join(f"item {index} {human_time(ns)}" for index, ns in named.most_common(MOST_NAMED))
    longest: list[int] = slow[np.argsort(-slowest[slow], kind="stable")][:MOST_NAMED].tolist()
    return [
        Finding(
            id="slow-item",
            title=f"Single items of the data set are slow: the training waits for data {cost:.0%} of the time.",
            cost=cost,
            cost_ns=float(data.mean()),
            evidence=(
                f"in {len(slow)} of {len(fetches)} batches one item takes more than half of the time, and {SLOW_ITEM:g} times the usual "
                f"{human_time(usual)} or more: {items}",
                *(() if place is None else (f"{place} makes them",)),
                f"without that a worker would take {human_time(without)} for a batch, and the training would not wait",
            ),
            action="look at these items: larger than others, or read from elsewhere; make them cheaper or prepare them once, "
            "and give the loader a larger prefetch_factor, so that other batches are ready meanwhile",
            gain=f"up to {human_time(float(data.mean()))} of each step",
            certainty="certain",
            steps=steps_with_most(rank.judged_steps, data),
            events=tuple(EventReference("fetch", fetches[at].ts, fetches[at].dur, rank.rank) for at in longest),
            places=places(place),
        )
    ]
