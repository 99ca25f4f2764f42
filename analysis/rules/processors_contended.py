"""Processors that the job's threads, or other programs, contend for."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.evidence import steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.processors import busy_threads, demand, others_use
from stepscope.analysis.tables.rank_summary import RankSummary, durations
from stepscope.analysis.thresholds import OTHERS_USE, OVERSUBSCRIBED, OVERSUBSCRIBED_WITH_OTHERS, RUN_QUEUE
from stepscope.runtime.display.text_table import human_count, human_time


def check(job: Job) -> list[Finding]:
    """Finds time in which the thread that steps is ready to run, but other threads have the processors."""
    rank = job.main
    waits, took = rank.judged_steps["run_queue_ns"], durations(rank.judged_steps)
    if not np.isfinite(waits).any():
        return []
    cost = float(np.nanmedian(waits / took))
    if cost < RUN_QUEUE:
        return []
    preempted = float(np.nanmedian(rank.judged_steps["preemptions"]))
    busy = busy_threads(rank.thread_cpu)
    own, children, processors = demand(job)
    # Where others use processors as well, what the job waits for them is taken for its own demand.
    bound = OVERSUBSCRIBED_WITH_OTHERS if others_use(job) > OTHERS_USE * processors else OVERSUBSCRIBED
    if processors and own + children <= bound * processors:
        return [_shared(rank, cost, own + children, processors)]
    evidence = [
        f"the thread that steps waits for a processor {human_time(cost * rank.step_ns)} of each step; "
        f"it is preempted {human_count(round(preempted), 'time')}"
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
            title=f"There are too few processors: the training waits for one {cost:.0%} of each step.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=tuple(evidence),
            action=f"{fewer}, fewer loader workers; or more processors"
            if processors
            else f"see what else runs there; {fewer}",
            gain=f"up to {cost:.0%} of each step",
            certainty="certain" if processors else "likely",
            steps=steps_with_most(rank.judged_steps, waits / took),
        )
    ]


def _shared(rank: RankSummary, cost: float, own: float, processors: float) -> Finding:
    return Finding(
        id="machine-shared",
        title=f"Other programs use the processors: the training waits for one {cost:.0%} of each step.",
        cost=cost,
        cost_ns=cost * rank.step_ns,
        evidence=(f"the job itself could use {own:.1f} of {processors:g} processors; all other findings still hold",),
        action="measure again on a machine that nothing else uses, or find out what else runs there",
        gain=f"up to {cost:.0%} of each step",
        certainty="likely",
    )
