"""Traces that torch.profiler has saved, read as recordings: one process for each rank, one window for each file."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.reading.recording import Rank
from stepscope.analysis.tables.allocations import CAPACITY
from stepscope.backends.torch.kineto.blocks import KinetoConverter, SavedTracks, nest
from stepscope.backends.torch.kineto.file import KinetoEvent, KinetoFile
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.clock import ClockMapping
from stepscope.runtime.events.intervals import FOREVER
from stepscope.runtime.events.nesting import cut_frames
from stepscope.runtime.events.record import Block, EventBatch, Kind, empty_block, join_blocks
from stepscope.runtime.session.note import JOURNAL
from stepscope.runtime.windows.window import Step, Window

ENDINGS = (".json", ".json.gz")
OF_TORCH = (".pt.trace.json", ".pt.trace.json.gz")
SOURCE = "torch.profiler"
MOST_FILES = 4_096
"""Files below a directory that are read; further ones are ignored."""
MOST_NOTES = 50
MOST_STEP = (1 << 31) - 1
_FARTHEST_NS = 1 << 61
"""A time in ns that no clock shows."""
_HEAD = {"schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"}
"""Keys that only kineto writes before the events."""
_CATEGORIES = {"cpu_op", "user_annotation", "python_function", "kernel", "cuda_runtime", "Trace"}
_RANK = re.compile(r"(?:^|[._-])(?:rank|worker)[._-]?(\d{1,7})(?=[._-])", re.IGNORECASE)
_CYCLE = re.compile(r"^(?P<worker>.+)\.(?P<time>\d{6,})\.pt\.trace\.json(?:\.gz)?$")
"""Names of the files of tensorboard_trace_handler, which writes one for each cycle of the schedule."""
_UNREADABLE = (struct.error, OverflowError, ValueError, TypeError, msgspec.DecodeError)
"""Errors that the converter raises for events with values that kineto does not write."""


def is_trace(path: Path) -> bool:
    """Whether a file is, by its name or its first bytes, JSON rather than a journal."""
    if not path.is_file():
        return False
    if path.name.lower().endswith(ENDINGS):
        return True
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith((b"{", b"\x1f\x8b"))


def trace_of(path: Path) -> TraceRank:
    """Reads a file as the recording of one process.

    Raises:
        FormatError: if it is no trace of torch.profiler.
        OSError: if it cannot be read.
    """
    try:
        return TraceRank([_opened(path)])
    except FormatError as error:
        where = f": {path.parent}" if any(path.parent.glob(f"{JOURNAL}*")) else ""
        raise FormatError(f"{error}; if stepscope wrote it, name the directory of its run{where}") from error


def traces_below(directory: Path) -> tuple[list[TraceRank], list[str], list[str]]:
    """The traces in a directory and below, by rank; which files cannot be read, and why; and what cannot be compared."""
    damaged: list[str] = []
    notes: list[str] = []
    groups: dict[tuple[int | None, str], list[KinetoFile]] = {}
    for path in _files(directory):
        try:
            trace = _opened(path)
        except (FormatError, OSError) as error:
            if path.name.lower().endswith(OF_TORCH) and len(damaged) < MOST_NOTES:
                damaged.append(str(error))
            continue
        cycle = _CYCLE.match(path.name)
        worker = str(path.parent / (cycle["worker"] if cycle else path.name))
        groups.setdefault((_rank_of(trace), worker), []).append(trace)
    ranks = [TraceRank(sorted(files, key=_cycle_of)) for files in groups.values()]
    ranks.sort(key=lambda rank: (rank.rank is None, rank.rank or 0, str(rank.path)))
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    if len(set(numbers)) < len(numbers):
        notes.append("several traces are of the same rank: they may be of different jobs, which cannot be compared")
    return ranks, damaged, notes


def _files(directory: Path) -> Iterator[Path]:
    number = 0
    for place, below, names in os.walk(directory):
        below.sort()
        for name in sorted(names):
            path = Path(place) / name
            if name.lower().endswith(ENDINGS) and path.is_file() and not path.is_symlink():
                number += 1
                if number > MOST_FILES:
                    return
                yield path


def _opened(path: Path) -> KinetoFile:
    trace = KinetoFile(path)
    trace.read_head()
    if not trace.head.keys() & _HEAD and not path.name.lower().endswith(OF_TORCH):
        with contextlib.closing(cast("Generator[list[KinetoEvent]]", trace.slices())) as slices:
            first = next(slices, cast("list[KinetoEvent]", []))
        if not any(event.cat in _CATEGORIES for event in first):
            raise FormatError(f"{path} is no trace of torch.profiler: nothing in its first events is of torch")
    return trace


def _cycle_of(trace: KinetoFile) -> tuple[int, str]:
    cycle = _CYCLE.match(trace.path.name)
    return int(cycle["time"]) if cycle else 0, trace.path.name


def _number_in(trace: KinetoFile, key: str) -> int | None:
    """Reads a number about the job from the trace."""
    info = trace.head.get("distributedInfo")
    number = cast("dict[str, Any]", info).get(key) if isinstance(info, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 31 else None


def _rank_of(trace: KinetoFile) -> int | None:
    number = _number_in(trace, "rank")
    if number is not None:
        return number
    found = _RANK.search(trace.path.name)
    return int(found[1]) if found else None


def _capacity_of(trace: KinetoFile) -> dict[str, int]:
    """Bytes of memory of each device, as the trace names them."""
    found: dict[str, int] = {}
    devices = trace.head.get("deviceProperties")
    for device in cast("list[object]", devices) if isinstance(devices, list) else []:
        properties = cast("dict[str, Any]", device) if isinstance(device, dict) else {}
        number, size = properties.get("id"), properties.get("totalGlobalMem")
        if isinstance(number, int) and isinstance(size, int) and size > 0:
            found[f"gpu/{number}"] = size
    return found


class TraceRank(Rank):
    """The traces of one process. Each use reads its events again, a file at a time, which takes 64 bytes of memory for each
    event."""

    foreign = True

    def __init__(self, traces: list[KinetoFile]) -> None:
        """Args: those of the process, in the order of their times, with their heads read."""
        first = traces[0]
        self._traces = traces
        self._tracks = [SavedTracks() for _ in traces]
        self._troubles: dict[int, tuple[str, int]] = {}
        self.damage = {}
        self.rank = _rank_of(first)
        self.world_size = _number_in(first, "world_size") or None
        self.name = first.path.name if self.rank is None else SOURCE
        self.host = str(first.head.get("host_name", ""))
        self.pid = 0
        self.path = first.path
        self.metadata = {
            key: value for key, value in first.head.items() if key not in ("traceEvents", "deviceProperties")
        }
        if capacity := _capacity_of(first):
            self.metadata[CAPACITY] = capacity
        self.dropped = {}
        self.missing = {}
        self.counts = Counter[int]()
        self.ended = True
        self.windows = {number: _window(number, 0, 0, []) for number in range(len(traces))}
        """Windows of the files; they get times and steps when the events are read."""
        self._facts = self._only = None

    def watermarks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Nothing is known of events that have not been read."""
        return np.zeros(0, np.int64), np.full(1, -FOREVER)

    def batches(self, window: int | None = None) -> Iterator[EventBatch]:
        """Batches of events, steps first, others in the order of the file.

        Args:
            window: number of the one that is wanted; default: all.
        """
        window = self._only if window is None else window
        for number in range(len(self._traces)):
            if window is None or window == number:
                yield from self._read(number)

    def _read(self, number: int) -> Iterator[EventBatch]:
        trace, rows = self._traces[number], self._tracks[number]
        converter = KinetoConverter(rows, 0, ClockMapping(0, 0), {})
        marks = _Marks()
        blocks: list[Block] = []
        heaps: list[int] = []
        lost = 0
        # The arguments of a large trace would fill the memory, and few ask for them.
        with tempfile.TemporaryFile(prefix="stepscope-load-") as room:
            for events in trace.slices():
                marks.gather(events)
                converted, failed = _converted(converter, events)
                lost += failed
                for block, heap in converted:
                    blocks.append(block)
                    heaps.append(room.write(heap))
            room.seek(0)
            sizes = [len(block) for block in blocks]
            whole = join_blocks(blocks)
            del blocks
            whole["ts"] += trace.base_ns
            steps = marks.steps(trace.base_ns)
            place = rows.of(*marks.thread) if steps else 0  # which may have no event but the steps
            made = rows.rows()
            whole["track"] = made[whole["track"]]
            cut_frames(whole)
            nest(whole)
            self._note(number, trace, whole, steps, lost)
            _number_steps(whole, steps)
            if steps:
                yield EventBatch(source=SOURCE, window=number, events=_step_events(steps, int(made[place])), args=b"")
            at = 0
            for size, length in zip(sizes, heaps, strict=True):
                yield EventBatch(source=SOURCE, window=number, events=whole[at : at + size], args=room.read(length))
                at += size

    def _note(self, number: int, trace: KinetoFile, whole: Block, steps: list[Step], lost: int) -> None:
        """Stores the facts that reading the events has shown."""
        start = int(whole["ts"].min()) if len(whole) else 0
        end = int((whole["ts"] + whole["dur"]).max()) if len(whole) else 0
        self.windows[number] = _window(number, start, end, steps, complete=not trace.problem)
        self.pid = self.pid or self._tracks[number].process
        self._troubles[number] = trace.problem, lost + trace.skipped
        self.damage = {number: problem for number, (problem, _) in self._troubles.items() if problem}
        count = sum(lost for _, lost in self._troubles.values())
        self.dropped = {"not understood": count} if count else {}


class _Marks:
    """The annotations that torch.profiler puts around steps."""

    def __init__(self) -> None:
        self._found: dict[tuple[int | str, int | str], dict[int, tuple[int, int]]] = {}

    @property
    def thread(self) -> tuple[int | str, int | str]:
        """The thread that steps."""
        return max(self._found, key=lambda each: len(self._found[each]))

    def gather(self, events: list[KinetoEvent]) -> None:
        """Collects the annotations among these events, without the copies that devices have."""
        for event in events:
            if event.ph == "X" and event.cat == "user_annotation" and event.name.startswith("ProfilerStep#"):
                digits = event.name[len("ProfilerStep#") :]
                if digits.isascii() and digits.isdigit() and len(digits) < 11 and int(digits) <= MOST_STEP:
                    begin, dur = (
                        round(each * 1000) if abs(each) < _FARTHEST_NS / 1000 else -1 for each in (event.ts, event.dur)
                    )
                    if dur >= 0:
                        self._found.setdefault((event.pid, event.tid), {})[int(digits)] = begin, begin + dur

    def steps(self, base_ns: int) -> list[Step]:
        """Steps in the order of their times."""
        if not self._found:
            return []
        made = [
            Step(number, base_ns + begin, base_ns + end) for number, (begin, end) in self._found[self.thread].items()
        ]
        return sorted(made, key=lambda step: step.start_ns)


def _converted(converter: KinetoConverter, events: list[KinetoEvent]) -> tuple[list[tuple[Block, bytes]], int]:
    """Blocks of these events, each with its arguments, and how many events have values that none can have."""
    try:
        made, failed = [converter.convert(events)], 0
    except _UNREADABLE:
        made, failed = cast("list[tuple[Block, bytes]]", []), 0
        for event in events:
            try:
                made.append(converter.convert([event]))
            except _UNREADABLE:
                failed += 1
    blocks: list[tuple[Block, bytes]] = []
    for block, heap in made:
        ts, dur = block["ts"], block["dur"]
        sane = (ts > -_FARTHEST_NS) & (ts < _FARTHEST_NS) & (dur >= 0) & (dur < _FARTHEST_NS)
        failed += len(block) - int(sane.sum())
        blocks.append((block[sane], heap))
    return blocks, failed


def _step_events(steps: list[Step], track: int) -> Block:
    events: Any = empty_block(len(steps))
    events["kind"] = Kind.STEP
    events["track"] = track
    events["ts"] = [step.start_ns for step in steps]
    events["step"] = [step.number for step in steps]
    return events  # type: ignore[no-any-return]


def _number_steps(events: Block, steps: list[Step]) -> None:
    """The step in which each event began."""
    if not steps:
        return
    begins = np.array([step.start_ns for step in steps], np.int64)
    numbers = np.array([step.number for step in steps], np.int32)
    at = np.searchsorted(begins, events["ts"], side="right") - 1
    inside = (at >= 0) & (events["ts"] < steps[-1].end_ns)
    events["step"][inside] = numbers[at[inside]]


def _window(number: int, start: int, end: int, steps: list[Step], *, complete: bool = False) -> Window:
    return Window(
        index=number,
        profiler=SOURCE,
        start_ns=start,
        end_ns=end,
        steps=tuple(steps),
        complete=complete,
        wall_start_ns=start,
    )
