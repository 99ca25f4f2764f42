"""Facts of steps in few bytes: 8 for each step, and sums over the steps of a message.

A collector makes facts again from both (`facts_of`): durations are those of the rank, times in collectives and in loading data are
within 1/255 of the step, and so is the phase that is most unusual in the step. The rest of each sum is divided among the steps in
proportion to their remaining time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.exporters.stream.protocol import MAX_SUMMARY_RUNS, MAX_SUMMARY_STEPS, StepRun, StepSummary
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, MOST_READ, SIGNALS, Device, Facts, Phase, join_facts

STEP_DTYPE = np.dtype(
    [("duration_ns", "<f4"), ("communication", "u1"), ("data", "u1"), ("phase", "u1"), ("share", "u1")]
)
"""A step: its duration; of that, in 1/255, the time in collectives and the time in loading data; the phase that exceeds its share of
all steps by most, and its time in 1/255."""
STEP_BYTES = STEP_DTYPE.itemsize
SUMS_DTYPE = np.dtype(
    [
        ("phases", "<f4", (len(Phase),)),
        ("device", "<f4", (len(Device),)),
        ("operators", "<f4"),
        ("operator_ns", "<f4"),
        ("collections", "<f4"),
        *((name, "<f4") for name in SIGNALS),
    ]
)
"""Sums of the fields of `FACTS_DTYPE`. `resident_bytes` is that of the last step; a signal without readings is not a number."""
NO_PHASE = 255

_COMMUNICATION = (int(Phase.COMMUNICATION), int(Phase.COMMUNICATION_ELSEWHERE))
_DATA = int(Phase.DATA)
_LONGEST_NS = 1 << 55
_STEP = struct.Struct("<fBBBB")
_SUMS = struct.Struct(f"<{SUMS_DTYPE.itemsize // 4}f")
_CPU, _RESIDENT = (len(Phase) + len(Device) + 3 + SIGNALS.index(name) for name in ("cpu_ns", "resident_bytes"))
"""Positions of these among the numbers of `SUMS_DTYPE`."""
_SUMMED = ("operators", "operator_ns", "collections")
_FAR_NS = 1 << 62


def summary_of(facts: Facts, *, events: int, lost: int) -> StepSummary:
    """Makes the message.

    Args:
        facts: of steps in the order of their times. Of more than `MAX_SUMMARY_STEPS`, or `MAX_SUMMARY_RUNS` runs of consecutive
            steps, the newest are sent.
        events: written to the journal so far.
        lost: events that the journal does not have.
    """
    omitted = max(len(facts) - MAX_SUMMARY_STEPS, 0)
    facts = facts[omitted:]
    if not len(facts):
        return StepSummary(events, lost, omitted, [], b"")
    begin, end, step, window = (facts[name] for name in ("begin", "end", "step", "window"))
    follows = (begin[1:] == end[:-1]) & (step[1:] == step[:-1] + 1) & (window[1:] == window[:-1])
    begins: list[int] = [0, *(np.flatnonzero(~follows) + 1).tolist()][-MAX_SUMMARY_RUNS:]
    if begins[0]:
        rest = summary_of(facts[begins[0] :], events=events, lost=lost)
        return msgspec.structs.replace(rest, left_out=omitted + begins[0])
    borders = [*begins, len(facts)]
    packed = _packed(facts)
    runs = [
        StepRun(int(window[first]), int(step[first]), int(begin[first]), packed[first:last].tobytes())
        for first, last in zip(borders[:-1], borders[1:], strict=True)
    ]
    return StepSummary(events, lost, omitted, runs, _sums(facts).tobytes())


def _packed(facts: Facts) -> NDArray[np.void]:
    durations = np.maximum(facts["end"] - facts["begin"], 1)
    phases = facts["phases"].astype(np.float64)
    packed: Any = np.zeros(len(facts), STEP_DTYPE)
    packed["duration_ns"] = durations
    communication = phases[:, _COMMUNICATION].sum(axis=1)
    packed["communication"], packed["data"] = _share(communication, durations), _share(phases[:, _DATA], durations)
    usual = phases.sum(axis=0) / durations.sum()
    excess = phases - usual * durations[:, np.newaxis]
    excess[:, [*_COMMUNICATION, _DATA]] = -1
    most = excess.argmax(axis=1)
    rows = np.arange(len(facts))
    has_phase = excess[rows, most] >= 0
    packed["phase"] = np.where(has_phase & (phases[rows, most] > 0), most, NO_PHASE)
    packed["share"] = np.where(packed["phase"] != NO_PHASE, _share(phases[rows, most], durations), 0)
    return packed  # type: ignore[no-any-return]


def _share(part: NDArray[np.float64], whole: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.clip(np.rint(part / whole * 255), 0, 255).astype(np.uint8)


def _sums(facts: Facts) -> NDArray[np.void]:
    sums: Any = np.zeros(1, SUMS_DTYPE)
    sums["phases"], sums["device"] = facts["phases"].sum(axis=0), facts["device"].sum(axis=0)
    for name in _SUMMED:
        sums[name] = facts[name].sum()
    for name in SIGNALS:
        readings = facts[name][np.isfinite(facts[name])]
        value = np.nan if not len(readings) else readings[-1] if name == "resident_bytes" else readings.sum()
        sums[name] = value
    return sums  # type: ignore[no-any-return]


class StepTime(NamedTuple):
    """A step as live views need it, in ns of the rank's clock."""

    window: int
    number: int
    begin: int
    end: int
    own: int
    """The step's time without collectives."""


def steps_in(summary: StepSummary) -> list[StepTime]:
    """The steps of a summary, at once: a collector of thousands of ranks gets thousands of summaries a second.

    Steps with times that no clock shows are left out, whatever the sender says.
    """
    found: list[StepTime] = []
    for run in summary.runs:
        number, begin = run.first, run.begin_ns
        if abs(begin) > _FAR_NS or not 0 <= number < _FAR_NS:
            continue
        whole = len(run.steps) // STEP_BYTES * STEP_BYTES
        steps: list[StepTime] = []
        for duration, communication, _, _, _ in _STEP.iter_unpack(run.steps[:whole]):
            if not 0 <= duration <= _LONGEST_NS or abs(begin) > _FAR_NS:
                break
            took = round(duration)
            steps.append(StepTime(run.window, number, begin, begin + took, took - took * communication // 255))
            number, begin = number + 1, begin + took
        else:
            found += steps[: MAX_SUMMARY_STEPS - len(found)]
    return found


class Shares(NamedTuple):
    """Where the time of the steps of a summary goes, as shares of it, and their memory; `None` where it is not known."""

    cpu: float | None = None
    """Processor time of the thread that steps."""
    data: float | None = None
    communication: float | None = None
    resident_bytes: int | None = None


def shares_of(summary: StepSummary, steps: Sequence[StepTime]) -> Shares:
    """The shares of a summary with these steps."""
    took = sum(step.end - step.begin for step in steps)
    if not took or len(summary.sums) != SUMS_DTYPE.itemsize:
        return Shares()
    sums = _SUMS.unpack(summary.sums)
    cpu, resident = sums[_CPU], sums[_RESIDENT]
    return Shares(
        cpu=round(cpu / took, 4) if abs(cpu) < MOST_READ else None,
        data=_share_of(sums[_DATA], took),
        communication=_share_of(sum(sums[each] for each in _COMMUNICATION), took),
        resident_bytes=int(resident) if 0 <= resident < MOST_READ else None,
    )


def _share_of(ns: float, took: int) -> float | None:
    return round(ns / took, 4) if 0 <= ns <= _LONGEST_NS else None


def facts_of(summaries: Sequence[StepSummary]) -> Facts:
    """The facts of all steps of some summaries, as the module says."""
    with np.errstate(invalid="ignore", over="ignore"):  # numbers that are none are left out
        return join_facts([_facts_of(summary) for summary in summaries])


def count_steps(summary: StepSummary) -> int:
    """How many steps a summary has at most."""
    return sum(len(run.steps) for run in summary.runs) // STEP_BYTES


def _runs_of(summary: StepSummary) -> list[tuple[Facts, NDArray[np.void]]]:
    found: list[tuple[Facts, NDArray[np.void]]] = []
    room = MAX_SUMMARY_STEPS
    for run in summary.runs:
        steps: Any = np.frombuffer(run.steps[: len(run.steps) // STEP_BYTES * STEP_BYTES], STEP_DTYPE)
        steps = steps[:room]
        durations = steps["duration_ns"].astype(np.float64)
        if abs(run.begin_ns) > _FAR_NS or not np.isfinite(durations).all() or not 0 <= run.first < _FAR_NS:
            continue
        durations = np.clip(np.rint(durations), 0, _LONGEST_NS)
        if durations.sum() > _FAR_NS:
            continue
        room -= len(steps)
        facts: Any = np.zeros(len(steps), FACTS_DTYPE)
        ends = run.begin_ns + np.cumsum(durations.astype(np.int64))
        facts["end"], facts["begin"] = ends, np.concatenate(([run.begin_ns], ends[:-1]))[: len(steps)]
        facts["step"], facts["window"] = run.first + np.arange(len(steps)), run.window
        facts["phases"][:, int(Phase.COMMUNICATION)] = np.rint(durations * steps["communication"] / 255)
        for name in SIGNALS:
            facts[name] = np.nan
        found.append((facts, steps))
    return found


def _facts_of(summary: StepSummary) -> Facts:
    runs = _runs_of(summary)
    facts: Any = join_facts([run for run, _ in runs])
    if not len(facts) or len(summary.sums) != SUMS_DTYPE.itemsize:
        return facts  # type: ignore[no-any-return]
    steps: Any = np.concatenate([packed for _, packed in runs])
    sums: Any = np.frombuffer(summary.sums, SUMS_DTYPE)[0]
    durations = (facts["end"] - facts["begin"]).astype(np.float64)
    phases = np.zeros((len(facts), len(Phase)))
    wanted = _positive(sums["phases"])
    waits = wanted[list(_COMMUNICATION)]
    shares = waits / waits.sum() if waits.sum() else np.array([1.0, 0.0])
    phases[:, _COMMUNICATION] = np.outer(durations * steps["communication"] / 255, shares)
    phases[:, _DATA] = durations * steps["data"] / 255
    named: NDArray[np.int64] = np.flatnonzero(steps["phase"] < len(Phase))
    phases[named, steps["phase"][named]] = durations[named] * steps["share"][named] / 255
    rest = np.maximum(wanted - phases.sum(axis=0), 0)
    rest[[*_COMMUNICATION, _DATA]] = 0
    remaining = np.maximum(durations - phases.sum(axis=1), 0)
    if remaining.sum() > 0:
        scale = min(remaining.sum() / rest.sum(), 1.0) if rest.sum() > 0 else 0.0
        phases += np.outer(remaining / remaining.sum(), rest * scale)
    total = phases.sum(axis=1)
    phases *= (durations / np.maximum(total, np.maximum(durations, 1)))[
        :, np.newaxis
    ]  # shares may add up to more than all
    facts["phases"] = np.floor(phases)
    by_time = durations / max(durations.sum(), 1.0)
    facts["device"] = np.floor(np.outer(by_time, _positive(sums["device"])))
    facts["operators"] = np.rint(by_time * _positive(sums["operators"]))
    facts["operator_ns"] = np.floor(by_time * _positive(sums["operator_ns"]))
    collecting = phases[:, int(Phase.GARBAGE_COLLECTION)]
    by_collection = collecting / collecting.sum() if collecting.sum() > 0 else by_time
    facts["collections"] = np.rint(by_collection * _positive(sums["collections"]))
    for name in SIGNALS:
        total = float(sums[name])
        readable = abs(total) < MOST_READ
        facts[name] = np.nan if not readable else total if name == "resident_bytes" else by_time * total
    return facts  # type: ignore[no-any-return]


def _positive(values: Any) -> Any:
    """Sums from a sender, each between 0 and the most that a clock shows; 0 for what is no number."""
    return np.clip(np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=0.0, neginf=0.0), 0, _LONGEST_NS)
