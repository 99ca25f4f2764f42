"""The training waits for data that torch's DataLoader does not load: a data set of MindSpore, or a loader of the program's own."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.evidence import steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.processors import machine_use
from stepscope.analysis.tables.data_pipeline import MINDSPORE, TORCH_WAITS, advice_on, all_busy, bottleneck_of
from stepscope.analysis.tables.rank_summary import RankSummary, Row, durations
from stepscope.analysis.thresholds import FINDING, MAJORITY, USUAL_STEPS
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Phase, class_of

CHEAPER = "make items cheaper, or prepare them once before the training"
"""Advice where more workers do not help."""
AHEAD = "make items cheaper, prepare them once before the training, or load ahead in workers"
RECORD = "its operators were not recorded: Profiler(data_process=True) before the data set is iterated"


def waits(rank: RankSummary) -> Row | None:
    """The spans with most of the waiting for data; `None` without any."""
    rows = [row for row in rank.rows if class_of(row.name, row.category) == Phase.DATA]
    return max(rows, key=lambda row: row.total, default=None)


def is_other_loader(rank: RankSummary) -> bool:
    """Whether the data come from something else than torch's DataLoader."""
    most = waits(rank)
    of_torch = sum(row.total for row in rank.row(TORCH_WAITS))
    return most is not None and of_torch < MAJORITY * most.total and not rank.loaders


def check(job: Job) -> list[Finding]:
    """Finds steps that wait for the next batch, and the operator of the pipeline that is too slow. The longest steps do not count."""
    rank = job.main
    most = waits(rank)
    if most is None or not is_other_loader(rank):
        return []
    data, step = rank.phase(Phase.DATA), durations(rank.judged_steps)
    usual = step <= np.quantile(step, USUAL_STEPS)
    whole, cost = float(step[usual].mean()), float(data[usual].mean())
    share = cost / whole
    if share < FINDING:
        return []
    evidence = [
        f"{most.name} takes {human_time(cost)} of {human_time(whole)} in an average step, and more than {FINDING:.0%} in "
        f"{int((data > FINDING * step).sum())} of {len(step)} steps"
    ]
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
