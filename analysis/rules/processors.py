"""Processors: the number that a job would use, by counters of the kernel's scheduler, and the threads that compete for them or
for the interpreter's lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.rules.evidence import Job, number_of, steps_with_most
from stepscope.analysis.tables.rank_summary import RankSummary, durations
from stepscope.analysis.thresholds import (
    BUSY_THREAD,
    FEWEST_SAMPLES,
    FINDING,
    MAJORITY,
    OTHER_THREAD,
    OTHERS_USE,
    OVERSUBSCRIBED,
    OVERSUBSCRIBED_WITH_OTHERS,
    RUN_QUEUE,
    USUAL_STEPS,
)
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.observers import processor_demand

MOST_PERCENT = 105.0
"""With more percent than rounding explains, a control group limits the rank to fewer processors than those that were
measured."""


def demand(job: Job) -> tuple[float, float, float]:
    """How many processors the ranks on the main rank's host would use, how many their child processes, and how many there are;
    0 if that is not known."""
    here = _on_main_host(job)
    own, children = (
        sum(_sum(rank, *names) for rank in here) for names in (processor_demand.THIS_PROCESS, processor_demand.CHILDREN)
    )
    return own, children, max((rank.demand[processor_demand.PROCESSORS][-1][1] for rank in here), default=0.0)


def children_run(job: Job) -> float:
    """The part of the child processes' time, without waits for others, in which they get the processors that they need."""
    run, waits = (sum(_sum(rank, name) for rank in _on_main_host(job)) for name in processor_demand.CHILDREN)
    return run / (run + waits) if run + waits else 1.0


def children_wait(job: Job) -> float:
    """Number of processors for which child processes wait, on average."""
    return sum(_sum(rank, processor_demand.CHILDREN[1]) for rank in _on_main_host(job))


def others_use(job: Job) -> float:
    """Number of processors that other programs use on that host."""
    here = _on_main_host(job)
    if not here:
        return 0.0
    own = sum(_sum(rank, processor_demand.THIS_PROCESS[0], processor_demand.CHILDREN[0]) for rank in here)
    return growth_per_ns(here[0].demand[processor_demand.IN_USE]) - own


def machine_use(rank: RankSummary) -> float | None:
    """Percent of the time for which processors were busy, from the first judged step on if there was a reading then; `None` if that is
    not known.

    Of the processors that the rank's control group may use, with the group's work; else of the machine's, with any process; else of those
    that the rank may use, with any process, where no control group limits it to fewer.
    """
    begin = int(rank.judged_steps["begin"][0]) if len(rank.judged_steps) else 0
    return use_by_counters(rank.counter_means, rank.demand, begin)


def use_by_counters(
    means: Mapping[str, float], demand: Mapping[str, list[tuple[int, float]]], begin: int
) -> float | None:
    """The same of counters.

    Args:
        means: of the counters of `HostBackend`, by name.
        demand: readings of those of `processor_demand`, by name.
        begin: when the first judged step began, in ns.
    """
    sampled = means.get("cgroup cpu %", means.get("host cpu %"))
    processors, in_use = (demand.get(name, []) for name in (processor_demand.PROCESSORS, processor_demand.IN_USE))
    since = [reading for reading in in_use if reading[0] >= begin]
    in_use = since if len(since) > 1 else in_use
    if sampled is None and len(in_use) > 1 and processors and processors[-1][1] > 0:
        share = 100 * growth_per_ns(in_use) / processors[-1][1]
        return share if share <= MOST_PERCENT else None
    return sampled


def _on_main_host(job: Job) -> list[RankSummary]:
    return [
        rank
        for rank in job.ranks
        if rank.recorded.host == job.main.recorded.host and len(rank.demand.get(processor_demand.IN_USE, ())) > 1
    ]


def _sum(rank: RankSummary, *names: str) -> float:
    return sum(growth_per_ns(rank.demand[name]) for name in names if name in rank.demand)


def growth_per_ns(readings: list[tuple[int, float]]) -> float:
    """Growth of a counter per ns, from its first to its last reading."""
    (first, before), (last, after) = readings[0], readings[-1]
    return (after - before) / (last - first) if last > first else 0.0


def check_processors_contended(job: Job) -> list[Finding]:
    """Finds time in which the thread that steps is ready to run, but other threads have the processors.

    Of several ranks it checks the one that waits longest, as the others wait for that.
    """
    rank = max(job.ranks, key=queued)
    cost = queued(rank)
    if cost < RUN_QUEUE:
        return []
    ranks = number_of(rank) if queued(job.main) < MAJORITY * cost else ()
    who = f"rank {rank.rank}" if ranks else "the training"
    job = Job(job.ranks, rank)
    waits, took = rank.judged_steps["run_queue_ns"], durations(rank.judged_steps)
    preemptions = rank.judged_steps["preemptions"]
    often = np.isfinite(preemptions).any()
    preempted = f"; it is preempted {human_count(round(float(np.nanmedian(preemptions))), 'time')}" if often else ""
    shares = [(name, growth_per_ns(readings)) for name, readings in rank.thread_cpu.items()]
    busy = sorted((one for one in shares if one[1] > BUSY_THREAD), key=lambda one: -one[1])
    own, children, processors = demand(job)
    # Where others use processors as well, what the job waits for them is taken for its own demand.
    bound = OVERSUBSCRIBED_WITH_OTHERS if others_use(job) > OTHERS_USE * processors else OVERSUBSCRIBED
    if processors and own + children <= bound * processors:
        return [_machine_shared(rank, ranks, who, cost, own + children, processors)]
    evidence = [
        f"the thread that steps waits for a processor {human_time(cost * rank.step_ns)} of each step{preempted}"
    ]
    if processors:
        with_children = f", and its child processes {children:.1f}" if children >= 0.1 else ""
        evidence.append(f"the job's threads could use {own:.1f} processors{with_children}; there are {processors:g}")
    if busy:
        evidence.append(
            "the busiest threads of this process: "
            + ", ".join(f"{name} {share:.0%} of a processor" for name, share in busy[:4])
        )
    fewer = (
        "fewer child processes"
        if children > own
        else "fewer threads: torch.set_num_threads(processors / processes), OMP_NUM_THREADS"
    )
    return [
        Finding(
            id="processors-contended",
            title=f"There are too few processors: {who} waits for one {cost:.0%} of each step.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=tuple(evidence),
            action=f"{fewer}, fewer loader workers; or more processors"
            if processors
            else f"see what else runs there; {fewer}",
            gain=f"up to {cost:.0%} of each step",
            certainty="certain" if processors else "likely",
            ranks=ranks,
            steps=steps_with_most(rank.judged_steps, waits / took),
        )
    ]


def queued(rank: RankSummary) -> float:
    """Share of a step in which the thread that steps waits for a processor, by the median or in sum, as steps may be shorter than the time
    for which another program has it; 0 if that was not read. The longest steps do not count in the sum."""
    known = np.isfinite(rank.judged_steps["run_queue_ns"])
    waits, took = rank.judged_steps["run_queue_ns"][known], np.maximum(durations(rank.judged_steps)[known], 1)
    if not len(took):
        return 0.0
    usual = took <= np.quantile(took, USUAL_STEPS)
    return max(float(np.median(waits / took)), float(waits[usual].sum()) / float(took[usual].sum()))


def _machine_shared(
    rank: RankSummary, ranks: tuple[int, ...], who: str, cost: float, own: float, processors: float
) -> Finding:
    return Finding(
        id="machine-shared",
        title=f"Other programs use the processors: {who} waits for one {cost:.0%} of each step.",
        cost=cost,
        cost_ns=cost * rank.step_ns,
        evidence=(f"the job itself could use {own:.1f} of {processors:g} processors on host {rank.recorded.host}",),
        action="measure again on a machine that nothing else uses, or find out what else runs there",
        gain=f"up to {cost:.0%} of each step",
        certainty="likely",
        ranks=ranks,
    )


WAITING_IN = ("/threading.py", "/queue.py", "/selectors.py", "/socket.py")
"""Ends of the files in whose functions a thread waits without the lock."""


def check_interpreter_lock(job: Job) -> list[Finding]:
    """Finds another thread that runs Python while the thread that steps does not run."""
    rank = job.main
    samples = rank.samples_in_steps()
    if len(samples) < FEWEST_SAMPLES:
        return []
    # `name: function (file:line)`. A thread that ran since the sample before may wait now.
    ran = [sample.other for sample in samples if sample.other]
    others = Counter(other for other in ran if not other.rpartition(":")[0].endswith(WAITING_IN))
    if not others:
        return []
    share = others.total() / len(samples)
    took = float(durations(rank.judged_steps).sum())
    cpu = float(np.nansum(rank.judged_steps["cpu_ns"])) if np.isfinite(rank.judged_steps["cpu_ns"]).any() else took
    idle = max(0.0, 1.0 - cpu / took)
    cost = min(share, idle)
    if share < OTHER_THREAD or cost < FINDING:
        return []
    name, count = others.most_common(1)[0]
    return [
        Finding(
            id="interpreter-lock",
            title=f"Another thread holds Python's interpreter lock (GIL): {name.partition(':')[0]}.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=(
                f"in {share:.0%} of the stack samples another thread of this process runs Python; in {count / len(samples):.0%} it is {name}",
                f"the thread that steps is on a processor {cpu / took:.0%} of the time",
            ),
            action="move that work to another process (multiprocessing), to native code that releases the lock, or out of the training",
            gain=f"up to {human_time(cost * rank.step_ns)} of each step",
            certainty="likely",
            steps=steps_with_most(
                rank.judged_steps, durations(rank.judged_steps) - np.nan_to_num(rank.judged_steps["cpu_ns"])
            ),
        )
    ]
