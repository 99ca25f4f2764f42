"""What long runs and cycles must not leave behind."""

from __future__ import annotations

from benchmarks.endurance.cycles import Cycles
from benchmarks.endurance.long_run import LongRun
from benchmarks.endurance.watch import slope

MANY = 1000
"""Cycles, of which the second half says how flat memory is."""
MEMORY = 1000.0
"""Bytes a cycle: the allocator alone makes a third of that, up or down."""
SHM = 10.0
"""Bytes a cycle."""
OBJECTS = 0.5
"""Python objects a cycle."""


def left_behind(run: LongRun) -> list[str]:
    """What is there after a run, and accounts that do not agree."""
    found = [f"{name}: {count} in flight" for name, (*_, count) in run.end.outputs.items() if count]
    found += [f"{name}: {error}" for name, error in run.end.errors.items()]
    found += run.end.problems
    found += [f"left in /dev/shm: {name}" for name in run.left]
    found += [f"thread left: {name}" for name in run.end.threads]
    return found + ([f"exit status {run.status}"] if run.status else [])


def of_cycles(cycles: Cycles) -> list[str]:
    """What went wrong in a cycle, and what grows with their number.

    Descriptors and threads must not be more than after the first of them; the tables of tracks and names not more than after
    half of them. If they are many, resident memory, `/dev/shm` and objects must be flat over the second half.
    """
    found = list(cycles.problems)
    for what in ("descriptors", "threads"):
        values = [getattr(sample, what) for sample in cycles.samples]
        if values and values[-1] > values[0]:
            found.append(f"{cycles.kind}: {what} grew from {values[0]} to {values[-1]}")
    for what, values in (("tracks", cycles.tracks), ("names", cycles.names)):
        middle = values[len(values) // 2 :][:1]
        if middle and values[-1] > middle[0]:
            found.append(f"{cycles.kind}: {what} grew from {middle[0]} to {values[-1]}")
    if cycles.count < MANY:
        return found
    half = len(cycles.samples) // 2
    numbers = [float(sample.spans) for sample in cycles.samples]
    for what, counts, limit in (
        ("bytes of memory", [sample.resident for sample in cycles.samples], MEMORY),
        ("bytes of /dev/shm", [sample.shm for sample in cycles.samples], SHM),
        ("Python objects", cycles.objects, OBJECTS),
    ):
        grown = slope([(number, float(count)) for number, count in zip(numbers, counts, strict=True)][half:])
        if grown > limit:
            found.append(f"{cycles.kind}: {grown:,.1f} {what} more with each; {limit:g} is what counts as flat")
    return found
