"""The parts of a step: its phases by name, and what nothing covers. They add up to the step, to the nanosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.windows.step_facts import SIGNALS, Facts, Phase

NAMES = {
    Phase.GARBAGE_COLLECTION: "garbage collection",
    Phase.COMMUNICATION: "communication",
    Phase.CHECKPOINT: "checkpoint",
    Phase.LOGGING: "logging",
    Phase.FORCED_WRITE: "forced writes",
    Phase.DATA: "data",
    Phase.OPTIMIZER: "optimizer",
    Phase.BACKWARD: "backward",
    Phase.COPY: "copies to devices",
    Phase.FORWARD: "forward",
    Phase.SUSPENDED: "waiting (task)",
    Phase.BACKWARD_ELSEWHERE: "backward",
    Phase.COMMUNICATION_ELSEWHERE: "communication",
    Phase.SPAN: "your spans",
}
UNCOVERED = "not covered"
RUNNING = "not covered, running"
QUEUED = "not covered, waiting for a processor"
WAITING = "not covered, waiting"

_RUNS = (Phase.GARBAGE_COLLECTION, Phase.OPTIMIZER, Phase.BACKWARD, Phase.FORWARD)
"""Phases in which the thread is taken to run for as long as there is processor time. In the others it may as well wait."""


def is_uncovered(name: str) -> bool:
    """Whether a part is time that no span covers."""
    return name.startswith(UNCOVERED)


def durations(facts: Facts) -> NDArray[np.int64]:
    """ns of each step."""
    return facts["end"] - facts["begin"]  # type: ignore[no-any-return]


def parts_of(facts: Facts) -> dict[str, NDArray[np.int64]]:
    """ns of each part in each of these steps; those that no step has are left out.

    What nothing covers is divided where the processor time of the step was read. When within the step the thread ran is not
    known: it runs there for at most as long as the phases in which it computes leave of that time; then it waits for a
    processor for at most as long as the kernel says; the rest of the time it waits for something else.
    """
    found: dict[str, NDArray[np.int64]] = {}
    for phase in Phase:
        column = facts["phases"][:, int(phase)]
        if column.any():
            name = NAMES[phase]
            found[name] = found[name] + column if name in found else column
    uncovered = _uncovered(facts)
    return found | (
        {name: column for name, column in uncovered.items() if column.any()} or {UNCOVERED: uncovered[UNCOVERED]}
    )


def columns_of(facts: Facts) -> dict[str, NDArray[Any]]:
    """A column for each thing that is known of these steps: what, when, how long, each part in ns, and each signal."""
    return {
        "window": facts["window"],
        "step": facts["step"],
        "begin_ns": facts["begin"],
        "end_ns": facts["end"],
        "duration_ns": durations(facts),
        **parts_of(facts),
        **{name: facts[name] for name in SIGNALS},
    }


def _uncovered(facts: Facts) -> dict[str, NDArray[np.int64]]:
    took, phases = durations(facts), facts["phases"]
    uncovered = took - phases.sum(axis=1)
    read = np.isfinite(facts["cpu_ns"])
    cpu, queue = (_whole(facts[name], took) for name in ("cpu_ns", "run_queue_ns"))
    computing = phases[:, [int(phase) for phase in _RUNS]].sum(axis=1)
    least, most = np.maximum(cpu - (took - uncovered), 0), np.minimum(cpu, uncovered)
    running = np.where(read, np.clip(cpu - computing, least, most), 0)
    queued = np.where(read, np.minimum(queue, uncovered - running), 0)
    return {
        RUNNING: running,
        QUEUED: queued,
        WAITING: np.where(read, uncovered - running - queued, 0),
        UNCOVERED: np.where(read, 0, uncovered),
    }


def _whole(readings: NDArray[np.float64], took: NDArray[np.int64]) -> NDArray[np.int64]:
    """A reading in whole ns, which is not more than the step; 0 where there is none."""
    return np.clip(np.nan_to_num(readings), 0, took).astype(np.int64)
