"""Memory that grows, garbage collections, and values that are not finite."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import EventReference, Finding
from stepscope.analysis.rules.evidence import (
    Job,
    intervals,
    longest,
    number_of,
    on_rank,
    places,
    samples_at,
    steps_with_most,
)
from stepscope.analysis.tables.rank_summary import RankSummary, durations, hottest, samples_in
from stepscope.analysis.thresholds import (
    COLLECTIONS_REQUESTED,
    FEWEST_STEPS,
    FINDING,
    GROWTH_BYTES,
    GROWTH_PER_100_STEPS,
    LATE_GROWTH,
    RECORDED_BYTES,
)
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.windows.step_facts import Phase


def check_memory_grows(job: Job) -> list[Finding]:
    """Finds resident memory that grows, by the median of its slopes over steps, so that single jumps count for nothing."""
    found: list[Finding] = []
    for rank in job.ranks:
        if rank.from_torchs_engine:
            continue  # which holds gradients, for example, that the program has freed
        memory = rank.judged_steps["resident_bytes"] if len(rank.judged_steps) else np.zeros(0)
        measured = np.flatnonzero(np.isfinite(memory))
        if len(measured) < FEWEST_STEPS:
            continue
        values = memory[measured]
        half = len(values) // 2
        slope = float(np.median((values[half : 2 * half] - values[:half]) / half))
        growth = slope * len(values)
        thirds = np.array_split(values, 3)
        monotonic = float(np.median(thirds[0])) < float(np.median(thirds[1])) < float(np.median(thirds[2]))
        quarters = [float(np.mean(part)) for part in np.array_split(values[half:], 4)]
        late = float(np.median(np.diff(np.array(quarters))))
        if slope <= RECORDED_BYTES * rank.events / max(len(rank.facts), 1):
            continue  # as much as recording may hold
        if not monotonic or growth < GROWTH_BYTES or slope * 100 < GROWTH_PER_100_STEPS * values[0] or late <= 0:
            continue
        # Memory that grows at first and then no more is a cache that fills.
        if float(thirds[2][-1] - thirds[2][0]) < LATE_GROWTH * float(values[-1] - values[0]):
            continue
        found.append(
            Finding(
                id="memory-grows",
                title=f"Memory grows by {slope / 1e6:,.2f} MB in each step: {growth / 1e6:,.0f} MB in {len(values)} steps.",
                evidence=(
                    f"resident memory rose from {values[0] / 1e6:,.0f} MB to {values[-1] / 1e6:,.0f} MB, and in every third of the run",
                ),
                action="find what the loop keeps: losses that are added up without .item() or .detach(), lists of outputs, caches without a limit",
                gain="the run does not end for lack of memory",
                certainty="certain",
                ranks=number_of(rank),
                steps=(int(rank.judged_steps["step"][measured[-1]]), int(rank.judged_steps["step"][measured[0]])),
            )
        )
    return found[:1]


def _collecting(rank: RankSummary) -> float:
    """Share of the time of all steps in which a rank collects garbage."""
    took = float(durations(rank.judged_steps).sum())
    return float(rank.phase(Phase.GARBAGE_COLLECTION).sum()) / took if took else 0.0


def check_garbage_collection(job: Job) -> list[Finding]:
    """Finds collections that take much time, by their sum: automatic ones come only every few steps.

    Of several ranks it checks the one that collects for longest, as the others wait for that.
    """
    rank = max(job.ranks, key=_collecting)
    cost = _collecting(rank)
    if cost < FINDING:
        return []
    spent, took = rank.phase(Phase.GARBAGE_COLLECTION), durations(rank.judged_steps)
    ranks = number_of(rank) if _collecting(job.main) < FINDING else ()
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
            title=f"Garbage collection takes {cost:.0%} of the time{on_rank(ranks)}.",
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
            ranks=ranks,
            steps=steps_with_most(rank.judged_steps, spent),
            events=longest(rank, inside, "garbage collection"),
            places=places(place),
        )
    ]


LEARNT_FROM = ("loss", "grad", "norm", "weight", "param")
"""Parts of names of counters without which nothing is learnt."""


def check_not_finite(job: Job) -> list[Finding]:
    """Finds counters that were given NaN or infinity."""
    found: list[Finding] = []
    for rank in job.ranks:
        for name, ts in rank.not_finite.items():
            index = int(np.searchsorted(rank.facts["begin"], ts, side="right")) - 1
            step = int(rank.facts["step"][max(index, 0)]) if len(rank.facts) else 0
            learnt_from = any(part in name.lower() for part in LEARNT_FROM)
            so = ": the training learns nothing" if learnt_from else ""
            found.append(
                Finding(
                    id="not-finite",
                    title=f"{name!r} is NaN or infinite from step {step} on{so}.",
                    evidence=(f"step {step} is the first with such a value",),
                    action="a lower learning rate, gradient clipping, or torch.autograd.set_detect_anomaly(True) around that step",
                    gain="the run is not in vain",
                    certainty="certain",
                    steps=(step,),
                    events=(EventReference(name, ts, 0, rank.rank),),
                )
            )
    return found[:1]
