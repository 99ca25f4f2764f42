"""Garbage collections of the interpreter."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.evidence import intervals, longest, places, samples_at, steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.tables.rank_summary import durations, hottest, samples_in
from stepscope.analysis.thresholds import COLLECTIONS_REQUESTED, FINDING
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.windows.step_facts import Phase


def check(job: Job) -> list[Finding]:
    """Finds collections that take much time, by their sum: automatic ones come only every few steps."""
    rank = job.main
    spent, took = rank.phase(Phase.GARBAGE_COLLECTION), durations(rank.judged_steps)
    cost = float(spent.sum()) / float(took.sum())
    if cost < FINDING:
        return []
    begin, end = int(rank.judged_steps["begin"][0]), int(rank.judged_steps["end"][-1])
    inside = [each for each in rank.collections if begin <= each.ts < end]
    full = [each for each in inside if each.generation == 2]
    # Python itself collects the oldest generation after ten collections of the one before (gc.get_threshold), or more.
    requested = len(full) > 1 and sum(each.generation == 1 for each in inside) < COLLECTIONS_REQUESTED * len(full)
    place = hottest(samples_in(rank.samples_in_steps(), intervals(full))) if full else None
    each = human_time(float(np.median([one.dur for one in full or inside]))) if inside else ""
    return [
        Finding(
            id="garbage-collection",
            title=f"Garbage collection takes {cost:.0%} of the time.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=(
                f"{human_count(len(full), 'full collection')} in {len(took)} steps, {each} each at the median; "
                f"{int((spent > 0).sum())} steps had a collection",
                *samples_at(place, "taken then"),
            ),
            action=f"leave out gc.collect() in {'the loop' if place is None else place.function}"
            if requested
            else "gc.freeze() and gc.disable() before the loop, and gc.collect() now and then in it; or keep fewer objects",
            gain=f"up to {cost:.0%} of the run",
            certainty="certain",
            steps=steps_with_most(rank.judged_steps, spent),
            events=longest(rank, inside, "garbage collection"),
            places=places(place),
        )
    ]
