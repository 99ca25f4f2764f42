"""`DynamicProfilerMonitor` in several processes of one job: all of them record the same steps."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stepscope.runtime.control.request_router import PENDING
from tests.support import mindspore_output as output
from tests.support.control_jobs import Job, job, wait
from tests.support.monitor_rank import MonitorSettings

SPEEDS = (4.0, 2.0, 8.0, 6.0)
"""ms per step."""
POLLS = (0.6, 1.0, 0.5, 0.75)
"""Seconds between two looks at the file."""


class MonitorJob(Job):
    """Ranks that were started, each with a monitor."""

    control_file = "cfg/profiler_config.json"

    def __init__(self, directory: Path, ranks: Sequence[MonitorSettings]) -> None:
        super().__init__(directory, ranks)
        self.sink = ranks[0].sink

    def write(self, **fields: Any) -> None:
        """Writes the configuration."""
        super().write(analyse_mode=-1, **fields)

    def answer(self, run_id: str) -> str:
        """Waits for what rank 0 says of a request."""
        found: dict[str, Any] = {}

        def has_answered() -> bool:
            found.update(self.status())
            return found.get("run_id") == run_id and found["answer"] != PENDING

        wait(has_answered, lambda: str(found))
        return str(found["answer"])

    def until_running(self, rank: int) -> None:
        """Waits until a rank records."""
        wait(
            lambda: list((self.directory / "out").glob(f"rank{rank}_*/*/profiler_metadata.json")),
            lambda: f"rank {rank}",
        )

    def finished(self, rank: int) -> dict[str, tuple[int, int]]:
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
        name = re.fullmatch(r"rank\d+_start(\d+)_stop(\d+)(_.+)?", facts.parent.parent.name)
        assert name is not None
        first, last = int(name[1]), int(name[2])
        calls = (last - first + 1) // self.sink
        if about["steps"][:calls] != list(range(first, first + calls)) or len(about["steps"]) > calls + 1:
            return {}  # it is finished, and not renamed yet
        return {json.loads(facts.read_text())["dynamic_profiler"]["run_id"]: (first, last)}

    def window(self, run_id: str, ranks: Sequence[int]) -> tuple[int, int]:
        """Waits until these ranks have finished a window, and returns its first and last step, the same on all."""
        wait(
            lambda: all(run_id in self.finished(rank) for rank in ranks),
            lambda: f"{run_id}: {[self.finished(rank) for rank in ranks]} {self.status()}",
        )
        (steps,) = {self.finished(rank)[run_id] for rank in ranks}
        return steps


@contextmanager
def monitors(directory: Path, count: int = 4, *, sink: int = 1, poll: float | None = None) -> Generator[MonitorJob]:
    """Starts ranks with a monitor each, and ends them in order."""
    ranks = [
        MonitorSettings(
            directory=str(directory),
            rank=rank,
            world=count,
            step_ms=SPEEDS[rank],
            poll=poll or POLLS[rank],
            sink=sink,
        )
        for rank in range(count)
    ]
    running = MonitorJob(directory, ranks)
    with job(directory, ranks, module="tests.support.monitor_rank", running=running):
        yield running


@pytest.mark.checklist("A20", "A28", "A40", "F3", "F10")
def test_ranks_that_read_at_different_times_record_the_same_steps(tmp_path: Path) -> None:
    """Nobody gets a notice of changes, so each rank reads the file when its turn comes: before the first step or after it."""
    everybody = range(4)
    with monitors(tmp_path) as running:
        expected: dict[str, tuple[int, int]] = {}
        for number, ahead in enumerate((60, 600)):
            run_id, start = f"near{number}", running.steps.least() + ahead
            running.request_window(run_id, start_step=start, stop_step=start + 2)
            answer = running.answer(run_id)
            if answer.startswith("recording"):
                expected[run_id] = start, start + 2
                assert running.window(run_id, everybody) == expected[run_id]
            else:
                assert f"start_step {start} is past, or too near" in answer
        running.request_window("next", steps=3)
        first, last = expected["next"] = running.window("next", everybody)
        assert last - first == 2
        assert running.answer("next").startswith(f"recording steps {first}-{last}")
        running.request_window("some", steps=2, ranks="1,3")
        first, last = running.window("some", [1, 3])
        assert running.answer("some") == f"recording steps {first}-{last} (by ranks 1,3)"
        running.request_window("past", start_step=2, stop_step=5)
        assert "start_step 2 is past" in running.answer("past")
    for rank in everybody:
        found = running.finished(rank)
        assert (found.pop("some", None) is not None) == (rank in (1, 3))
        assert found == expected


@pytest.mark.checklist("A30", "A34", "F5", "F10")
def test_ranks_end_a_window_with_the_same_step(tmp_path: Path) -> None:
    """It is extended, and aborted, by the file, which each rank reads when its turn comes."""
    with monitors(tmp_path, 3) as running:
        running.request_window("long", steps=100_000)
        for rank in range(3):
            running.until_running(rank)
        running.write(start_step="next", steps=10, command="extend")
        running.until_answer("extended to step")
        running.write(start_step="next", command="abort")
        running.until_answer("aborted with step")
        first, last = running.window("long", range(3))
        reason = f"extended to step {first + 100_009}; aborted after step {last}: it was aborted"
        wait(lambda: running.status()["windows"][0]["reason"] == reason, lambda: str(running.status()))


@pytest.mark.checklist("A23", "B19", "F8", "F9")
def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """The others record the same whole groups of steps, and a window of the one that died has the steps that it had."""
    with monitors(tmp_path, 3, sink=4, poll=0.1) as running:
        running.request_window("before", steps=5)
        first, last = running.window("before", range(3))
        assert (first % 4, last - first) == (1, 7)
        running.kill(1)
        running.request_window("after", steps=3)
        first, last = running.window("after", [0, 2])
        assert (first % 4, last - first) == (1, 3)
