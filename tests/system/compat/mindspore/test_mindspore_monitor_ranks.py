"""`DynamicProfilerMonitor` in several processes of one job: all of them record the same steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.runtime.control.file_requests import PENDING
from tests.support import mindspore_output as output
from tests.support.basics import ROOT
from tests.support.control_jobs import wait
from tests.support.control_rank import GONE, Steps
from tests.support.launch import launched
from tests.support.monitor_rank import MonitorSettings

SPEEDS = (4.0, 2.0, 8.0, 6.0)
"""ms per step."""
POLLS = (0.6, 1.0, 0.5, 0.75)
"""Seconds between two looks at the file."""


class Job:
    """Ranks that were started."""

    def __init__(self, directory: Path, ranks: int, sink: int) -> None:
        self.directory, self.sink = directory, sink
        self.config = directory / "cfg" / "profiler_config.json"
        self.steps = Steps(directory / "steps", ranks)
        self.processes: list[subprocess.Popen[Any]] = []
        self.killed: set[int] = set()

    def ask(self, **fields: Any) -> None:
        """Writes the configuration as an editor does: a new file in place of the old."""
        draft = self.directory / "draft"
        draft.write_text(json.dumps({"analyse_mode": -1, **fields}))
        os.replace(draft, self.config)

    def status(self) -> dict[str, Any]:
        """What rank 0 says of how things stand."""
        path = self.config.with_name(f"{self.config.name}.status.json")
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def answer(self, run_id: str) -> str:
        """Waits for what rank 0 says of a request."""
        found: dict[str, Any] = {}

        def has_answered() -> bool:
            found.update(self.status())
            return found.get("run_id") == run_id and found["answer"] != PENDING

        wait(has_answered, lambda: str(found))
        return str(found["answer"])

    def until_answer(self, text: str) -> None:
        """Waits until rank 0 says this."""
        wait(lambda: text in self.status().get("answer", ""), lambda: f"{text}: {self.status()}")

    def until_running(self, rank: int) -> None:
        """Waits until a rank records."""
        wait(
            lambda: list((self.directory / "out").glob(f"rank{rank}_*/*/profiler_metadata.json")),
            lambda: f"rank {rank}",
        )

    def windows(self, rank: int) -> dict[str, tuple[int, int]]:
        """First and last step of what a rank has finished, by run id; the name and the content say the same."""
        found: dict[str, tuple[int, int]] = {}
        for facts in (self.directory / "out").glob(f"rank{rank}_start*_stop*/*/profiler_metadata.json"):
            with suppress(FileNotFoundError):  # an aborted window is renamed, after it was listed
                found.update(self._finished(facts))
        return found

    def _finished(self, facts: Path) -> dict[str, tuple[int, int]]:
        """The window of one directory, or nothing while it is being written."""
        about = output.info(facts.parent)
        if "complete" not in about:
            return {}
        name = re.fullmatch(r"rank\d+_start(\d+)_stop(\d+)", facts.parent.parent.name)
        assert name is not None
        first, last = int(name[1]), int(name[2])
        calls = (last - first + 1) // self.sink
        if about["steps"][:calls] != list(range(first, first + calls)) or len(about["steps"]) > calls + 1:
            return {}  # it is finished, and not renamed yet
        return {json.loads(facts.read_text())["dynamic_profiler"]["run_id"]: (first, last)}

    def window(self, run_id: str, ranks: Sequence[int]) -> tuple[int, int]:
        """Waits until these ranks have finished a window, and returns its first and last step, the same on all."""
        wait(
            lambda: all(run_id in self.windows(rank) for rank in ranks),
            lambda: f"{run_id}: {[self.windows(rank) for rank in ranks]} {self.status()}",
        )
        (steps,) = {self.windows(rank)[run_id] for rank in ranks}
        return steps

    def kill(self, rank: int) -> None:
        """SIGKILL; the others go on."""
        self.killed.add(rank)
        self.processes[rank].kill()
        self.processes[rank].wait()
        self.steps.put(rank, GONE)


@contextmanager
def job(directory: Path, ranks: int = 4, *, sink: int = 1, poll: float | None = None) -> Generator[Job]:
    """Starts the ranks, and ends them in order."""
    running = Job(directory, ranks, sink)
    with ExitStack() as stack:
        for rank in range(ranks):
            told = MonitorSettings(
                directory=str(directory),
                rank=rank,
                world=ranks,
                step_ms=SPEEDS[rank],
                poll=poll or POLLS[rank],
                sink=sink,
            )
            program = [sys.executable, "-m", "tests.support.monitor_rank", msgspec.json.encode(told).decode()]
            running.processes.append(stack.enter_context(launched(program, cwd=ROOT)))
        wait(lambda: all((directory / f"ready-{rank}").exists() for rank in range(ranks)), lambda: "no start")
        yield running
        (directory / "stop").touch()
        for rank, process in enumerate(running.processes):
            assert process.wait(60) == 0 or rank in running.killed, f"rank {rank}"
        running.steps.close()


@pytest.mark.checklist("A20", "A28", "A40", "F3", "F10")
def test_ranks_that_read_at_different_times_record_the_same_steps(tmp_path: Path) -> None:
    """Nobody is told of changes, so each rank reads the file when its turn comes: before the first step or after it."""
    everybody = range(4)
    with job(tmp_path) as running:
        expected: dict[str, tuple[int, int]] = {}
        for number, ahead in enumerate((60, 600)):
            run_id, start = f"near{number}", running.steps.least() + ahead
            running.ask(start_step=start, stop_step=start + 2, run_id=run_id)
            answer = running.answer(run_id)
            if answer.startswith("recording"):
                expected[run_id] = start, start + 2
                assert running.window(run_id, everybody) == expected[run_id]
            else:
                assert f"start_step {start} is past, or too near" in answer
        running.ask(start_step="next", steps=3, run_id="next")
        first, last = expected["next"] = running.window("next", everybody)
        assert last - first == 2
        assert running.answer("next").startswith(f"recording steps {first}-{last}")
        running.ask(start_step="next", steps=2, run_id="some", ranks="1,3")
        first, last = running.window("some", [1, 3])
        assert running.answer("some") == f"recording steps {first}-{last} (by ranks 1,3)"
        running.ask(start_step=2, stop_step=5, run_id="past")
        assert "start_step 2 is past" in running.answer("past")
    for rank in everybody:
        found = running.windows(rank)
        assert (found.pop("some", None) is not None) == (rank in (1, 3))
        assert found == expected


@pytest.mark.checklist("A30", "A34", "F5", "F10")
def test_ranks_end_a_window_with_the_same_step(tmp_path: Path) -> None:
    """It is extended, and aborted, by the file, which each rank reads when its turn comes."""
    with job(tmp_path, 3) as running:
        running.ask(start_step="next", steps=100_000, run_id="long")
        for rank in range(3):
            running.until_running(rank)
        running.ask(start_step="next", steps=10, command="extend")
        running.until_answer("extended to step")
        running.ask(start_step="next", command="abort")
        running.until_answer("aborted with step")
        first, last = running.window("long", range(3))
        reason = f"extended to step {first + 100_009}; aborted after step {last}: it was aborted"
        wait(lambda: running.status()["windows"][0]["reason"] == reason, lambda: str(running.status()))


@pytest.mark.checklist("A23", "B19", "F8", "F9")
def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """The others record the same whole groups of steps, and a window of the one that died has the steps that it had."""
    with job(tmp_path, 3, sink=4, poll=0.1) as running:
        running.ask(start_step="next", steps=5, run_id="before")
        first, last = running.window("before", range(3))
        assert (first % 4, last - first) == (1, 7)
        running.kill(1)
        running.ask(start_step="next", steps=3, run_id="after")
        first, last = running.window("after", [0, 2])
        assert (first % 4, last - first) == (1, 3)
