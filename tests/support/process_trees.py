"""Programs that trace themselves and start other processes, and what is found in their traces."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Flag, Kind
from tests.support.killed_programs import batches
from tests.support.launch import run_to_end

FORKING = """
def in_child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid

def reap(*pids):
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
"""
"""For programs that fork: a child ends with 0 if its work does; the number that `in_child` returns is for `reap`."""

START = f"""
import concurrent.futures, multiprocessing, os, signal, subprocess, sys, threading, time
import stepscope as sc
{FORKING}
def spans(name, count=100):
    for number in range(count):
        with sc.span(name, number=number, text=name * 3):
            pass

def trace(**settings):
    where = sys.argv[1]
    return sc.trace(output_dir=where, exporters=[sc.ChromeTraceExporter(where + "/trace.json")], **settings)
"""


def pair(line: bytes) -> tuple[int, int]:
    """The two numbers in a line."""
    first, second = map(int, line.split())
    return first, second


class ProcessTree:
    """A program with children: it is written to a file, as `spawn` imports it again, and run."""

    def __init__(self, tmp_path: Path) -> None:
        self.run = tmp_path / "run"
        self.printed: list[Any] = []
        self.errors = ""
        self._program = tmp_path / "program.py"

    def execute(self, program: str, *, code: int = 0, timeout: float = 100, **environment: str) -> ProcessTree:
        """Runs it after the lines of START; `print(json)` is stored. Raises `AssertionError` if it ends otherwise."""
        self._program.write_text(START + textwrap.dedent(program))
        command = [sys.executable, str(self._program), str(self.run)]
        # The session of the tests is not theirs.
        inherited = {name: value for name, value in os.environ.items() if name != "STEPSCOPE_SESSION"}
        result = run_to_end(command, timeout=timeout, environment={**inherited, **environment})
        assert result.returncode == code, result.stderr + result.stdout
        self.errors = result.stderr
        self.printed = [json.loads(line) for line in result.stdout.splitlines()]
        return self

    def spans(self, journal: str = "journal", *, still_open: bool = False) -> Counter[tuple[str, str]]:
        """How often each process, by name, has each span. Fails if an id occurs twice."""
        known = {track.id: track for track in tracks.since(1)}
        found: Counter[tuple[str, str]] = Counter()
        ids: Counter[int] = Counter()
        for batch in batches(self.run / journal):
            known |= {track.id: track for track in tracks.since(len(known) + 1)}
            for event in batch.events[batch.events["kind"] == int(Kind.SPAN)]:
                if bool(event["flags"] & int(Flag.OPEN)) is not still_open or batch.source == "steps":
                    continue
                track = known[int(event["track"])]
                while track.parent:
                    track = known[track.parent]
                found[track.name, strings.name_of(event)] += 1
                ids[int(event["id"])] += 1
        assert max(ids.values(), default=1) == 1
        return found

    def chrome_spans(self) -> Counter[tuple[str, str]]:
        """The same of the Chrome file, without steps."""
        events: list[dict[str, Any]] = json.loads((self.run / "trace.json").read_text())
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        own = next(iter(names))
        names[own] = "process"
        return Counter(
            (names[event["pid"]], event["name"])
            for event in events
            if event["ph"] == "X" and not event["name"].startswith("ProfilerStep")
        )


@pytest.fixture
def process_tree(tmp_path: Path) -> ProcessTree:
    """A program with children."""
    return ProcessTree(tmp_path)
