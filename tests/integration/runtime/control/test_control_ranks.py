"""Ranks that are asked for a window record the same steps, whatever becomes of some of them: on one machine, or on several that
share a directory and nothing else."""

from __future__ import annotations

import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from stepscope.runtime.control.entry_points.client import ask_process
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.command import Command
from stepscope.runtime.requests.window_request import WindowRequest
from tests.support.basics import missing
from tests.support.control_jobs import job, rank_settings, wait

RANKS = 8
MACHINE = (
    *("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("--uts", "--ipc", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "machine"),
)
"""Begins a command on a machine of its own, as far as programs see: names and numbers of processes, memory that is shared,
the place of sessions and the machine's name are its own. Files are shared."""
HOSTS = ((0, 1), (2, 3), (4, 5))


@pytest.mark.checklist("A20", "A28", "A33", "F6", "F10")
def test_eight_ranks_at_different_speeds_record_the_same_steps(tmp_path: Path) -> None:
    """The sets of steps are the same for requests in the file and by a signal to all ranks, however many they are."""
    with job(tmp_path, rank_settings(tmp_path, signal=[True] * RANKS)) as running:
        for number in range(2):
            running.request_window(f"next{number}", steps=3 + number)
            (steps,) = running.steps_of(f"next{number}")
            assert list(steps) == list(range(steps[0], steps[0] + 3 + number))
        far = max(running.windows(rank)["next1"][-1] for rank in range(RANKS)) + 1000
        running.request_window("chosen", start_step=far, stop_step=far + 1)
        assert running.steps_of("chosen") == {(far, far + 1)}
        running.request_window("some", steps=2, ranks="1,3-4")
        ((first, last),) = running.steps_of("some", [1, 3, 4])
        answer = f"recording steps {first}-{last} (by ranks 1,3-4)"
        running.until("some", lambda status: (status.get("run_id"), status["answer"]) == ("some", answer))
        for number in range(1, 3):
            for process in running.processes.values():
                process.send_signal(signal.SIGUSR2)
            wait(partial(running.all_signalled, number), lambda: "no window")
        running.request_window("after", steps=2)
        running.steps_of("after")
    windows = [running.signalled(rank) for rank in range(RANKS)]
    assert windows == [windows[0]] * RANKS and len(windows[0]) == 2, windows
    for rank in range(RANKS):
        assert ("some" in running.windows(rank)) == (rank in (1, 3, 4))


@pytest.mark.checklist("A34", "F5", "F10")
def test_eight_ranks_at_different_speeds_end_with_the_same_step(tmp_path: Path) -> None:
    """A window that is extended, and one that is aborted: by the file, or one rank's socket, whoever has begun it."""
    with job(tmp_path, rank_settings(tmp_path)) as running:
        running.request_window("long", steps=1_000_000, granularity=4)
        running.until_window("running")
        running.write(command="extend", steps=5)
        running.until_answer("extended to step")
        running.request_window("waits", steps=2, overlap="queue")
        running.until_window("queued")
        running.write(command="abort")
        (steps,) = running.steps_of("long")
        begun, end = steps[0], steps[-1]
        noted = {running.finished_windows(rank)["long"]["note"] for rank in range(RANKS)}
        assert noted == {f"extended to step {begun + 1_000_007}; aborted after step {end}: the control file says so"}
        assert not any(running.finished_windows(rank)["long"]["complete"] for rank in range(RANKS))
        running.until_window("withdrawn")

        running.request_window("other", steps=1_000_000)
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


@pytest.mark.checklist("A20", "A23", "F6", "F9", "F10")
def test_ranks_that_begin_late_end_early_or_never_answer(tmp_path: Path) -> None:
    """One that is still to come is waited for; nobody waits for one that has ended, or was killed. While rank 0 does not answer
    nothing can be asked for: the answer says so, the same request is recorded when it goes on, and what is planned stands."""
    settings = rank_settings(tmp_path, 5, patience=[1.5] * 5, late=[0.0, 0.0, 0.0, 0.0, 1.0])
    with job(tmp_path, settings) as running:
        first, second = (running.processes[rank] for rank in (0, 1))

        def asked_of_rank_1(run: str) -> Armed:
            command = Command(command="arm", request=WindowRequest(steps=2, run_id=run))
            (answer,) = ask_process(second.pid, command, 60)
            assert answer.armed is not None
            return answer.armed

        running.request_window("late", steps=2)
        assert len(running.steps_of("late")) == 1
        (tmp_path / "stop-2").touch()
        wait(lambda: running.processes[2].poll() is not None, lambda: "rank 2 does not end")
        running.request_window("early", steps=3)
        running.kill(3)
        assert len(running.steps_of("early", [0, 1, 4])) == 1

        first.send_signal(signal.SIGSTOP)
        silent = "rank 0, which chooses the steps, did not answer in 1.5 s"
        refused = asked_of_rank_1("again")
        assert not refused and silent in refused.reason
        first.send_signal(signal.SIGCONT)
        running.request_window("between", steps=2)
        assert len(running.steps_of("between", [0, 1, 4])) == 1
        assert asked_of_rank_1("again")
        assert len(running.steps_of("again", [0, 1, 4])) == 1

        running.request_window("planned", steps=2)
        running.until("planned", lambda status: status.get("run_id") == "planned" and "recording" in status["answer"])
        running.kill(0)
        assert len(running.steps_of("planned", [1, 4])) == 1
        assert silent in asked_of_rank_1("after").reason
    assert all("after" not in running.windows(rank) for rank in range(5))


@pytest.mark.checklist("A15", "A20", "A34", "F5", "F10")
def test_hosts_that_share_a_directory_record_the_same_steps(tmp_path: Path) -> None:
    """No process can be looked at from another machine; also when one of them is lost."""
    try:
        made = subprocess.run([*MACHINE, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        missing("unshare", "It is part of util-linux.")
    if made.returncode:
        missing("leave to make namespaces", f"The system says: {made.stderr.strip()}")
    ranks = rank_settings(
        tmp_path,
        6,
        host=["one", "one", "two", "two", "three", "three"],
        patience=[4.0] * 6,
    )
    with job(tmp_path, ranks, dict.fromkeys(HOSTS, MACHINE)) as running:
        running.request_window("next", steps=3)
        assert len(running.steps_of("next")) == 1
        running.request_window("long", steps=1_000_000)
        running.until_window("running")
        running.write(command="extend", steps=7)
        running.until_answer("extended to step")
        running.write(command="abort")
        (steps,) = running.steps_of("long")
        noted = {running.finished_windows(rank)["long"]["note"] for rank in range(6)}
        aborted = f"aborted after step {steps[-1]}: the control file says so"
        assert noted == {f"extended to step {steps[0] + 1_000_006}; {aborted}"}

        running.kill(*HOSTS[1])
        running.request_window("after", steps=2)
        assert len(running.steps_of("after", [0, 1, 4, 5])) == 1
