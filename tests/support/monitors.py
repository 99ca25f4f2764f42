"""A configuration file and monitors that watch it, for tests of `DynamicProfilerMonitor` in one process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepscope.mindspore import DynamicProfilerArgs, DynamicProfilerMonitor
from tests.support import mindspore_output as output

RANKS = (
    "RANK",
    "RANK_ID",
    "LOCAL_RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "WORLD_SIZE",
    "RANK_SIZE",
    "MS_NODE_ID",
    "MS_WORKER_NUM",
)


class Context:
    """The argument of a framework's callbacks."""

    def __init__(self) -> None:
        self.cur_step_num = 0

    def original_args(self) -> Context:
        """Itself."""
        return self


class Job:
    """A configuration file, and monitors that watch it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "cfg" / "profiler_config.json"
        self.output = path / "out"
        self.monitors: list[DynamicProfilerMonitor] = []

    def write(self, **fields: Any) -> None:
        """Replaces the file as an editor does that knows how."""
        self.config.parent.mkdir(exist_ok=True)
        new = self.config.with_suffix(".new")
        new.write_text(json.dumps({"analyse_mode": 0, **fields}))
        os.replace(new, self.config)

    def monitor(self, **arguments: Any) -> DynamicProfilerMonitor:
        """A monitor that looks often."""
        made = DynamicProfilerMonitor(self.config.parent, self.output, 0.02, **arguments)
        self.monitors.append(made)
        return made

    def change(self, **fields: Any) -> None:
        """Replaces the file, and waits until every monitor has read it."""
        self.write(**fields)
        wanted = DynamicProfilerArgs.from_json(self.config.read_bytes())
        for monitor in self.monitors:
            wait(partial(_has_read, monitor, wanted))

    def callbacks(self, monitor: DynamicProfilerMonitor, steps: int, first: int = 1, sink: int = 1) -> None:
        """A training that calls the monitor back, once for each group of steps."""
        context = Context()
        for context.cur_step_num in range(first + sink - 1, first + steps, sink):
            monitor.step_begin(context)
            for step in range(sink):
                output.work(step)
            monitor.step_end(context)

    def windows(self) -> dict[str, Path]:
        """Each window's directory, by the name of the one around it."""
        return {directory.parent.name: directory for directory in output.windows_below(self.output)}


def _has_read(monitor: DynamicProfilerMonitor, wanted: DynamicProfilerArgs) -> bool:
    return monitor.config == wanted


def has_answered(job: Job, answer: str) -> bool:
    """True if the status file says so."""
    status = job.config.with_name(f"{job.config.name}.status.json")
    return bool(json.loads(status.read_text()).get("answer") == answer)


def wait(condition: Callable[[], object]) -> None:
    """Waits until something holds; fails after a minute."""
    ending = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ending, "it did not come to hold"
        time.sleep(0.005)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Job]:
    """A job in an environment that says nothing of ranks; its monitors are closed at the end."""
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    made = Job(tmp_path)
    yield made
    for monitor in made.monitors:
        monitor.close()
