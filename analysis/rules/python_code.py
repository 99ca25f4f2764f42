"""The program's own Python: between operators, in hooks of backward, and waiting for the disk."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from stepscope.analysis.findings import Finding, Place
from stepscope.analysis.rules.evidence import (
    Job,
    in_backward,
    in_backward_hook,
    in_loader,
    in_program_code,
    longest,
    place_of_calls,
    places,
    samples_at,
    steps_with_most,
    waits_in_library,
)
from stepscope.analysis.rules.operators import operators_a_step
from stepscope.analysis.tables.rank_summary import RankSummary, durations, hottest
from stepscope.analysis.thresholds import (
    ANOMALY,
    FEWEST_SAMPLES,
    FINDING,
    MAJORITY,
    MOST_SLOW_STEPS,
    NO_PLACE,
    RECORDING_NS,
    UNCOVERED_PLACE,
    WAITING,
    WRITING,
    WRITTEN_BYTES,
)
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Phase

MICRO_STEP = "micro_step"
"""Span of our callbacks around a batch. It is not the program's own, and names no place in it."""


def check_forced_writes(job: Job) -> list[Finding]:
    """Finds time in `os.fsync` and `os.fdatasync`."""
    rank = job.main
    took, waits = durations(rank.judged_steps), rank.phase(Phase.FORCED_WRITE)
    cost = float(np.median(waits)) / float(np.median(took))
    if cost < FINDING:
        return []
    calls = rank.calls[Phase.FORCED_WRITE]
    place = place_of_calls(calls)
    spent = human_time(float(np.median(waits)))
    evidence = [
        f"os.fsync and os.fdatasync take {spent} of a median step of {human_time(rank.step_ns)}, and more than {FINDING:.0%} in "
        f"{int((waits > FINDING * took).sum())} of {len(took)} steps"
    ]
    if place is not None:
        evidence.append(f"{place.share:.0%} of that is called in {place}")
    return [forced_writes(rank, cost, evidence, place, f"about {spent} of each step", "certain")]


def forced_writes(
    rank: RankSummary, cost: float, evidence: list[str], place: Place | None, gain: str, certainty: str
) -> Finding:
    """Makes the finding, from any kind of evidence."""
    return Finding(
        id="forced-writes",
        title=f"The loop waits for the disk {cost:.0%} of each step.",
        cost=cost,
        cost_ns=cost * rank.step_ns,
        evidence=(*evidence, f"a step writes {written_bytes(rank) / 1e3:,.0f} kB"),
        action="call fsync and flush less often, or write on another thread",
        gain=gain,
        certainty=certainty,
        steps=steps_with_most(rank.judged_steps, rank.phase(Phase.FORCED_WRITE)),
        events=longest(rank, rank.calls[Phase.FORCED_WRITE]),
        places=places(place),
    )


def check_saves_and_logs(job: Job) -> list[Finding]:
    """Finds checkpoints and metrics that are written in many steps; those that are written in few make slow steps."""
    rank = job.main
    took = durations(rank.judged_steps)
    found: list[Finding] = []
    for phase, name in ((Phase.CHECKPOINT, "Saving checkpoints"), (Phase.LOGGING, "Logging")):
        spent = rank.phase(phase)
        cost, often = float(spent.sum()) / float(took.sum()), int((spent > FINDING * took).sum())
        if cost < FINDING or often < MOST_SLOW_STEPS * len(took):
            continue
        calls = rank.calls[phase]
        place = place_of_calls(calls)
        # Live views know how long calls took, and not which they were.
        names = ", ".join(name for name, _ in Counter(call.name for call in calls).most_common(2))
        of = f"calls of {names}" if names else "calls"
        mean = human_time(float(spent.mean()))
        evidence = [
            f"{of} take {mean} of a step on average, and more than {FINDING:.0%} in {often} of {len(took)} steps"
        ]
        if place is not None:
            evidence.append(f"{place.share:.0%} of that is called in {place}")
        found.append(
            Finding(
                id="saves-and-logs",
                title=f"{name} takes {cost:.0%} of the time.",
                cost=cost,
                cost_ns=float(spent.mean()),
                evidence=tuple(evidence),
                action="do it less often, such as in every 100th step",
                gain=f"about {mean} of each step",
                certainty="certain",
                steps=steps_with_most(rank.judged_steps, spent),
                events=longest(rank, calls),
                places=places(place),
            )
        )
    return found


def written_bytes(rank: RankSummary) -> float:
    """Bytes that a step writes, at the median; 0 if that was not read."""
    written = rank.judged_steps["written_bytes"]
    return float(np.nanmedian(written)) if np.isfinite(written).any() else 0.0


def check_slow_backward_hook(job: Job) -> list[Finding]:
    """Finds functions of the program that take long while backward runs."""
    rank = job.main
    samples = rank.samples_in_steps()
    hooks = [sample for sample in samples if in_backward_hook(sample)]
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
            steps=steps_with_most(rank.judged_steps, rank.phase(Phase.BACKWARD)),
            places=(place,),
        )
    ]


ANOMALY_DETECTION = re.compile(r"(?:^|;)format_stack \([^;]*torch/fx/traceback\.py:\d+\)")
"""torch formats the stack of each operator with this function where it looks for anomalies, and else only when it compiles a function."""


def check_anomaly_detection(job: Job) -> list[Finding]:
    """Finds autograd's search for anomalies: for each operator the stack is formatted, and in backward each gradient is searched for NaN."""
    rank = job.main
    samples = rank.samples_in_steps()
    found = sum(ANOMALY_DETECTION.search(sample.stack) is not None for sample in samples)
    cost = found / max(len(samples), 1)
    if len(samples) < FEWEST_SAMPLES or cost < ANOMALY:
        return []
    return [
        Finding(
            id="anomaly-detection",
            title=f"Anomaly detection of autograd is on: {cost:.0%} of each step, and more in backward.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=(
                f"in {found} of {len(samples)} stack samples torch formats the stack of an operator for it; it also searches each gradient "
                "for NaN",
            ),
            action="torch.autograd.set_detect_anomaly(False), or remove detect_anomaly(): it is for finding NaN",
            gain=f"{human_time(cost * rank.step_ns)} of each step or more",
            certainty="certain",
            steps=steps_with_most(rank.judged_steps, durations(rank.judged_steps)),
        )
    ]


TEXT_OF_TENSORS = "site-packages/torch/_tensor_str.py:"
"""Where torch makes the text of a tensor."""


def check_text_of_tensors(job: Job) -> list[Finding]:
    """Finds texts of tensors, as print and f-strings have them: torch makes them in Python, by many small operators."""
    rank = job.main
    every = rank.samples_in_steps()
    samples = [sample for sample in every if TEXT_OF_TENSORS in sample.stack]
    cost = len(samples) / max(len(every), 1)
    if len(samples) < FEWEST_SAMPLES or cost < FINDING:
        return []
    place = hottest(samples)
    spent = cost * float(durations(rank.judged_steps).mean())
    return [
        Finding(
            id="text-of-tensors",
            title=f"Making texts of tensors takes {cost:.0%} of the time.",
            cost=cost,
            cost_ns=spent,
            evidence=(
                f"in {len(samples)} of {len(every)} stack samples torch makes one, as for print or an f-string",
                *samples_at(place, "taken then"),
            ),
            action='make them less often, or only of .item(); logging.debug("%s", tensor) makes none while that level is off',
            gain=f"about {human_time(spent)} of each step on average",
            certainty="certain",
            places=places(place),
        )
    ]


QUEUE = re.compile(r"\bget \([^)]*/(?:queue|multiprocessing/queues)\.py:\d+\)")
"""The calls in which a thread waits for an item of a queue that other threads or processes fill."""
EVENT_LOOP = re.compile(r"\([^;]*(?:/asyncio/|/selectors\.py|/anyio/_backends/)[^;]*$")
"""The end of a stack whose thread waits in an event loop, for what its tasks await."""
MODULE = "<module>"
"""Name under which code of a module itself appears, outside of any function."""


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
    every = rank.samples_in_steps()
    samples = [
        sample
        for sample in every
        if (in_program_code(sample) or waits_in_library(sample)) and not in_loader(sample) and not in_backward(sample)
    ]
    waiting = [sample for sample in samples if sample.state in {"S", "D"}]
    running = _running(rank, uncovered)
    waited = cost * (1 - running)
    seen = not every or len(waiting) > WAITING * max(len(samples), 1)  # a rank that still runs has processor time only
    waits = (running < WAITING or waited >= WAITING) and seen
    writes = written_bytes(rank) >= WRITTEN_BYTES and running < WRITING
    # The span of the program that has most of that time; empty if most of it is in none.
    in_spans = rank.phase(Phase.SPAN).sum() > MAJORITY * uncovered.sum()
    span = rank.largest_span() if in_spans else ""
    span = "" if span == MICRO_STEP else span
    inside = f", most of it in the span {span}" if span else ""
    does, location = "it is", "in the program's own code"
    if waits and not writes:
        uncovered, cost, samples = uncovered * (1 - running), waited, waiting
        does, location = "the thread waits", "in which the program's own code waits"
    awaits = waits and sum(EVENT_LOOP.search(sample.stack) is not None for sample in samples) > MAJORITY * len(samples)
    place = hottest(samples) if len(samples) >= FEWEST_SAMPLES and not awaits else None
    place = place if place is not None and place.share >= UNCOVERED_PLACE else None
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
    if place is None and cost < NO_PLACE and not awaits:
        return []
    if not (waits and rank.samples) and not rank.judged_steps["operators"].any():
        return []  # a loop of Python alone does what it is for
    if waits:
        title, kind = f"The program's own code waits {cost:.0%} of each step{inside}.", "program-waits"
        action = "move what it waits for (a sleep, the network, a file, another process) to another thread; if it is a lock, hold it for less time"
        if sum(QUEUE.search(sample.stack) is not None for sample in samples) > MAJORITY * len(samples):
            action = "what fills the queue is too slow: make it cheaper, or let more threads or processes fill it that do not wait for one lock"
        elif awaits:
            action = "await at once what does not need one another (asyncio.gather, TaskGroup), or begin the next step meanwhile"
    else:
        title, kind = f"Python between operators takes {cost:.0%} of each step.", "python-between-operators"
        action = "vectorize it, do it less often, or move it to another process, such as a loader's worker"
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


def _running(rank: RankSummary, uncovered: np.ndarray) -> float:
    """The share of uncovered time in which the thread runs, at most: the processor time that the other phases leave."""
    cpu = rank.judged_steps["cpu_ns"]
    if not np.isfinite(cpu).any() or not uncovered.sum():
        return 1.0
    queued = np.nan_to_num(rank.judged_steps["run_queue_ns"])  # ready to run
    covered = durations(rank.judged_steps) - uncovered
    return float(np.clip(np.nanmedian((cpu + queued - covered) / np.maximum(uncovered, 1)), 0.0, 1.0))
