"""Judges whether long runs and cycles leave anything behind."""

from __future__ import annotations

import re
from collections import Counter

from benchmarks.endurance.cycles import Cycles
from benchmarks.endurance.long_run import LongRun

MANY = 1000
"""Cycles, of which the second half says how flat memory is."""
MEMORY = 5000.0
"""Bytes of resident memory a cycle: pages that allocators keep make a third of that, up or down."""
HEAP = 64.0
"""Bytes a cycle that are in use."""
BLOCKS = 0.5
"""Pieces of Python's memory a cycle."""
SHM = 10.0
"""Bytes a cycle."""
OBJECTS = 0.5
"""Python objects a cycle."""
RECORDER = ("process.json", "stacks", "strings", "tracks")
"""Files of the session that the recorder of a process has open until the process ends, for profilers to come; with an eventfd."""
LIBUV = 2
"""Both ends of the pipe for signals that libuv makes once in a process and keeps."""


def of_run(run: LongRun) -> list[str]:
    """Leftovers of a run, and accounts that do not agree."""
    found = [f"{name}: {count} in flight" for name, (*_, count) in run.end.outputs.items() if count]
    found += [f"{name}: {error}" for name, error in run.end.errors.items()]
    found += run.end.problems
    found += [f"left in /dev/shm: {name}" for name in run.left]
    found += [f"thread left: {name}" for name in run.end.threads]
    found += [f"descriptor left: {what}" for what in _leaked(run.end.descriptors)]
    return found + ([f"exit status {run.status}"] if run.status else [])


def _leaked(descriptors: list[str]) -> list[str]:
    """Those that neither the recorder nor libuv nor libffi, its own file for trampolines, has once in a process."""
    counts: Counter[str] = Counter()
    found: list[str] = []
    for what in descriptors:
        session = re.fullmatch(r".*/stepscope-\d+-\w+/([^/]+)", what)
        kind = session[1] if session else "pipe" if what.startswith("pipe:") else what
        counts[kind] += 1
        most = (
            LIBUV
            if kind == "pipe"
            else int(kind in RECORDER if session else kind == "anon_inode:[eventfd]" or "/libffi.so." in kind)
        )
        if counts[kind] > most:
            found.append(what)
    return found


def of_cycles(cycles: Cycles) -> list[str]:
    """Faults of a cycle, and values that grow with the number of cycles.

    Descriptors and threads must not be more than after the first of them; the tables of tracks and names not more than after
    half of them. If they are many, memory in use, resident memory, `/dev/shm` and objects must be flat over the second half.
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
    for what, counts, limit in (
        ("bytes of resident memory", [sample.resident for sample in cycles.samples], MEMORY),
        ("bytes in use", cycles.heap, HEAP),
        ("blocks of Python's memory", cycles.blocks, BLOCKS),
        ("bytes of /dev/shm", [sample.shm for sample in cycles.samples], SHM),
        ("Python objects", cycles.objects, OBJECTS),
    ):
        grown = cycles.grown(counts)
        if grown > limit:
            found.append(f"{cycles.kind}: {grown:,.1f} {what} more with each; {limit:g} is what counts as flat")
    return found
