"""Facts of steps that exporters get while the run goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import stepscope as sc
from stepscope.exporters.base import Run
from stepscope.runtime.windows.step_facts import Facts, Phase, join_facts


class Following(sc.exporters.MemoryExporter):
    """Follows the steps of its run."""

    def __init__(self, name: str = "memory") -> None:
        super().__init__()
        self.name = name
        self.parts: list[Facts] = []
        self.followed = threading.Event()

    async def open(self, run: Run) -> None:
        """Begins to follow."""
        await super().open(run)
        assert run.steps is not None
        run.steps.follow(self.parts.append)
        self.followed.set()

    @property
    def facts(self) -> Facts:
        """All steps so far."""
        return join_facts([*self.parts])


def work(profiler: Any, steps: int) -> None:
    """Steps of 20 ms, of which 15 are spans that load data."""
    for _ in range(steps):
        with sc.span("enumerate(DataLoader)#Loader.__next__"):  # by its name: other tests use all categories up
            time.sleep(0.015)
        time.sleep(0.005)
        profiler.step()


@pytest.mark.parametrize("active", [0, 7], ids=["one window", "small windows"])
def test_all_steps_come_once_and_are_those_of_the_recording(tmp_path: Path, active: int) -> None:
    """Most of them while the loop runs; their numbers and phases are those that are read from the journal afterwards."""
    exporter = Following()
    schedule = sc.schedule(wait=1, warmup=0, active=active) if active else None
    with sc.trace(output_dir=tmp_path / "run", exporters=[exporter], schedule=schedule) as profiler:
        assert exporter.followed.wait(10)
        work(profiler, 150)  # 3 s: a drain may take place after 2 s only
        before_the_end = len(exporter.facts)
    recorded = sc.load(tmp_path / "run").ranks[0].steps
    found = exporter.facts
    assert before_the_end >= len(recorded) // 4, "live"
    assert (
        found["step"].tolist() == recorded["step"].tolist() and found["window"].tolist() == recorded["window"].tolist()
    )
    assert found["begin"].tolist() == recorded["begin"].tolist() and found["end"].tolist() == recorded["end"].tolist()
    data = int(Phase.DATA)
    assert np.abs(found["phases"][:, data] - recorded["phases"][:, data]).max() < 1_000_000
    assert found["phases"][:, data].min() > 10_000_000


def test_a_receiver_that_has_left_gets_nothing(tmp_path: Path) -> None:
    """Others still do."""
    first, second = Following("first"), Following("second")
    with sc.trace(output_dir=tmp_path / "run", exporters=[first, second]) as profiler:
        assert first.followed.wait(10) and second.followed.wait(10)
        assert first.run is not None and first.run.steps is not None
        first.run.steps.unfollow(first.parts.append)
        work(profiler, 10)
    assert not len(first.facts) and len(second.facts)


class Late(Following):
    """Follows only when the run has ended."""

    async def open(self, run: Run) -> None:
        """Waits for the end."""
        await anyio.to_thread.run_sync(self.followed.wait)
        await super().open(run)


def test_exporters_that_open_late_get_the_last_steps(tmp_path: Path) -> None:
    """A short run ends before the threads of its exporters have opened them."""
    first, second = Late("first"), Late("second")
    with sc.trace(output_dir=tmp_path / "run", exporters=[first, second]) as profiler:
        work(profiler, 3)
        for seconds, late in (0.5, first), (0.7, second):
            threading.Timer(seconds, late.followed.set).start()
    recorded = sc.load(tmp_path / "run").ranks[0].steps
    assert len(recorded) and first.facts["step"].tolist() == second.facts["step"].tolist() == recorded["step"].tolist()
