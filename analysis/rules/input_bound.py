"""The training waits for data."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.findings import Finding, Place
from stepscope.analysis.measures.evidence import longest, places, steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.processors import children_run, demand, machine_use
from stepscope.analysis.measures.sampled_stacks import in_collate, in_loader
from stepscope.analysis.rules.data_pipeline import CHEAPER, is_other_loader, waits
from stepscope.analysis.tables.data_pipeline import all_busy
from stepscope.analysis.tables.rank_summary import RankSummary, durations, hottest
from stepscope.analysis.thresholds import (
    FEWEST_SAMPLES,
    FINDING,
    HANDOVER,
    HANDOVER_NS,
    MAJORITY,
    MOST_HANDOVER_NS,
    MOST_WORKERS,
    USUAL_STEPS,
)
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.windows.step_facts import Phase


def item_of(facts: dict[str, Any]) -> Place | None:
    """The function of a loader's data set that makes an item."""
    file, _, line = str(facts.get("place", "")).rpartition(":")
    name = str(facts.get("dataset", "")).removeprefix("__main__.")
    return Place(f"{name}.__getitem__", file, int(line)) if file and line.isdigit() else None


WITHOUT_WORKERS = "load larger batches, keep the data in memory as tensors, or load ahead in a thread"
"""Advice where a step is so short that handing a batch over takes as long as making it."""
_OF_WORKERS = "to hand a batch over, a worker and the training process take about 1ms"


def more_workers(batch_ns: float, rest: float, whole: float, job: Job) -> tuple[str, str]:
    """The change to try, and its gain: as many workers as keep up, or as have processors of their own; none if all are busy.

    Args:
        batch_ns: ns that one takes to make a batch.
        rest: ns of a step without waiting for data.
        whole: ns of a step.
    """
    if rest + HANDOVER_NS > (1 - FINDING) * whole:
        gain = f"possibly, up to {human_time(whole - rest)} of each step; workers would not help: {_OF_WORKERS}"
        return WITHOUT_WORKERS, gain
    if why := all_busy(machine_use(job.main)):
        return CHEAPER, f"up to {human_time(whole - rest)} of each step; {why}"
    needed = ceil(batch_ns / (rest + HANDOVER_NS))
    _, _, processors = demand(job)
    most = min(MOST_WORKERS, max(int(processors) - 1, 1) if processors else MOST_WORKERS)
    workers = min(needed, most)
    step = max(rest + HANDOVER_NS, batch_ns / workers)
    if step > (1 - FINDING) * whole:
        return CHEAPER, f"up to {human_time(whole - rest)} of each step"
    action = f"DataLoader(..., num_workers={workers})"
    gain = f"an average step would take about {human_time(step)}, {whole / step:.1f} times as fast, if the storage is quick enough"
    if workers < needed:
        few = f"there are {processors:g} processors" if workers < MOST_WORKERS else f"{MOST_WORKERS} workers are many"
        return (
            f"{CHEAPER}; and {action}",
            f"with {human_count(workers, 'worker')} {gain}; {few}, and {needed} would be needed to keep up",
        )
    return action, gain


def check(job: Job) -> list[Finding]:
    """Finds steps that spend much of their time in `DataLoader.__next__`.

    By sums, not by medians: several workers have a batch ready at once, and then none has. The longest steps do not count.
    """
    rank = job.main
    data, step = rank.phase(Phase.DATA), durations(rank.judged_steps)
    usual = step <= np.quantile(step, USUAL_STEPS)
    whole, cost = float(step[usual].mean()), float(data[usual].mean())
    share = cost / whole
    if share < FINDING or is_other_loader(rank):
        return []
    facts = rank.loaders[-1] if rank.loaders else {}
    workers = facts.get("workers")
    samples = [sample for sample in rank.samples_in_steps() if in_loader(sample)]
    place = item_of(facts) if workers else hottest(samples) if len(samples) >= FEWEST_SAMPLES else None
    rest = whole - cost
    fetch = [row for row in rank.rows if row.name == "fetch" and row.category == "loader"]
    batch_ns = cost if not workers else fetch[0].p50 if fetch else workers * whole
    queued = float(np.nan_to_num(rank.judged_steps["run_queue_ns"]).sum() / step.sum())
    if workers and share >= HANDOVER and cost <= MOST_HANDOVER_NS and batch_ns / workers < MAJORITY * whole:
        return [_handed_over(rank, data, cost, whole, batch_ns)]
    if workers and batch_ns * children_run(job) <= workers * rest * (1 - queued):
        return []  # with processors of their own the workers would keep up: that they have none is another finding
    # Live, the names of spans are not known.
    name = "DataLoader.__next__" if facts or waits(rank) is not None else "waiting for data"
    evidence = [
        f"{name} takes {human_time(cost)} of {human_time(whole)} in an average step, and more than {FINDING:.0%} in "
        f"{int((data > FINDING * step).sum())} of {len(step)} steps"
    ]
    if workers:
        kind = "input-bound-workers"
        ready = (
            f": at the median {np.median(rank.queue):.0f} batches are ready when one is fetched" if rank.queue else ""
        )
        evidence[0] += f"; {human_count(workers, 'worker')} cannot keep up{ready}"
        where = "" if place is None else f" in {place}"
        evidence.append(f"a worker takes {human_time(batch_ns)} to make a batch{where}")
    else:
        kind = "input-bound-in-process"
        if workers == 0:
            evidence[0] += "; it works in the training process (num_workers=0)"
        if place is not None:
            evidence.append(f"{place.share:.0%} of that is in {place}")
    action, gain = more_workers(batch_ns, rest, whole, job)
    collating = sum(in_collate(sample, facts) for sample in samples)
    if not workers and place is not None and collating > MAJORITY * len(samples):
        kind = "slow-collate"
        evidence.append(f"collate_fn takes {collating / len(samples):.0%} of that")
        instead = f"let workers run it: {action}" if "num_workers" in action else action
        action = f"make {place.function} cheaper, or {instead}"
    return [
        Finding(
            id=kind,
            title=f"Input-bound: the training waits for data {share:.0%} of each step.",
            cost=share,
            cost_ns=cost,
            evidence=tuple(evidence),
            action=action,
            gain=gain,
            certainty="certain" if workers is not None and not gain.startswith("possibly") else "likely",
            steps=steps_with_most(rank.judged_steps, data),
            events=longest(rank, rank.fetches, "fetch"),
            places=places(place),
        )
    ]


def _handed_over(rank: RankSummary, data: NDArray[np.int64], cost: float, whole: float, batch_ns: float) -> Finding:
    """The finding where workers make batches quicker than the training takes them over."""
    alone = whole - cost + batch_ns
    action, gain = "larger batches", f"up to {human_time(cost)} of each step"
    if alone <= (1 - FINDING) * whole:
        action = "DataLoader(..., num_workers=0), or larger batches"
        gain = (
            f"without workers an average step would take about {human_time(alone)}, {whole / alone:.1f} times as fast"
        )
    return Finding(
        id="input-bound-handover",
        title=f"Taking batches over from the loader's workers takes {cost / whole:.0%} of each step.",
        cost=cost / whole,
        cost_ns=cost,
        evidence=(
            f"DataLoader.__next__ takes {human_time(cost)} of {human_time(whole)} in an average step, though a worker makes a batch in "
            f"{human_time(batch_ns)}; {_OF_WORKERS}",
        ),
        action=action,
        gain=gain,
        certainty="likely",
        steps=steps_with_most(rank.judged_steps, data),
        events=longest(rank, rank.fetches, "fetch"),
    )
