"""Ranks on several machines that share a directory, and nothing else: they record the same steps."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.basics import missing
from tests.support.control_jobs import job, rank_settings

MACHINE = (
    *("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("--uts", "--ipc", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "machine"),
)
"""Begins a command on a machine of its own, as far as programs see: names and numbers of processes, memory that is shared,
the place of sessions and the machine's name are its own. Files are shared."""
HOSTS = ((0, 1), (2, 3), (4, 5))


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    try:
        made = subprocess.run([*MACHINE, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        missing("unshare", "It is part of util-linux.")
    if made.returncode:
        missing("leave to make namespaces", f"The system says: {made.stderr.strip()}")


@pytest.mark.checklist("A15", "A20", "A34", "F5", "F10")
def test_hosts_that_share_a_directory_record_the_same_steps(tmp_path: Path) -> None:
    """No process can be looked at from another machine; also when one of them is lost."""
    ranks = rank_settings(
        tmp_path,
        6,
        host=["one", "one", "two", "two", "three", "three"],
        patience=[4.0] * 6,
    )
    with job(tmp_path, ranks, dict.fromkeys(HOSTS, MACHINE)) as running:
        for number in range(2):
            running.ask(f"next{number}", steps=3 + number)
            (steps,) = running.steps_of(f"next{number}")
            assert list(steps) == list(range(steps[0], steps[0] + 3 + number))

        running.ask("long", steps=1_000_000)
        running.until_window("running")
        running.write(command="extend", steps=7)
        running.until_answer("extended to step")
        running.write(command="abort")
        (steps,) = running.steps_of("long")
        noted = {running.said(rank)["long"]["note"] for rank in range(6)}
        aborted = f"aborted after step {steps[-1]}: the control file says so"
        assert noted == {f"extended to step {steps[0] + 1_000_006}; {aborted}"}

        running.kill(*HOSTS[1])
        running.ask("after", steps=2)
        assert len(running.steps_of("after", [0, 1, 4, 5])) == 1
