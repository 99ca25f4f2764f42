"""Shared code of the tests of frameworks' callbacks: a memory exporter for each run, and views of its events."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.compat.frameworks.loop import TracingCallback
from stepscope.exporters.base import Window
from stepscope.runtime.events.record import Kind


class Runs:
    """Makes a memory exporter for each run; to be passed as `exporters=[runs]`."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Path, sc.exporters.MemoryExporter]] = []

    def __call__(self, directory: Path) -> sc.exporters.MemoryExporter:
        memory = sc.exporters.MemoryExporter(name=f"memory {len(self.made)}")
        self.made.append((directory.name, directory, memory))
        return memory

    @property
    def stages(self) -> list[str]:
        """The runs so far, in order."""
        return [stage for stage, _, _ in self.made]

    def __getitem__(self, stage: str) -> sc.exporters.MemoryExporter:
        (memory,) = [memory for name, _, memory in self.made if name == stage]
        return memory

    def windows(self, stage: str) -> list[Window]:
        """The windows of the only run of a stage."""
        return self[stage].windows

    def steps(self, stage: str) -> list[tuple[int, ...]]:
        """Numbers of the steps of each of them."""
        return steps(self[stage])

    def spans(self, stage: str, window: int | None = None) -> list[str]:
        """Names of the spans of the only run of a stage."""
        return self[stage].names(window, Kind.SPAN)


def steps(memory: sc.exporters.MemoryExporter) -> list[tuple[int, ...]]:
    """Numbers of the steps of each window."""
    return [tuple(step.number for step in window.steps) for window in memory.windows]


def check_well(traced: TracingCallback) -> None:
    """Fails with the stored errors, or if its accounts do not balance."""
    traced.raise_errors()
    profiler = traced.profiler
    assert profiler is not None
    assert profiler.audit() == ()


def check_incomplete(runs: Runs, stage: str) -> None:
    """The last window was cut by an exception, and says so."""
    window = runs.windows(stage)[-1]
    assert not window.complete
    assert any("closed inside the window" in text for text in window.diagnostics)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stepscope")]


def check_verdict(logged: str, directory: Path) -> None:
    """A log says once where the only run below a directory is, and ends with the verdict on it."""
    (reported,) = re.findall(r"stepscope recorded '\w+': `stepscope report (\S+)` shows it\n  (.*(?:\n  .*)*)", logged)
    assert reported[0] == str(directory)
    answer = explain(directory)
    expected = answer.verdict if not answer.findings else answer.findings[0].title
    assert not answer.refused and reported[1].startswith(expected)


def fill(disk: Path) -> None:
    """Leaves no room on a file system."""
    with open(disk / "ballast", "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(1 << 12))
