"""Single steps that are slow, with a period or without."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.findings import Finding, Place
from stepscope.analysis.job import Job, Rule
from stepscope.analysis.rank_summary import Sample, durations, program_functions
from stepscope.analysis.thresholds import (
    COVERED,
    DISTINCT,
    FEWEST_SAMPLES,
    PERIODIC,
    RUN_QUEUE,
    SLOW_STEP,
    SLOW_STEP_NS,
    SLOW_STEPS_COST,
)
from stepscope.runtime.step_parts import is_uncovered, parts_of
from stepscope.runtime.table import human_count, human_time

MOST_COMPARED = 64
"""Slow steps whose distances are compared, and distances that are tried as a period."""


def check(job: Job) -> list[Finding]:
    """Finds steps that take several times the median, if they are few, cost much, and it is known what differs in them."""
    rank, steps = job.main, job.main.judged_steps
    took = durations(steps) - waited_for_processors(job)
    median = float(np.median(took))
    slow = np.flatnonzero((took > SLOW_STEP * median) & (took > median + SLOW_STEP_NS))
    excess = float((took[slow] - median).sum())
    cost = excess / float(took.sum())
    if not len(slow) or len(slow) > 0.3 * len(took) or cost < SLOW_STEPS_COST:
        return []
    numbers = steps["step"][slow].tolist()
    more = {name: float((column[slow] - np.median(column)).sum()) for name, column in parts_of(steps).items()}
    cause = max(more, key=lambda name: more[name])
    usual = np.flatnonzero(took <= SLOW_STEP * median)
    place = only_in(rank.samples_in_steps(steps[slow]), rank.samples_in_steps(steps[usual]))
    period = period_of(slow, took[slow] - median, len(took))
    if place is not None:
        where = f"{place.share:.0%} of their stack samples are in {place}, where other steps hardly are"
    elif more[cause] >= COVERED * excess and not is_uncovered(cause) and not contended(job):
        where = f"{min(more[cause] / excess, 1):.0%} of the extra time is {cause}"
    elif period:
        where = f"the largest part of the extra time, {min(more[cause] / excess, 1):.0%}, is {cause}"
    else:
        return []
    each = human_time(excess / len(slow))
    evidence = [
        f"steps {', '.join(map(str, numbers[:5]))}{'...' if len(numbers) > 5 else ''}: each takes {each} longer than the median of {human_time(median)}",
        where,
    ]
    written = steps["written_bytes"][slow]
    if np.isfinite(written).any() and float(np.nanmedian(written)) > 1 << 20:
        evidence.append(f"each of them writes {float(np.nanmedian(written)) / 1e6:,.0f} MB")
    if period:
        title = f"Every {period} steps one takes {each} longer: {cost:.0%} of the time."
        kind, action = "periodic-stall", "do it less often, or on another thread or process while training goes on"
    else:
        title = f"{human_count(len(slow), 'slow step')} cost {cost:.0%} of the time: {each} each."
        kind, action = "slow-steps", "move what these steps do out of the loop, or do it less often"
    return [
        Finding(
            id=kind,
            title=title,
            cost=cost,
            cost_ns=excess / len(took),
            evidence=tuple(evidence),
            action=action if place is None else f"{place.function}: {action}",
            gain=f"up to {cost:.0%} of the run",
            certainty="certain" if place is not None else "likely",
            steps=tuple(numbers[:8]),
            places=() if place is None else (place,),
        )
    ]


def waited_for_processors(job: Job) -> NDArray[np.float64]:
    """How many ns longer than usual each step waited for a processor, on the main rank or on one that this may have waited for."""
    numbers = job.main.judged_steps["step"].tolist()
    most = np.zeros(len(numbers))
    for steps in (rank.judged_steps for rank in job.ranks if len(rank.judged_steps)):
        waits = np.nan_to_num(steps["run_queue_ns"])
        longer = dict(zip(steps["step"].tolist(), np.maximum(waits - np.median(waits), 0).tolist(), strict=True))
        most = np.maximum(most, [longer.get(number, 0.0) for number in numbers])
    return most


def contended(job: Job) -> bool:
    """Whether the threads that step wait for processors. Other threads may wait then, too, but that is not recorded by step."""
    shares = [
        float(np.nan_to_num(rank.judged_steps["run_queue_ns"]).sum() / durations(rank.judged_steps).sum())
        for rank in job.ranks
        if len(rank.judged_steps)
    ]
    return max(shares, default=0.0) >= RUN_QUEUE / 2


def only_in(slow: list[Sample], usual: list[Sample]) -> Place | None:
    """The innermost function of the program in which most samples of slow steps are, and few samples of other steps."""
    if len(slow) < FEWEST_SAMPLES:
        return None
    stacks = [program_functions(sample.stack) for sample in slow]
    here = Counter(function for stack in stacks for function in stack)
    there = Counter(function for sample in usual for function in program_functions(sample.stack))
    best, most = None, 0.0
    for function, count in here.items():  # outer ones first
        share = count / len(slow)
        distance = share - there[function] / max(len(usual), 1)
        if distance >= DISTINCT and distance >= most - 0.05:
            best, most = function, max(distance, most)
    if best is None:
        return None
    line, _ = Counter(stack[best] for stack in stacks if best in stack).most_common(1)[0]
    return Place(*best, line, here[best] / len(slow))


def period_of(slow: np.ndarray, excess: np.ndarray, count: int) -> int:
    """The period of slow steps, or 0: most steps at that distance must be slow, and have most of the extra time.

    Args:
        slow: positions of slow steps.
        excess: the extra time of each.
        count: how many steps there are in all.
    """
    longest = np.sort(slow[np.argsort(excess)[-MOST_COMPARED:]])
    distances: Counter[int] = Counter(np.subtract.outer(longest, longest)[np.tril_indices(len(longest), -1)].tolist())
    best, most = 0, 0.0
    for period in sorted(period for period, _ in distances.most_common(MOST_COMPARED) if period >= 2):
        hits = np.bincount(slow % period, minlength=period)
        covered = np.bincount(slow % period, weights=excess, minlength=period) / excess.sum()
        phase = int(covered.argmax())
        foretold = len(range(phase, count, period))
        if hits[phase] >= 3 and hits[phase] >= 0.8 * foretold and covered[phase] > most + 0.01:
            best, most = period, float(covered[phase])
    return best if most >= PERIODIC else 0


RULES = (
    Rule(
        id="slow-steps",
        needs="steps; stack samples say where",
        finds="stalls with a period, such as checkpoints, and single slow steps",
        wrong_if="the steps are as slow with what they do beside training left out",
        check=check,
    ),
)
