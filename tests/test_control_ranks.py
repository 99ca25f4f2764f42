"""Ranks of one host that are asked for a window record the same steps, whatever becomes of some of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.runtime.control.job_directory import Current
from tests.control_rank import GONE, RankSettings, Steps
from tests.launch import launched
from tests.support import ROOT

RANKS = 8
SPEEDS = (1.0, 2.0, 3.0, 5.0, 4.0, 2.5, 6.0, 1.5)
"""ms per step."""
PATIENCE = 60.0

pytestmark = pytest.mark.timeout(240)


class Job:
    """Ranks that were started."""

    def __init__(self, directory: Path, ranks: Sequence[RankSettings]) -> None:
        self.directory = directory
        self.ranks = ranks
        self.processes: dict[int, subprocess.Popen[Any]] = {}

    def ask(self, run: str, **fields: Any) -> None:
        """Writes the control file as an editor does: a new file in place of the old."""
        draft = self.directory / "draft"
        draft.write_text(json.dumps({"start_step": "next", "run_id": run, **fields}))
        draft.replace(self.directory / "stepscope.json")

    def windows(self, rank: int) -> dict[str, list[int]]:
        """The steps of the windows that a rank has finished, by run id."""
        path = self.directory / f"windows-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        said = [json.loads(line) for line in lines]
        assert len({each["run"] for each in said}) == len(said), f"rank {rank} has recorded something twice"
        for each in said:
            first, last = each["steps"][0], each["steps"][-1]
            assert each["name"] == f"rank{rank}_start{first}_stop{last}_{each['run']}"
        return {each["run"]: each["steps"] for each in said}

    def steps_of(self, run: str, ranks: Sequence[int] = range(RANKS)) -> set[tuple[int, ...]]:
        """Waits until all these ranks have a window, and gives its steps: one set of them, if all is well."""
        wait(lambda: all(run in self.windows(rank) for rank in ranks), lambda: f"{run} is not on all of {list(ranks)}")
        return {tuple(self.windows(rank)[run]) for rank in ranks}

    def leader(self) -> int:
        """The rank that leads."""
        (path,) = self.directory.glob(".stepscope-*/current.json")
        pid = msgspec.json.decode(path.read_bytes(), type=Current).leader.pid
        return next(rank for rank, process in self.processes.items() if process.pid == pid)

    def kill(self, rank: int) -> None:
        """SIGKILL; the others go on without it."""
        self.processes[rank].kill()
        self.processes[rank].wait()
        Steps(self.directory / "steps", len(self.ranks)).put(rank, GONE)


def wait(condition: Callable[[], object], what: Callable[[], str]) -> None:
    """Looks until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


@contextmanager
def job(directory: Path, ranks: Sequence[RankSettings]) -> Generator[Job]:
    """Starts the ranks, and ends them in order."""
    running = Job(directory, ranks)
    with ExitStack() as stack:
        for each in ranks:
            command = [sys.executable, "-m", "tests.control_rank", msgspec.json.encode(each).decode()]
            running.processes[each.rank] = stack.enter_context(launched(command, cwd=ROOT))
        wait(
            lambda: all(each.late or (directory / f"ready-{each.rank}").exists() for each in ranks), lambda: "no start"
        )
        yield running
        (directory / "stop").touch()
        for rank, process in running.processes.items():
            assert process.wait(PATIENCE) in (0, -signal.SIGKILL), f"rank {rank}"


def rank_settings(directory: Path, **more: Any) -> list[RankSettings]:
    """Eight ranks at different speeds; `more` are lists of a value for each."""
    return [
        RankSettings(
            directory=str(directory),
            rank=rank,
            world=RANKS,
            step_ms=SPEEDS[rank],
            **{name: values[rank] for name, values in more.items()},
        )
        for rank in range(RANKS)
    ]


@pytest.mark.checklist("A20", "A28", "A33", "F6", "F10")
def test_eight_ranks_at_different_speeds_record_the_same_steps(tmp_path: Path) -> None:
    """Whatever was asked for and however often: the sets of steps are the same."""
    with job(tmp_path, rank_settings(tmp_path)) as running:
        for number in range(4):
            running.ask(f"next{number}", steps=3 + number)
            (steps,) = running.steps_of(f"next{number}")
            assert list(steps) == list(range(steps[0], steps[0] + 3 + number))
        far = max(running.windows(rank)["next3"][-1] for rank in range(RANKS)) + 1500
        running.ask("chosen", start_step=far, stop_step=far + 1)
        assert running.steps_of("chosen") == {(far, far + 1)}
        running.ask("grouped", steps=5, granularity=4)
        (steps,) = running.steps_of("grouped")
        assert steps[0] % 4 == 0 and len(steps) == 8
        running.ask("some", steps=2, ranks="1,3-4")
        assert len(running.steps_of("some", [1, 3, 4])) == 1
        running.ask("late", start_step=5, stop_step=9)
        status = tmp_path / "stepscope.json.status.json"
        wait(lambda: "is past" in status.read_text(), lambda: "the refusal is not in the status file")
    for rank in range(RANKS):
        told = set(running.windows(rank))
        assert ("some" in told) == (rank in (1, 3, 4))
        assert "late" not in told


@pytest.mark.checklist("A20", "A23", "F9")
def test_a_rank_that_is_killed_stops_nobody(tmp_path: Path) -> None:
    """The leader dies while a window is asked for: another leads, and those that live record the same steps."""
    with job(tmp_path, rank_settings(tmp_path)) as running:
        running.ask("before", steps=2)
        assert len(running.steps_of("before")) == 1
        leader = running.leader()
        running.ask("amid", steps=3)
        running.kill(leader)
        left = [rank for rank in range(RANKS) if rank != leader]
        assert len(running.steps_of("amid", left)) == 1
        assert running.windows(leader).get("amid") in (None, list(next(iter(running.steps_of("amid", left)))))
        second = left[3] if left[3] != running.leader() else left[4]
        running.kill(second)
        left.remove(second)
        running.ask("after", steps=2)
        assert len(running.steps_of("after", left)) == 1


@pytest.mark.checklist("F10")
def test_ranks_that_end_early_or_begin_late(tmp_path: Path) -> None:
    """Nobody waits for a rank that is done; one that is still to come is waited for."""
    ranks = rank_settings(
        tmp_path,
        late=[2.0 if rank == 5 else 0.0 for rank in range(RANKS)],
    )
    with job(tmp_path, ranks) as running:
        running.ask("late", steps=2)
        assert len(running.steps_of("late")) == 1
        (tmp_path / "stop-2").touch()
        wait(lambda: running.processes[2].poll() is not None, lambda: "rank 2 does not end")
        running.ask("early", steps=2)
        left = [rank for rank in range(RANKS) if rank != 2]
        assert len(running.steps_of("early", left)) == 1


@pytest.mark.checklist("A21", "A23", "F9")
def test_a_killed_job_leaves_nothing_that_the_next_one_heeds(tmp_path: Path) -> None:
    """Every rank is killed amid an agreement. What is left is files; the next run takes the directory over."""
    ranks = rank_settings(tmp_path)
    with job(tmp_path, ranks) as running:
        running.ask("old", start_step=100_000, steps=2)
        (directory,) = tmp_path.glob(".stepscope-*")
        wait(lambda: list(directory.glob("run-*/decision-1.json")), lambda: "nothing is decided")
        for rank in range(RANKS):
            running.kill(rank)
    (old,) = directory.glob("run-*")
    assert directory.stat().st_mode & 0o777 == 0o700
    for name in ("steps", "stop", "stepscope.json", *(f"ready-{rank}" for rank in range(RANKS))):
        (tmp_path / name).unlink()
    with job(tmp_path, ranks) as running:
        running.ask("new", steps=2)
        assert len(running.steps_of("new")) == 1
    (new,) = directory.glob("run-*")
    assert new != old
    assert all("old" not in running.windows(rank) for rank in range(RANKS))


@pytest.mark.checklist("A21", "F9")
def test_jobs_with_one_directory_do_not_meet(tmp_path: Path) -> None:
    """Two jobs are told apart by their names, also where their clocks, users and files are the same."""
    jobs = [
        [
            RankSettings(
                directory=str(tmp_path / name), rank=rank, world=2, job=name, control=str(tmp_path / "stepscope.json")
            )
            for rank in range(2)
        ]
        for name in ("one", "two")
    ]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with job(tmp_path / "one", jobs[0]) as one, job(tmp_path / "two", jobs[1]) as two:
        (tmp_path / "stepscope.json").write_text('{"start_step": "next", "steps": 2, "run_id": "both"}')
        for running in (one, two):
            assert len(running.steps_of("both", range(2))) == 1
        directories = list(tmp_path.glob(".stepscope-*"))
        assert len(directories) == 2
        for directory in directories:
            (run,) = directory.glob("run-*")
            assert sorted(path.name for path in run.glob("member-*")) == ["member-0.json", "member-1.json"]
    assert os.listdir(tmp_path / "one") != []
