"""Reads the files that MindSpore's profiler of the CPU writes when it stops, into blocks.

Formats as written by MindSpore 2.10: `cpu_op_execute_timestamp_<n>.txt` has a line for each operator, its name, its side and its
runs as `begin,duration,0`, in ns and ms; `cpu_framework_<n>.txt` has
kind, name, graph and inputs of each operator that was compiled; `cpu_ms_memory_record_<n>.csv` or `.txt` the pool.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import msgspec
import numpy as np

from stepscope.backends.torch.kineto.blocks import nest
from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.clock import ClockAnchor, ClockMapping
from stepscope.runtime.events.record import Block, Kind, empty_block, join_blocks
from stepscope.runtime.events.tracks import TrackKind

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
    """Operators and their runs. Raises `OSError` if a file cannot be read."""
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
    Raises `OSError` if a file cannot be read."""
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
    Raises `OSError` if a file cannot be read."""
    for path in sorted(directory.glob("*cpu_ms_memory_record_*")):
        with path.open(encoding="utf-8", errors="backslashreplace") as file:
            for line in file:
                fields = line.strip().split(",")
                if len(fields) == 4 and all(field.strip().isdigit() for field in fields):
                    at, allocated, reserved, active = map(int, fields)
                    yield at, allocated, reserved, active


SHAPES = "Input Dims"
"""Argument of an operator that has the shapes of its inputs, as torch names it."""

SLACK_NS = 60_000_000_000
"""ns by which stamps may lie outside of the recording."""

_ids = count(5 << 60)


class Converted(msgspec.Struct, frozen=True):
    """Events of one recording."""

    events: Block
    args: bytes
    unreadable: int
    """Runs of operators that could not be read."""
    error_ns: int = 0
    """The largest error of the times."""


class MindSporeTracks:
    """Rows for operators. MindSpore does not say which thread ran one: those that overlap get rows of their own."""

    def __init__(self) -> None:
        self._lanes: list[int] = []

    def lane(self, number: int) -> int:
        """The track of a row, 0 for the first."""
        while len(self._lanes) <= number:
            name = "MindSpore operators" + (f" {len(self._lanes) + 1}" if self._lanes else "")
            tid = (1 << 25) + len(self._lanes)  # no thread of the system has such a number
            self._lanes.append(tracks.new(TrackKind.THREAD, os.getpid(), tid, name, tracks.process()))
        return self._lanes[number]


def convert(
    directory: Path, anchors: tuple[ClockAnchor, ClockAnchor], rows: MindSporeTracks, *, shapes: bool
) -> Converted:
    """Reads the files of one recording, given the clocks when it began and ended.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if the stamps are not of the time of the recording.
    """
    operators = list(read_runs(directory))
    memory = list(read_memory(directory))
    stamps = [run[0] for operator in operators for run in operator.runs] or [row[0] for row in memory[-1:]]
    unreadable = sum(operator.unreadable for operator in operators)
    if not stamps:
        return Converted(empty_block(), b"", unreadable)
    mapping = map_clock(sorted(stamps)[len(stamps) // 2], anchors)
    shaped = _shapes(operators, read_shapes(directory)) if shapes else {}
    runs, heap = empty_block(sum(len(operator.runs) for operator in operators)), bytearray()
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for index, operator in enumerate(operators):
        name = strings.intern(operator.name)
        for number, (begin, duration) in enumerate(operator.runs):
            row = runs[at]
            row["ts"], row["dur"], row["name"], row["id"] = mapping.to_ours(begin), duration, name, next(_ids)
            shape = shaped.get((index, number))
            if shape:
                if shape not in places:
                    encoded = _core.encode_arguments({SHAPES: shape})
                    places[shape] = len(heap), len(encoded)
                    heap += encoded
                row["args_at"], row["args_len"] = places[shape]
            at += 1
    runs["kind"], runs["category"] = int(Kind.SPAN), strings.category("cpu_op")
    runs = _place(runs, rows)
    nest(runs)
    counters = _memory((row for row in memory if mapping.to_ours(row[0]) >= anchors[0].monotonic_ns), mapping)
    return Converted(join_blocks([runs, counters]), bytes(heap), unreadable, mapping.error_ns)


def _shapes(operators: list[OperatorRuns], launched: dict[str, list[str]]) -> dict[tuple[int, int], str]:
    """The shapes of each run, by the numbers of its operator and of the run in it.

    Names without scope are not unique: runs and launches of a name are paired in order of time, if there are as many. Else
    a name counts only if all its launches had the same shapes.
    """
    runs: dict[str, list[tuple[int, int, int]]] = {}
    for index, operator in enumerate(operators):
        short = operator.name.rpartition("/")[2]
        if short in launched:
            runs.setdefault(short, []).extend((run[0], index, number) for number, run in enumerate(operator.runs))
    found: dict[tuple[int, int], str] = {}
    for short, several in runs.items():
        shapes = launched[short]
        if len(shapes) != len(several):
            shapes = shapes[:1] * len(several) if len(set(shapes)) == 1 else []
        for (_, index, number), shape in zip(sorted(several), shapes, strict=False):
            found[index, number] = shape
    return found


def map_clock(stamp: int, anchors: tuple[ClockAnchor, ClockAnchor]) -> ClockMapping:
    """Maps MindSpore's clock, which is the wall clock, to ours. Raises `ValueError` if a stamp is not of the time
    of the recording."""
    first, last = anchors
    if not first.wall_ns - SLACK_NS <= stamp <= last.wall_ns + SLACK_NS:
        raise ValueError(f"a stamp of MindSpore, {stamp}, does not lie in the recording by the wall clock")
    apart = abs((last.wall_ns - first.wall_ns) - (last.monotonic_ns - first.monotonic_ns))
    # The rate is 1 but for what somebody did to the wall clock meanwhile; fitted to a short time it would be noise.
    return ClockMapping(first.wall_ns, first.monotonic_ns, 1.0, apart + max(first.error_ns, last.error_ns))


def _place(runs: Block, rows: MindSporeTracks) -> Block:
    """Gives every run the first lane on which it nests. Returns them in order of time."""
    runs = runs[np.lexsort((-runs["dur"], runs["ts"]))]
    lanes: list[list[int]] = []
    for index, (begin, duration) in enumerate(zip(runs["ts"].tolist(), runs["dur"].tolist(), strict=True)):
        number = _lane(lanes, begin, begin + duration)
        lanes[number].append(begin + duration)
        runs["track"][index] = rows.lane(number)
    return runs


def _lane(lanes: list[list[int]], begin: int, end: int) -> int:
    """The first lane on which a run does not overlap what is there but nests in it; a new one if there is none."""
    for number, open_until in enumerate(lanes):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        if not open_until or end <= open_until[-1]:
            return number
    lanes.append([])
    return len(lanes) - 1


def _memory(records: Iterable[tuple[int, int, int, int]], mapping: ClockMapping) -> Block:
    rows = list(records)
    block = empty_block(3 * len(rows))
    block["kind"], block["category"], block["track"] = int(Kind.COUNTER), strings.category("memory"), tracks.process()
    names = [strings.intern(f"MindSpore {what}") for what in ("allocated", "reserved", "active")]
    for index, (at, *values) in enumerate(rows):
        for column, value in enumerate(values):
            row = block[3 * index + column]
            row["ts"], row["name"], row["value"] = mapping.to_ours(at), names[column], value
    return block
