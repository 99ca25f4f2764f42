"""The program's own Python, between operators."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.findings import Finding, Place
from stepscope.analysis.measures.evidence import places, steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.operators import operators_a_step
from stepscope.analysis.measures.sampled_stacks import in_backward, in_loader, in_program_code
from stepscope.analysis.rules.forced_writes import forced_writes, written_bytes
from stepscope.analysis.tables.rank_summary import RankSummary, Sample, durations, hottest
from stepscope.analysis.thresholds import (
    FEWEST_SAMPLES,
    FINDING,
    MAJORITY,
    NO_PLACE,
    RECORDING_NS,
    UNCOVERED_PLACE,
    WAITING,
    WRITING,
    WRITTEN_BYTES,
)
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Phase

MODULE = "<module>"
"""Name of a function that none is: code of a file itself."""


def check(job: Job) -> list[Finding]:
    """Finds time that no operator covers, and the function of the program in which it goes."""
    rank = job.main
    took = durations(rank.judged_steps)
    queued = np.minimum(np.nan_to_num(rank.judged_steps["run_queue_ns"]) / took, 1)
    # Of what the thread waits for processors, each phase has its part.
    uncovered = (rank.uncovered() + rank.phase(Phase.SPAN)) * (1 - queued)
    uncovered = np.maximum(uncovered - RECORDING_NS * operators_a_step(rank), 0)
    cost = float(np.median(uncovered)) / float(np.median(took))
    if cost < FINDING:
        return []
    samples = [
        sample
        for sample in rank.samples_in_steps()
        if in_program_code(sample) and not in_loader(sample) and not in_backward(sample)
    ]
    waiting = [sample for sample in samples if sample.state in {"S", "D"}]
    running = _running(rank, uncovered)
    waited = cost * (1 - running)
    waits = (running < WAITING or waited >= WAITING) and len(waiting) > WAITING * max(len(samples), 1)
    writes = written_bytes(rank) >= WRITTEN_BYTES and running < WRITING
    span = _span(rank, uncovered)
    inside = f", most of it in the span {span}" if span else ""
    does, location = "it is", "in the program's own code"
    if waits and not writes:
        uncovered, cost, samples = uncovered * (1 - running), waited, waiting
        does, location = "the thread waits", "in which the program's own code waits"
    place = _place(samples)
    spent = human_time(float(np.median(uncovered)))
    evidence = [
        f"for {spent} of a median step of {human_time(rank.step_ns)} {does} in no operator and no phase of the training{inside}; "
        f"for more than {FINDING:.0%} in {int((uncovered > FINDING * took).sum())} of {len(took)} steps"
    ]
    if place is not None:
        evidence.append(f"{place.share:.0%} of the stack samples {location} are in {place}")
    gain = f"about {spent} of each step"
    if writes:
        return [forced_writes(rank, cost, evidence, place, gain, "likely")]
    if place is None and cost < NO_PLACE:
        return []
    if not waits and not rank.judged_steps["operators"].any():
        return []  # a loop of Python alone does what it is for
    if waits:
        title, kind = f"The program's own code waits {cost:.0%} of each step{inside}.", "program-waits"
        action = "move what it waits for to another thread: sleeps, locks, network, files"
    else:
        title, kind = f"Python between operators takes {cost:.0%} of each step.", "python-between-operators"
        action = "vectorize it, do it less often, or move it to the loader's workers"
    if span and (place is None or place.function == MODULE):
        action = f"{span}: {action}"
    elif place is not None:
        action = f"{place.function}: {action}"
    return [
        Finding(
            id=kind,
            title=title,
            cost=cost,
            cost_ns=float(np.median(uncovered)),
            evidence=tuple(evidence),
            action=action,
            gain=gain,
            certainty="certain" if place is not None else "likely",
            steps=steps_with_most(rank.judged_steps, uncovered),
            places=places(place),
        )
    ]


def _place(samples: list[Sample]) -> Place | None:
    """The function that has most of these samples; `None` if none has many."""
    place = hottest(samples) if len(samples) >= FEWEST_SAMPLES else None
    return place if place is not None and place.share >= UNCOVERED_PLACE else None


def _span(rank: RankSummary, uncovered: NDArray[np.float64]) -> str:
    """The span of the program that has most of that time; empty if most of it is in none."""
    spans = rank.phase(Phase.SPAN)
    return rank.largest_span() if spans.sum() > MAJORITY * uncovered.sum() else ""


def _running(rank: RankSummary, uncovered: np.ndarray) -> float:
    """The share of uncovered time in which the thread runs, at most: the processor time that the other phases leave."""
    cpu = rank.judged_steps["cpu_ns"]
    if not np.isfinite(cpu).any() or not uncovered.sum():
        return 1.0
    queued = np.nan_to_num(rank.judged_steps["run_queue_ns"])  # ready to run
    covered = durations(rank.judged_steps) - uncovered
    return float(np.clip(np.nanmedian((cpu + queued - covered) / np.maximum(uncovered, 1)), 0.0, 1.0))
