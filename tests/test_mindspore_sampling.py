"""Backends that look from time to time: memory of the process, and stacks of Python functions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.backends.conformance import CHECKS, Case
from stepscope.backends.process_memory import ProcessMemoryBackend
from stepscope.backends.python_stacks import PythonStacksBackend
from stepscope.runtime import strings

CASES = {
    "process memory": Case(lambda: ProcessMemoryBackend(0.002), tolerance=1_000_000_000),
    "python stacks": Case(lambda: PythonStacksBackend(0.002), tolerance=1_000_000_000),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_contract(case: Case, check: Callable[[Case], None]) -> None:
    """Each promise of a backend."""
    check(case)


@pytest.mark.checklist("C5", "B10")
def test_memory_follows_the_process(output_dir: Path) -> None:
    """What the program allocates and touches is seen, in bytes."""
    memory = sc.MemoryExporter()
    options = sc.Options(journal=False)
    with sc.trace(backends=[ProcessMemoryBackend(0.002)], exporters=[memory], output_dir=output_dir, options=options):
        time.sleep(0.02)
        held = bytearray(b"x" * (64 << 20))
        ending = time.monotonic() + 30
        while time.monotonic() < ending and not _grown(memory):
            time.sleep(0.05)
        assert len(held) == 64 << 20
    assert _grown(memory)
    assert set(memory.names(kind=sc.Kind.COUNTER)) == {"process allocated"}


def _grown(memory: sc.MemoryExporter) -> bool:
    values = memory.events(kind=sc.Kind.COUNTER)["value"]
    return len(values) > 1 and values.max() - values[0] > 48 << 20


def outer(seconds: float) -> None:
    """Calls `inner`."""
    inner(seconds)


def inner(seconds: float) -> None:
    """Lasts for a while."""
    time.sleep(seconds)


@pytest.mark.checklist("A8", "C14")
def test_stacks_show_who_runs(output_dir: Path) -> None:
    """Functions that last are spans, each within its caller, on a row beside their thread."""
    memory = sc.MemoryExporter()
    options = sc.Options(journal=False)
    with sc.trace(backends=[PythonStacksBackend(0.002)], exporters=[memory], output_dir=output_dir, options=options):
        thread = threading.Thread(target=outer, args=(0.3,), name="worker")
        thread.start()
        outer(0.3)
        thread.join()
    events = memory.events(kind=sc.Kind.SPAN)
    events = events[events["category"] == strings.category("python_function")]
    by_id = {int(event["id"]): event for event in events}
    inners = [event for event in events if strings.name_of(event).startswith("inner (test_mindspore_sampling.py:")]
    assert len({int(event["track"]) for event in inners}) == 2
    for event in inners:
        parent = by_id[int(event["parent"])]
        assert strings.name_of(parent).startswith("outer (")
        assert parent["ts"] <= event["ts"]
        assert parent["ts"] + parent["dur"] >= event["ts"] + event["dur"]
        assert parent["self_dur"] <= parent["dur"] - event["dur"]
    longest = max(int(event["dur"]) for event in inners)
    assert 0.1e9 < longest < 60e9


def test_interval() -> None:
    """A backend that never waits would take the whole processor."""
    with pytest.raises(ValueError, match="interval must be a number of seconds above 0, got 0"):
        ProcessMemoryBackend(0)
