"""The process's recorder in tests: what was recorded, as rows with text instead of ids."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.annotations import asyncio_tasks
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind
from stepscope.runtime.options import Options
from stepscope.runtime.recording.recorder import Recorder, current, recorder
from tests.support.basics import ROOT
from tests.support.launch import STRICT, run_to_end

WANTED_BY = 1 << 40
"""Number under which tests want events, which no profiler has."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One event, readable."""

    kind: Kind
    name: str
    category: str
    ts: int
    dur: int
    self_dur: int
    value: float
    id: int
    parent: int
    track: int
    step: int
    flags: Flag
    arguments: dict[str, Any]

    @property
    def end(self) -> int:
        """When it ended, in ns."""
        return self.ts + self.dur


def rows_of(events: Block, heap: bytes) -> list[Row]:
    """The events of a block with what their ids stand for."""
    return [
        Row(
            kind=Kind(int(event["kind"])),
            name=strings.text(int(event["name"])),
            category=strings.text(int(event["category"])),
            ts=int(event["ts"]),
            dur=int(event["dur"]),
            self_dur=int(event["self_dur"]),
            value=float(event["value"]),
            id=int(event["id"]),
            parent=int(event["parent"]),
            track=int(event["track"]),
            step=int(event["step"]),
            flags=Flag(int(event["flags"])),
            arguments=_arguments(event, heap),
        )
        for event in events
    ]


def _arguments(event: Any, heap: bytes) -> dict[str, Any]:
    at, length = int(event["args_at"]), int(event["args_len"])
    if event["flags"] & int(Flag.ARG_INLINE):
        return {strings.text(at): length}
    return _core.decode_arguments(heap, at, length) if length else {}


class Log:
    """The events that were recorded while it was open."""

    def __init__(self, source: Recorder) -> None:
        self._source = source
        self._unread: list[tuple[Block, bytes]] = []
        self._rows: list[Row] = []

    def drain(self) -> int:
        """Drains the recorder; returns how many events are new."""
        blocks = self._source.drain()[1]
        self._unread += blocks
        return sum(len(events) for events, _ in blocks)

    @property
    def rows(self) -> list[Row]:
        """Rows of all events drained so far; made when they are read."""
        for events, heap in self._unread:
            self._rows += rows_of(events, heap)
        self._unread.clear()
        return self._rows

    def of(self, kind: Kind) -> list[Row]:
        """Events of a kind, in the order in which they were drained."""
        return [row for row in self.rows if row.kind is kind]

    @property
    def spans(self) -> list[Row]:
        """The program's spans, in the order in which they ended on their thread; not those named `suspended`."""
        return [row for row in self.of(Kind.SPAN) if row.category != "task"]

    def span(self, name: str) -> Row:
        """The only span of this name."""
        (row,) = [row for row in self.spans if row.name == name]
        return row

    def events(self, kind: Kind, *names: str) -> list[Row]:
        """Events of a kind that have one of the names."""
        return [row for row in self.of(kind) if row.name in names]

    def record(self, on: bool) -> None:
        """Switches recording off or on again."""
        self._source.want(WANTED_BY, on)


@contextmanager
def recording() -> Generator[Log]:
    """Records the body, and watches tasks of asyncio that are made in it; the log is complete after it. Nothing of before is in it."""
    source = current() or recorder(Options())
    source.ensure_directory(Options())
    source.drain()
    log = Log(source)
    asyncio_tasks.watch()
    log.record(True)
    try:
        yield log
    finally:
        log.record(False)
        asyncio_tasks.release()
        log.drain()


def check_self_times(spans: list[Row]) -> None:
    """Fails unless each span's self time is its duration less those of its children on the same stack, to the ns."""
    inside: dict[int, int] = {}
    tracks = {row.id: row.track for row in spans}
    for row in spans:
        if tracks.get(row.parent) == row.track:
            inside[row.parent] = inside.get(row.parent, 0) + row.dur
    wrong = [row for row in spans if row.self_dur != row.dur - inside.get(row.id, 0)]
    if wrong:
        raise AssertionError(f"self times are not exact: {wrong}")


PREAMBLE = """
import json, os, sys, threading, time
sys.path.append({root!r})
from stepscope.runtime import _core
from stepscope.runtime.recording import recorder as recorders
from stepscope.runtime._core import counter, flow, instant, span
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.options import Options
from tests.support.recording import WANTED_BY, Log, check_self_times, recording
def print_json(value):
    print(json.dumps(value), flush=True)
recorder = recorders.recorder(Options({options}))
recorder.want(WANTED_BY, True)
log = Log(recorder)
"""


def run_program(program: str, *, options: str = "", code: int = 0, flags: tuple[str, ...] = ()) -> list[Any]:
    """Runs a program in a process of its own, with a recorder that records and the names of PREAMBLE.

    Args:
        options: keyword arguments of the recorder's `Options`, as source text.
        code: the exit status that is expected.
        flags: of the interpreter; warnings are errors unless they say otherwise.

    Returns:
        The values that it passed to `print_json()`.
    """
    source = PREAMBLE.format(root=str(ROOT), options=options) + textwrap.dedent(program)
    command = [sys.executable, "-P", *STRICT, *flags, "-c", source]
    result = run_to_end(command, timeout=60)
    if result.returncode != code or result.stderr:
        raise AssertionError(f"the program ended with {result.returncode}, not {code}:\n{result.stderr}{result.stdout}")
    return [json.loads(line) for line in result.stdout.splitlines()]
