"""Training that waits for data: of torch's DataLoader, of other loaders, or of single slow items."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.findings import EventReference, Finding, Place
from stepscope.analysis.rules.evidence import Job, have_one_of, in_collate, in_loader, longest, places, steps_with_most
from stepscope.analysis.rules.processors import children_run, children_wait, demand, machine_use
from stepscope.analysis.rules.ranks import compare_ranks
from stepscope.analysis.tables.data_pipeline import MINDSPORE, TORCH, TORCH_WAITS, advice_on, all_busy, bottleneck_of
from stepscope.analysis.tables.rank_summary import RankSummary, Row, Sample, durations, hottest
from stepscope.analysis.thresholds import (
    BUSIER,
    FEWEST_SAMPLES,
    FEWEST_SLOW_ITEMS,
    FEWEST_STEPS,
    FINDING,
    HANDOVER,
    HANDOVER_NS,
    MAJORITY,
    MOST_HANDOVER_NS,
    MOST_WORKERS,
    SLOW_ITEM,
    SLOW_ITEM_NS,
    USUAL_STEPS,
)
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.windows.step_facts import Phase, class_of
from stepscope.runtime.windows.step_parts import NAMES

CHEAPER = "make items cheaper, or prepare them once before the training"
"""Advice where more workers do not help."""
AHEAD = "make items cheaper, prepare them once before the training, or load ahead in workers"
MORE_WORKERS = "raise num_workers of the DataLoader while processors are free"
"""Advice where it is not known how many processors there are, as of a job that is judged by facts of its steps alone."""
RECORD = "its operators were not recorded: Profiler(data_process=True) before the data set is iterated"


def waits(rank: RankSummary) -> Row | None:
    """The spans with most of the waiting for data; `None` without any."""
    rows = [row for row in rank.rows if class_of(row.name, row.category) == Phase.DATA]
    return max(rows, key=lambda row: row.total, default=None)


def is_other_loader(rank: RankSummary) -> bool:
    """Whether the data come from another loader than torch's DataLoader."""
    most = waits(rank)
    of_torch = sum(row.total for row in rank.row(TORCH_WAITS))
    return most is not None and of_torch < MAJORITY * most.total and not rank.loaders


def _waited(rank: RankSummary) -> tuple[NDArray[np.int64], NDArray[np.int64], float, float]:
    """ns of waiting for data and of each step, and of both the means over the usual steps, the whole first."""
    data, step = rank.phase(Phase.DATA), durations(rank.judged_steps)
    usual = step <= np.quantile(step, USUAL_STEPS)
    return data, step, float(step[usual].mean()), float(data[usual].mean())


def _takes(name: str, data: NDArray[np.int64], step: NDArray[np.int64], whole: float, cost: float) -> str:
    """The first sentence of evidence."""
    often = int((data > FINDING * step).sum())
    return (
        f"{name} takes {human_time(cost)} of {human_time(whole)} in an average step, and more than {FINDING:.0%} in {often} of "
        f"{len(step)} steps"
    )


def check_data_pipeline(job: Job) -> list[Finding]:
    """Finds steps that wait for the next batch, and the operator of the pipeline that is too slow. The longest steps do not count."""
    rank = job.main
    most = waits(rank)
    if most is None or not is_other_loader(rank):
        return []
    data, step, whole, cost = _waited(rank)
    share = cost / whole
    if share < FINDING:
        return []
    evidence = [_takes(most.name, data, step, whole, cost)]
    busy = all_busy(machine_use(rank))
    action, gain = CHEAPER if busy else AHEAD, f"up to {human_time(cost)} of each step{f'; {busy}' if busy else ''}"
    certainty = "likely"
    pipeline = next((each for each in rank.pipelines if each.source == MINDSPORE), None)
    if pipeline is not None:
        advice = advice_on(pipeline, machine_use(rank))
        bottleneck = bottleneck_of(advice)
        if bottleneck is not None:
            action, gain, certainty = bottleneck.action, f"up to {human_time(cost)} of each step", "certain"
            evidence.append(bottleneck.text)
            evidence += [each.text for each in advice if each.kind == "idle"]
    elif most.name.endswith("Iterator.__next__"):
        evidence.append(RECORD)
    return [
        Finding(
            id="input-bound-pipeline",
            title=f"Input-bound: the training waits for data {share:.0%} of each step.",
            cost=share,
            cost_ns=cost,
            evidence=tuple(evidence),
            action=action,
            gain=gain,
            certainty=certainty,
            steps=steps_with_most(rank.judged_steps, data),
        )
    ]


def item_of(facts: dict[str, Any]) -> Place | None:
    """The function of a loader's data set that makes an item."""
    file, _, line = str(facts.get("place", "")).rpartition(":")
    name = str(facts.get("dataset", "")).removeprefix("__main__.")
    return Place(f"{name}.__getitem__", file, int(line)) if file and line.isdigit() else None


WITHOUT_WORKERS = "make a whole batch at once, by Dataset.__getitems__ or slices of tensors, or load ahead in a thread"
"""Advice where a step is so short that handing a batch over takes as long as making it."""
_OF_WORKERS = "to hand a batch over, a worker and the training process take about 1ms"


def more_workers(batch_ns: float, rest: float, whole: float, job: Job, computing: float = 1.0) -> tuple[str, str]:
    """The change to try, and its gain: as many workers as keep up, or as have processors of their own; none if all are busy, and no
    number if it is not known how many processors there are.

    Args:
        batch_ns: ns that one takes to make a batch.
        rest: ns of a step without waiting for data.
        whole: ns of a step.
        computing: share of the time in which making a batch needs a processor, and does not wait for a disk or a network.
    """
    if rest + HANDOVER_NS > (1 - FINDING) * whole:
        gain = f"possibly, up to {human_time(whole - rest)} of each step; workers would not help: {_OF_WORKERS}"
        return WITHOUT_WORKERS, gain
    if computing > MAJORITY and (why := all_busy(machine_use(job.main))):
        return CHEAPER, f"up to {human_time(whole - rest)} of each step; {why}"
    needed = ceil(batch_ns / (rest + HANDOVER_NS))
    _, _, processors = demand(job)
    most = min(MOST_WORKERS, int(max(int(processors) - 1, 1) / computing) if processors else MOST_WORKERS)
    workers = min(needed, most)
    step = max(rest + HANDOVER_NS, batch_ns / workers)
    if step > (1 - FINDING) * whole:
        return CHEAPER, f"up to {human_time(whole - rest)} of each step"
    action = f"DataLoader(..., num_workers={workers})"
    gain = f"an average step would take about {human_time(step)}, {whole / step:.1f} times as fast, if the storage is quick enough"
    if not processors:
        action = MORE_WORKERS
        gain = f"{gain} and there are processors for {human_count(workers, 'worker')}"
    if workers < needed:
        few = f"there are {processors:g} processors" if workers < MOST_WORKERS else f"{MOST_WORKERS} workers are many"
        return (
            f"{CHEAPER}; and {action}",
            f"with {human_count(workers, 'worker')} {gain}; {few}, and {needed} would be needed to keep up",
        )
    return action, gain


def _computing(job: Job, samples: list[Sample]) -> float:
    """The share of the time in which making a batch needs a processor: of workers by their processor time, or else by samples of a
    loader in the training process; 1 if that is not known."""
    rank = job.main
    made = [each for pipeline in rank.pipelines if pipeline.source == TORCH for each in pipeline.operators if each.busy]
    share = 1.0
    if made and made[-1].used_per_worker is not None:
        share = made[-1].used_per_worker / (made[-1].busy or 100) / children_run(job)
    elif not made and len(samples) >= FEWEST_SAMPLES:
        share = sum(sample.state not in {"S", "D"} for sample in samples) / len(samples)
    return min(max(share, 1 / MOST_WORKERS), 1.0)


def _uncontended(rank: RankSummary, rest: float, whole: float) -> float:
    """ns of a step without waiting for data, and without what the thread waits for a processor in it; at least its part that runs.

    Args:
        rest: the same with that.
        whole: ns of a step.
    """
    ran, queued = (float(np.nan_to_num(rank.judged_steps[name]).sum()) for name in ("cpu_ns", "run_queue_ns"))
    took = float(durations(rank.judged_steps).sum())
    return max(rest - whole * queued / took, rest * ran / (ran + queued)) if queued else rest


def check_input_bound(job: Job) -> list[Finding]:
    """Finds steps that spend much of their time in `DataLoader.__next__`.

    By sums, not by medians: several workers have a batch ready at once, and then none has. The longest steps do not count.
    """
    rank = job.main
    data, step, whole, cost = _waited(rank)
    share = cost / whole
    if share < FINDING or is_other_loader(rank):
        return []
    facts = rank.loaders[-1] if rank.loaders else {}
    workers = facts.get("workers")
    begun = int(have_one_of(rank.judged_steps, rank.loader_starts).sum())
    if begun >= MAJORITY * len(step):
        return [_begun_anew(rank, data, share, cost, begun, facts)]
    samples = [sample for sample in rank.samples_in_steps() if in_loader(sample)]
    place = item_of(facts) if workers else hottest(samples) if len(samples) >= FEWEST_SAMPLES else None
    compared = compare_ranks(job)
    # In a part of the rest it may wait for other ranks, which wait for data in their turn.
    for_others = float(compared.longer.mean()) if compared and compared.part() == NAMES[Phase.DATA] else 0.0
    rest = max(whole - cost - for_others, 0.0)
    fetch = [row for row in rank.rows if row.name == "fetch" and row.category == "loader"]
    batch_ns = cost if not workers else fetch[0].p50 if fetch else workers * whole
    if workers and share >= HANDOVER and cost <= MOST_HANDOVER_NS and batch_ns / workers < MAJORITY * whole:
        return [_handed_over(rank, data, cost, whole, batch_ns)]
    if workers and batch_ns * children_run(job) <= workers * _uncontended(rank, rest, whole):
        return []  # with processors of their own the workers would keep up: that they have none is another finding
    # Live, the names of spans are not known.
    name = "DataLoader.__next__" if facts or waits(rank) is not None else "waiting for data"
    evidence = [_takes(name, data, step, whole, cost)]
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
    computing = _computing(job, [] if workers else samples)
    if computing < MAJORITY:
        evidence.append(
            f"{1 - computing:.0%} of the time to make it is waiting, as for a disk or a network, and needs no processor"
        )
    action, gain = more_workers(batch_ns, rest, whole, job, computing)
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


def _begun_anew(
    rank: RankSummary, data: NDArray[np.int64], share: float, cost: float, count: int, facts: dict[str, Any]
) -> Finding:
    """The finding where the program takes one batch and then begins to iterate anew."""
    workers = facts.get("workers")
    whole = facts.get("batches") == 1
    action = "batches = iter(loader) once, before the loop, and next(batches) in it, or for batch in loader; not next(iter(loader))"
    if whole and workers and not facts.get("persistent"):
        action = "DataLoader(..., persistent_workers=True), or num_workers=0: the whole data set is one batch"
    elif whole:
        action = "make the batch once, before the loop, if its items do not change: it is the whole data set"
    samples = [sample for sample in rank.samples_in_steps() if in_loader(sample)]
    place = hottest(samples) if len(samples) >= FEWEST_SAMPLES else None
    return Finding(
        id="input-bound-iterator",
        title=f"The iterator of a DataLoader is made anew in most steps: the training waits for data {share:.0%} of each step.",
        cost=share,
        cost_ns=cost,
        evidence=(
            f"in {count} of {len(data)} steps the program begins to iterate over a DataLoader, which "
            + (
                f"starts {human_count(workers, 'worker')} each time"
                if workers and not facts.get("persistent")
                else "draws a new order of the whole data set each time if it shuffles"
            ),
            *(() if place is None else (f"{place.share:.0%} of the stack samples in it are in {place}",)),
        ),
        action=action,
        gain=f"most of {human_time(cost)} of each step",
        certainty="certain",
        steps=steps_with_most(rank.judged_steps, data),
        places=places(place),
    )


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


MOST_NAMED = 3
"""Items that are named."""


def check_slow_item(job: Job) -> list[Finding]:
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
    # An item that computes no longer than others is slow, too, if its worker waits for a processor.
    used = np.array([fetch.processor_ns for fetch in fetches], np.float64)
    waits = slow[used[slow] <= BUSIER * np.median(used)]
    queued = min(float((slowest[waits] - usual).sum()), children_wait(job) * float(step.sum()))
    if extra - queued < MAJORITY * float(data.sum()):
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
