"""Single steps that are slow, with a period or without."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.job import Job, Rule
from stepscope.analysis.rank_summary import durations, hottest
from stepscope.analysis.statistics import UNCOVERED, parts
from stepscope.analysis.thresholds import PERIODIC, SAMPLES, SLOW_STEP, SLOW_STEPS_COST
from stepscope.runtime.table import human_time


def look(job: Job) -> list[Finding]:
    """Steps of several times the median, if few of them cost much of all time."""
    rank = job.main
    took = durations(rank.steady)
    if len(took) < 8:
        return []
    median = float(np.median(took))
    slow = np.flatnonzero(took > SLOW_STEP * median)
    excess = float((took[slow] - median).sum())
    cost = excess / float(took.sum())
    if not len(slow) or len(slow) > 0.3 * len(took) or cost < SLOW_STEPS_COST:
        return []
    numbers = rank.steady["step"][slow].tolist()
    more = {name: float((column[slow] - np.median(column)).sum()) for name, column in parts(rank).items()}
    cause = max(more, key=lambda name: more[name])
    samples = rank.samples_within(rank.steady[slow])
    place = hottest(samples) if samples else None
    period = period_of(slow, took[slow] - median, len(took))
    if cause == UNCOVERED and place is not None:
        where = f"{place.share:.0%} of the samples there are in {place}"
    else:
        where = f"{more[cause] / excess:.0%} of the excess is {cause}" if excess else ""
    each = human_time(excess / len(slow))
    evidence = [
        f"steps {', '.join(map(str, numbers[:5]))}{'...' if len(numbers) > 5 else ''}: {each} longer than the median of {human_time(median)}",
        where,
    ]
    written = rank.steady["written_bytes"][slow]
    if np.isfinite(written).any() and float(np.nanmedian(written)) > 1 << 20:
        evidence.append(f"{float(np.nanmedian(written)) / 1e6:,.0f} MB are written in each of them")
    if period:
        title = f"A stall every {period} steps: {each} each time, {cost:.0%} of all time."
        kind, action = "periodic-stall", "do it more rarely, or on another thread or process while training goes on"
    else:
        title = f"{len(slow)} slow steps cost {cost:.0%} of all time: {each} each."
        kind, action = "slow-steps", "move what these steps do out of the loop, or do it more rarely"
    return [
        Finding(
            id=kind,
            title=title,
            cost=cost,
            cost_ns=excess / len(took),
            evidence=tuple(filter(None, evidence)),
            action=action if place is None else f"{action}: {place}",
            gain=f"up to {cost:.0%} of the run",
            certainty="certain" if place is not None and len(samples) >= SAMPLES else "likely",
            steps=tuple(numbers[:8]),
            places=() if place is None else (place,),
        )
    ]


def period_of(slow: np.ndarray, excess: np.ndarray, count: int) -> int:
    """The period of slow steps: their distance, if most that it foretells are slow and these have most of the excess; else 0.

    Args:
        slow: positions of slow steps.
        excess: what each takes too long.
        count: of all steps.
    """
    best, most = 0, 0.0
    for period in sorted(set(np.subtract.outer(slow, slow)[np.tril_indices(len(slow), -1)].tolist())):
        if period < 2:
            continue
        for phase in {int(each) % period for each in slow}:
            hit = slow % period == phase
            foretold = len(range(phase, count, period))
            covers = float(excess[hit].sum() / excess.sum())
            if hit.sum() >= 3 and hit.sum() >= 0.8 * foretold and covers > most + 0.01:
                best, most = period, covers
    return best if most >= PERIODIC else 0


RULES = (
    Rule(
        id="slow-steps",
        needs="steps; stack samples say where",
        finds="stalls with a period, such as checkpoints, and single slow steps",
        wrong_if="the steps are as slow with what they do beside training left out",
        look=look,
    ),
)
