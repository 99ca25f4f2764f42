"""Programs that tests start: when the test is done with one, or fails, or is interrupted, it is ended with its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.stress.torture.processes import end_tree


@contextlib.contextmanager
def launched(command: Sequence[str], **settings: Any) -> Generator[subprocess.Popen[Any]]:
    """A program in a session of its own. What the body leaves running is ended: it, its children and its group.

    Args:
        command: the program.
        settings: those of `subprocess.Popen`.
    """
    with subprocess.Popen(command, start_new_session=True, **settings) as process:
        try:
            yield process
        finally:
            if process.returncode is None:  # not waited for, so its number is nobody else's
                end_tree(process.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def run_to_end(
    command: Sequence[str],
    *,
    timeout: float = 100,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program, and returns its status and what it printed.

    Raises:
        subprocess.TimeoutExpired: after `timeout` seconds; it is ended then.
    """
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with launched(command, cwd=cwd, env=environment, **streams) as process:
        out, errors = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)
