"""Backends that look from time to time: memory of the process, and stacks of Python functions."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.backends.conformance import CHECKS, Case
from stepscope.backends.counters.counting import SamplingBackend
from stepscope.backends.counters.process_memory import ProcessMemoryBackend
from stepscope.backends.python_stacks import PythonStacksBackend
from stepscope.runtime.events import strings
from tests.support.messages import refused

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
    """Memory that the program allocates and touches is measured, in bytes."""
    memory = sc.exporters.MemoryExporter()
    options = sc.Options(journal=False)
    backend = ProcessMemoryBackend(0.002)
    with sc.trace(backends=[backend], exporters=[memory], output_dir=output_dir, options=options):
        until_sampled(backend, 2)
        with mmap.mmap(-1, 64 << 20) as mapping:  # pages that no allocator has already
            for _ in range(64):
                mapping.write(b"x" * (1 << 20))
            ending = time.monotonic() + 30
            while time.monotonic() < ending and not _grown(memory):
                time.sleep(0.05)
    assert _grown(memory)
    assert set(memory.names(kind=sc.exporters.Kind.COUNTER)) == {"process allocated"}


def _grown(memory: sc.exporters.MemoryExporter) -> bool:
    values = memory.events(kind=sc.exporters.Kind.COUNTER)["value"]
    return len(values) > 1 and values.max() - values[0] > 48 << 20


def until_sampled(backend: SamplingBackend, times: int) -> None:
    """Waits until a backend has looked so often; fails after a minute."""
    ending = time.monotonic() + 60
    while int(backend.report().mode.split(", ")[1].split()[0]) < times:
        assert time.monotonic() < ending
        time.sleep(0.002)


def outer(go: threading.Event) -> None:
    """Calls `inner`."""
    inner(go)


def inner(go: threading.Event) -> None:
    """Lasts until it may end."""
    go.wait(60)


@pytest.mark.checklist("A8", "C14")
def test_stacks_show_the_running_functions(output_dir: Path) -> None:
    """Functions that last are spans, each within its caller, on a row next to their thread's; stepscope's own are none."""
    memory = sc.exporters.MemoryExporter()
    options = sc.Options(journal=False)
    backend, go = PythonStacksBackend(0.002), threading.Event()
    with sc.trace(backends=[backend], exporters=[memory], output_dir=output_dir, options=options):
        with sc.span("starts"):
            called = sc.propagate(outer)  # by a function of stepscope's own
        threads = [threading.Thread(target=called, args=(go,), name=f"worker {number}") for number in range(2)]
        for thread in threads:
            thread.start()
        until_sampled(backend, 10)
        go.set()
        for thread in threads:
            thread.join()
    events = memory.events(kind=sc.exporters.Kind.SPAN)
    events = events[events["category"] == strings.category("python_function")]
    assert called is not outer and not [event for event in events if "propagate" in strings.name_of(event)]
    by_id = {int(event["id"]): event for event in events}
    inners = [event for event in events if strings.name_of(event).startswith("inner (test_mindspore_sampling.py:")]
    assert len({int(event["track"]) for event in inners}) == 2
    for event in inners:
        parent = by_id[int(event["parent"])]
        assert strings.name_of(parent).startswith("outer (")
        assert parent["ts"] <= event["ts"]
        assert parent["ts"] + parent["dur"] >= event["ts"] + event["dur"]
        assert parent["self_dur"] <= parent["dur"] - event["dur"]
        assert event["dur"] > 0


def test_interval() -> None:
    """A backend that never waits would take the whole processor."""
    with refused(ValueError, "interval", "0"):
        ProcessMemoryBackend(0)
