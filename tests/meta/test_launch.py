"""Programs that tests start do not outlive them."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.stress.torture.processes import command
from tests.support.launch import launched, run_to_end

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen({SLEEPS!r}, start_new_session=len(sys.argv) > 1)
print(child.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    """Whether a process that was killed ends within some seconds."""
    until = time.monotonic() + 30
    while command(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not command(pid)


@pytest.mark.parametrize("session", [[], ["own"]])
def test_a_failing_body_ends_the_program_and_its_children(session: list[str]) -> None:
    """Also a child in a session of its own."""
    pids: list[int] = []
    with (
        pytest.raises(KeyboardInterrupt),
        launched([sys.executable, "-c", PARENT, *session], stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        pids = [process.pid, int(process.stdout.readline())]
        raise KeyboardInterrupt
    assert all(gone(pid) for pid in pids)


def test_an_orphan_is_ended_with_the_group() -> None:
    """Its parent has ended, and it holds the pipe that is read to its end."""
    orphan = f"import subprocess; print(subprocess.Popen({SLEEPS!r}).pid, flush=True)"
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        run_to_end([sys.executable, "-c", orphan], timeout=2)
    assert gone(int(raised.value.output or b"0"))
