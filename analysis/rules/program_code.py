"""The program's own Python: between operators, in hooks of backward, and where it writes."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding, Place
from stepscope.analysis.job import Job, Rule
from stepscope.analysis.rank_summary import RankSummary, Sample, durations, hottest, in_library, parse_frame, samples_in
from stepscope.analysis.rules.input_bound import in_loader
from stepscope.analysis.thresholds import FEWEST_SAMPLES, FINDING, NO_PLACE, RECORDING_NS, UNCOVERED_PLACE
from stepscope.runtime.step_facts import Phase
from stepscope.runtime.table import human_time

WRITTEN_BYTES = 64 << 10
"""If a step writes this much or more, its waiting is taken for writing."""


def in_backward(sample: Sample) -> bool:
    """Whether autograd runs, on this thread, below the sampled function."""
    return "_engine_run_backward" in sample.stack


def in_program_code(sample: Sample) -> bool:
    """Whether the innermost function is the program's own, or of Python's library called by it; not torch's."""
    innermost = sample.stack.rpartition(";")[2]
    frame = parse_frame(innermost)
    return frame is not None and (
        not in_library(frame.file) or "/lib/python3" in frame.file and "site-packages" not in frame.file
    )


def check_backward_hooks(job: Job) -> list[Finding]:
    """Finds functions of the program that take long while backward runs."""
    rank = job.main
    samples = rank.samples_in_steps()
    hooks = [sample for sample in samples if in_backward(sample) and _beyond_engine(sample)]
    if len(samples) < FEWEST_SAMPLES:
        return []
    cost = len(hooks) / len(samples)
    place = hottest(hooks)
    if cost < FINDING or place is None:
        return []
    return [
        Finding(
            id="slow-backward-hook",
            title=f"A hook in backward takes {cost:.0%} of each step: {place.function}.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=(
                f"in {len(hooks)} of {len(samples)} stack samples autograd calls Python; {place.share:.0%} of these are in {place}",
                f"backward takes {human_time(float(np.median(rank.phase(Phase.BACKWARD))))} of {human_time(rank.step_ns)}",
            ),
            action=f"make {place.function} cheaper, or call it for fewer tensors or less often",
            gain=f"about {human_time(cost * rank.step_ns)} of each step",
            certainty="certain",
            places=(place,),
        )
    ]


def _beyond_engine(sample: Sample) -> bool:
    after = sample.stack.partition("_engine_run_backward")[2].split(";")[1:]
    return any((frame := parse_frame(each)) is not None and not in_library(frame.file) for each in after)


def check_forced_writes(job: Job) -> list[Finding]:
    """Finds time in `os.fsync` and `os.fdatasync`."""
    rank = job.main
    took, waits = durations(rank.judged_steps), rank.phase(Phase.FORCED_WRITE)
    cost = float(np.median(waits)) / float(np.median(took))
    if cost < FINDING:
        return []
    place = hottest(samples_in(rank.samples_in_steps(), rank.forced_writes))
    spent = human_time(float(np.median(waits)))
    evidence = [
        f"os.fsync and os.fdatasync take {spent} of {human_time(rank.step_ns)} in a step, and more than {FINDING:.0%} in "
        f"{int((waits > FINDING * took).sum())} of {len(took)} steps"
    ]
    if place is not None:
        evidence.append(f"{place.share:.0%} of the stack samples taken then are in {place}")
    return [_forced_writes(rank, cost, evidence, place, f"about {spent} of each step", "certain")]


def check_python_between_operators(job: Job) -> list[Finding]:
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
    place = hottest(samples) if len(samples) >= FEWEST_SAMPLES else None
    if place is not None and place.share < UNCOVERED_PLACE:
        place = None
    waiting = [sample for sample in samples if sample.state in {"S", "D"}]
    running = _running(rank, uncovered)
    spent = human_time(float(np.median(uncovered)))
    evidence = [
        f"{spent} of {human_time(rank.step_ns)} in a step are in no operator and no phase of the training; it is more than "
        f"{FINDING:.0%} in {int((uncovered > FINDING * took).sum())} of {len(took)} steps"
    ]
    if place is not None:
        evidence.append(f"{place.share:.0%} of the stack samples in the program's own code are in {place}")
    gain = f"about {spent} of each step"
    if _written(rank) >= WRITTEN_BYTES and running < 0.6:
        return [_forced_writes(rank, cost, evidence, place, gain, "likely")]
    if place is None and cost < NO_PLACE:
        return []
    waits = running < 0.3 and len(waiting) > 0.5 * max(len(samples), 1)
    if not waits and not rank.judged_steps["operators"].any():
        return []  # a loop of Python alone does what it is for
    if waits:
        title, kind = f"The program's own code waits {cost:.0%} of each step.", "program-waits"
        action = "move what it waits for to another thread: sleeps, locks, network, files"
    else:
        title, kind = f"Python between operators takes {cost:.0%} of each step.", "python-between-operators"
        action = "vectorize it, do it less often, or move it to the loader's workers"
    if place is not None:
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
            places=() if place is None else (place,),
        )
    ]


def operators_a_step(rank: RankSummary) -> float:
    """How many operators a step has, with those inside of others."""
    count = sum(row.count for row in rank.rows if row.category in ("cpu_op", "operator"))
    return count / max(len(rank.facts), 1)


def _written(rank: RankSummary) -> float:
    """Bytes that a step writes, at the median; 0 if that was not read."""
    written = rank.judged_steps["written_bytes"]
    return float(np.nanmedian(written)) if np.isfinite(written).any() else 0.0


def _forced_writes(
    rank: RankSummary, cost: float, evidence: list[str], place: Place | None, gain: str, certainty: str
) -> Finding:
    return Finding(
        id="forced-writes",
        title=f"The loop waits for the disk {cost:.0%} of each step.",
        cost=cost,
        cost_ns=cost * rank.step_ns,
        evidence=(*evidence, f"a step writes {_written(rank) / 1e3:,.0f} kB"),
        action="call fsync and flush less often, or write on another thread",
        gain=gain,
        certainty=certainty,
        places=() if place is None else (place,),
    )


def _running(rank: RankSummary, uncovered: np.ndarray) -> float:
    """The share of uncovered time in which the thread runs, at most: the processor time that the other phases leave."""
    cpu = rank.judged_steps["cpu_ns"]
    if not np.isfinite(cpu).any() or not uncovered.sum():
        return 1.0
    queued = np.nan_to_num(rank.judged_steps["run_queue_ns"])  # ready to run
    covered = durations(rank.judged_steps) - uncovered
    return float(np.clip(np.nanmedian((cpu + queued - covered) / np.maximum(uncovered, 1)), 0.0, 1.0))


RULES = (
    Rule(
        id="slow-backward-hook",
        needs="stack samples",
        finds="hooks of tensors and modules, and custom backward functions, that take long",
        wrong_if="backward takes as long without the hook",
        check=check_backward_hooks,
    ),
    Rule(
        id="forced-writes",
        needs="calls of `os.fsync` (signal `writes`); stack samples say where",
        finds="a loop that waits until what it writes is on the disk",
        wrong_if="the step is as long without the forced writes",
        check=check_forced_writes,
    ),
    Rule(
        id="python-between-operators",
        needs="torch's operators; stack samples and processor time say where and why",
        finds="Python of the program that runs, waits or writes between operators",
        wrong_if="the step is as long without the function that is named",
        check=check_python_between_operators,
    ),
)
