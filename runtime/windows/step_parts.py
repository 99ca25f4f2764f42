"""The parts of a step: its phases by name, and the uncovered time. They add up to the step, to the nanosecond."""

from __future__ import annotations

from collections.abc import Mapping
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
    Phase.SPAN: "other spans",
}
UNCOVERED = "not covered"
RUNNING = "not covered, running"
QUEUED = "not covered, waiting for a processor"
WAITING = "not covered, waiting"

_RUNS = (Phase.GARBAGE_COLLECTION, Phase.OPTIMIZER, Phase.BACKWARD, Phase.FORWARD)
"""Phases to which processor time is assigned first. In the other phases the thread may be waiting."""


def is_uncovered(name: str) -> bool:
    """Whether a part is time that no span covers."""
    return name.startswith(UNCOVERED)


def durations(facts: Facts) -> NDArray[np.int64]:
    """ns of each step."""
    return facts["end"] - facts["begin"]  # type: ignore[no-any-return]


def parts_of(facts: Facts) -> dict[str, NDArray[np.int64]]:
    """ns of each part in each of these steps, without parts that no step has.

    Uncovered time is divided if the processor time of the step is known. It is running for the processor time that computing
    phases have not used; then waiting for a processor for the time that the kernel reports; the rest is other waiting. The
    order within the step is not known.
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


def in_median_step(facts: Facts, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, float]:
    """ns of each column of these steps in a median step: its share of the shortest 95 % of them, so that parts of steps add up to it."""
    took = durations(facts)
    usual = took <= np.quantile(took, 0.95)
    scale = float(np.median(took)) / (float(took[usual].sum()) or 1.0)
    return {name: float(column[usual].sum()) * scale for name, column in columns.items()}


def columns_of(facts: Facts) -> dict[str, NDArray[Any]]:
    """The facts as columns: number, times and duration of each step, each part in ns, and each signal."""
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
    lengths, phases = durations(facts), facts["phases"]
    uncovered = lengths - phases.sum(axis=1)
    read = np.isfinite(facts["cpu_ns"])
    cpu, queue = (_whole(facts[name], lengths) for name in ("cpu_ns", "run_queue_ns"))
    computing = phases[:, [int(phase) for phase in _RUNS]].sum(axis=1)
    least, most = np.maximum(cpu - (lengths - uncovered), 0), np.minimum(cpu, uncovered)
    running = np.where(read, np.clip(cpu - computing, least, most), 0)
    queued = np.where(read, np.minimum(queue, uncovered - running), 0)
    return {
        RUNNING: running,
        QUEUED: queued,
        WAITING: np.where(read, uncovered - running - queued, 0),
        UNCOVERED: np.where(read, 0, uncovered),
    }


def _whole(readings: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Readings in whole ns, at most the duration of the step; 0 for no reading."""
    return np.clip(np.nan_to_num(readings), 0, lengths).astype(np.int64)
