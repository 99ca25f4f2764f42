"""Ranks of one host that are asked for a window record the same steps, whatever becomes of some of them."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from stepscope.runtime.control.entry_points.client import ask_process
from stepscope.runtime.requests.command import Command
from stepscope.runtime.requests.window_request import WindowRequest
from tests.support.control_jobs import job, rank_settings, wait
from tests.support.control_rank import RankSettings

RANKS = 8


@pytest.mark.checklist("A20", "A28", "A33", "F6", "F10")
def test_eight_ranks_at_different_speeds_record_the_same_steps(tmp_path: Path) -> None:
    """Whatever was asked for and however often: the sets of steps are the same."""
    with job(tmp_path, rank_settings(tmp_path)) as running:
        for number in range(2):
            running.ask(f"next{number}", steps=3 + number)
            (steps,) = running.steps_of(f"next{number}")
            assert list(steps) == list(range(steps[0], steps[0] + 3 + number))
        far = max(running.windows(rank)["next1"][-1] for rank in range(RANKS)) + 1000
        running.ask("chosen", start_step=far, stop_step=far + 1)
        assert running.steps_of("chosen") == {(far, far + 1)}
        running.ask("grouped", steps=5, granularity=4)
        (steps,) = running.steps_of("grouped")
        assert steps[0] % 4 == 0 and len(steps) == 8
        running.ask("some", steps=2, ranks="1,3-4")
        ((first, last),) = running.steps_of("some", [1, 3, 4])
        answer = f"recording steps {first}-{last} (by ranks 1,3-4)"
        running.until("some", lambda status: (status.get("run_id"), status["answer"]) == ("some", answer))
        running.ask("late", start_step=5, stop_step=9)
        running.until_answer("is past")
    for rank in range(RANKS):
        told = set(running.windows(rank))
        assert ("some" in told) == (rank in (1, 3, 4))
        assert "late" not in told


def test_a_signal_to_all_ranks_is_one_request(tmp_path: Path) -> None:
    """One window on all of them; when it is over a signal asks for another one."""
    count = 4
    ranks = rank_settings(tmp_path, count, signal=[True] * count)
    with job(tmp_path, ranks) as running:
        for number in range(1, 3):
            for process in running.processes.values():
                process.send_signal(signal.SIGUSR2)
            wait(partial(running.all_signalled, number), lambda: "no window")
        running.ask("after", steps=2)
        running.steps_of("after")
    windows = [running.signalled(rank) for rank in range(count)]
    assert windows == [windows[0]] * count and len(windows[0]) == 2, windows


@pytest.mark.checklist("F6")
def test_a_request_that_was_given_up_can_be_asked_again(tmp_path: Path) -> None:
    """Rank 0 did not answer in time; when it goes on the same request is recorded, and nothing that was given up."""
    count = 3
    with job(tmp_path, rank_settings(tmp_path, count, patience=[1.5] * count)) as running:
        running.ask("before", steps=2)
        running.steps_of("before")
        running.processes[0].send_signal(signal.SIGSTOP)
        command = Command(command="arm", request=WindowRequest(steps=2, run_id="again"))
        (answer,) = ask_process(running.processes[1].pid, command, 60)
        assert answer.armed is not None and not answer.armed
        assert "rank 0, which chooses the steps, did not answer in 1.5 s" in answer.armed.reason
        running.processes[0].send_signal(signal.SIGCONT)
        running.ask("between", steps=2)
        assert len(running.steps_of("between")) == 1
        (answer,) = ask_process(running.processes[1].pid, command, 60)
        assert answer.armed
        assert len(running.steps_of("again")) == 1


@pytest.mark.checklist("A34", "F5", "F10")
def test_eight_ranks_at_different_speeds_end_with_the_same_step(tmp_path: Path) -> None:
    """A window that is extended, and one that is aborted: by the file, or one rank's socket, whoever has begun it."""
    with job(tmp_path, rank_settings(tmp_path)) as running:
        running.ask("short", steps=400)
        running.until_window("running")
        running.write(command="extend", steps=5)
        running.until("extended", lambda status: status.get("request") == "extend by 5 steps")
        (steps,) = running.steps_of("short")
        answer = running.status()["answer"]
        assert len(steps) == (405 if "extended" in answer else 400), answer
        assert all(running.said(rank)["short"]["complete"] for rank in range(RANKS))

        running.ask("long", steps=1_000_000, granularity=4)
        running.until_window("running")
        running.write(command="extend", steps=5)
        running.until_answer("extended to step")
        running.ask("waits", steps=2, overlap="queue")
        running.until_window("queued")
        running.write(command="abort")
        (steps,) = running.steps_of("long")
        begun, end = steps[0], steps[-1]
        noted = {running.said(rank)["long"]["note"] for rank in range(RANKS)}
        assert noted == {f"extended to step {begun + 1_000_007}; aborted after step {end}: the control file says so"}
        assert not any(running.said(rank)["long"]["complete"] for rank in range(RANKS))
        running.until_window("withdrawn")
        running.write(command="extend", steps=6)
        running.until_answer("no armed window runs")

        running.ask("other", steps=1_000_000)
        running.until_window("running")
        pid = running.processes[5].pid
        (answer,) = ask_process(pid, Command(command="extend", steps=3), 60)
        assert answer.armed is not None and "extended to step" in answer.armed.reason, answer
        (answer,) = ask_process(pid, Command(command="abort", run_id="other"), 60)
        assert answer.armed is not None and answer.armed.accepted, answer
        (steps,) = running.steps_of("other")
        assert (answer.rank, steps[-1]) == (5, answer.armed.last)
        (answer,) = ask_process(pid, Command(command="abort"), 60)
        assert answer.windows == () and answer.armed is None and not answer.error


@pytest.mark.checklist("A20", "A23", "F9")
def test_a_rank_that_is_killed_stops_nobody(tmp_path: Path) -> None:
    """The others record the same steps. After rank 0 nothing can be asked for: the answer says so, what is planned stands."""
    count = 5
    with job(tmp_path, rank_settings(tmp_path, count, patience=[1.5] * count)) as running:
        running.ask("before", steps=2)
        assert len(running.steps_of("before")) == 1
        running.ask("amid", steps=3)
        running.kill(3)
        others = [0, 1, 2, 4]
        assert len(running.steps_of("amid", others)) == 1
        running.ask("planned", steps=2)
        running.until("planned", lambda status: status.get("run_id") == "planned" and "recording" in status["answer"])
        running.kill(0)
        assert len(running.steps_of("planned", [1, 2, 4])) == 1
        command = Command(command="arm", request=WindowRequest(steps=2, run_id="after"))
        (answer,) = ask_process(running.processes[1].pid, command, 60)
        assert answer.armed is not None and not answer.armed
        assert "rank 0, which chooses the steps, did not answer" in answer.armed.reason
    assert all("after" not in running.windows(rank) for rank in range(count))


@pytest.mark.checklist("F10")
def test_ranks_that_end_early_or_begin_late(tmp_path: Path) -> None:
    """Nobody waits for a rank that is done; one that is still to come is waited for."""
    ranks = rank_settings(tmp_path, 4, late=[0.0, 0.0, 0.0, 1.0])
    with job(tmp_path, ranks) as running:
        running.ask("late", steps=2)
        assert len(running.steps_of("late")) == 1
        (tmp_path / "stop-2").touch()
        wait(lambda: running.processes[2].poll() is not None, lambda: "rank 2 does not end")
        running.ask("early", steps=2)
        assert len(running.steps_of("early", [0, 1, 3])) == 1


@pytest.mark.checklist("A21", "A23", "F9")
def test_a_killed_job_leaves_nothing_that_the_next_one_heeds(tmp_path: Path) -> None:
    """Every rank is killed before a window begins. The files that stay are deleted by the next run's rank 0."""
    count = 3
    ranks = rank_settings(tmp_path, count)
    with job(tmp_path, ranks) as running:
        running.ask("old", start_step=1000, steps=2)
        (directory,) = tmp_path.glob(".stepscope-*")
        wait(lambda: list(directory.glob("run-*/plan-1.json")), lambda: "nothing is planned")
        for rank in range(count):
            running.kill(rank)
    (old,) = directory.glob("run-*")
    assert directory.stat().st_mode & 0o777 == 0o700
    for name in ("steps", "stop", "stepscope.json", *(f"ready-{rank}" for rank in range(count))):
        (tmp_path / name).unlink()
    with job(tmp_path, ranks) as running:
        running.ask("new", steps=2)
        assert len(running.steps_of("new")) == 1
    (new,) = directory.glob("run-*")
    assert new != old
    assert all("old" not in running.windows(rank) for rank in range(count))


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
            assert len(running.steps_of("both")) == 1
        directories = list(tmp_path.glob(".stepscope-*"))
        assert len(directories) == 2
        for directory in directories:
            (run,) = directory.glob("run-*")
            assert sorted(path.name for path in run.iterdir()) == ["plan-1.json", "rank-1"]
    assert os.listdir(tmp_path / "one") != []
