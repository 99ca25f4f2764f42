"""The files that MindSpore's profiler of the CPU writes when it stops.

Formats as written by MindSpore 2.10: `cpu_op_execute_timestamp_<n>.txt` has a line for each operator, its name, its side and its
runs as `begin,duration,0`, in ns and ms; `cpu_framework_<n>.txt` has
kind, name, graph and inputs of each operator that was compiled; `cpu_ms_memory_record_<n>.csv` or `.txt` the pool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

_INPUT = re.compile(r"input_\d+:(.*)", re.DOTALL)


class OperatorRuns(msgspec.Struct, frozen=True):
    """The runs of one operator."""

    name: str
    """With its scope."""
    runs: tuple[tuple[int, int], ...]
    """Begin in ns of MindSpore's clock, and duration in ns."""
    unreadable: int = 0
    """Runs that could not be read."""


def read_runs(directory: Path) -> Iterator[OperatorRuns]:
    """Operators and their runs.

    Raises:
        OSError: if a file cannot be read.
    """
    for path in sorted(directory.glob("*cpu_op_execute_timestamp_*.txt")):
        with path.open(encoding="utf-8", errors="backslashreplace") as file:
            for line in file:
                if line.strip():
                    yield _runs_of(line)


def _runs_of(line: str) -> OperatorRuns:
    name, _, rest = ["", "", *line.rstrip("\n").rsplit(";", 2)][-3:]  # a name may have a `;` in it
    runs: list[tuple[int, int]] = []
    unreadable = 0
    for text in rest.split():
        try:
            begin, duration, *_ = text.split(",")
            run = int(begin), round(float(duration) * 1e6)
        except ValueError:
            unreadable += 1
            continue
        if run[1] < 0:
            unreadable += 1
        else:
            runs.append(run)
    return OperatorRuns(name, tuple(runs), unreadable)


def read_shapes(directory: Path) -> dict[str, list[str]]:
    """Shapes of inputs by the name of an operator without its scope, in the order in which operators were launched.

    Raises:
        OSError: if a file cannot be read.
    """
    shapes: dict[str, list[str]] = {}
    for path in sorted(directory.glob("*cpu_framework_*.txt")):
        with path.open(encoding="utf-8", errors="backslashreplace") as file:
            for line in file:
                _, name, _, *inputs = [*line.strip().split(";"), "", "", ""]
                found = [match[1] for text in inputs if (match := _INPUT.fullmatch(text))]
                if name:
                    shapes.setdefault(name, []).append(", ".join(each for each in found if each != "NoShape"))
    return shapes


def read_memory(directory: Path) -> Iterator[tuple[int, int, int, int]]:
    """(time in ns of MindSpore's clock, allocated, reserved, active) in bytes; lines that are no such are left out.

    Raises:
        OSError: if a file cannot be read.
    """
    for path in sorted(directory.glob("*cpu_ms_memory_record_*")):
        with path.open(encoding="utf-8", errors="backslashreplace") as file:
            for line in file:
                fields = line.strip().split(",")
                if len(fields) == 4 and all(field.strip().isdigit() for field in fields):
                    at, allocated, reserved, active = map(int, fields)
                    yield at, allocated, reserved, active
