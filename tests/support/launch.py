"""Programs that tests start: when the test is done with one, or fails, or is interrupted, it is ended with its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tests.stress.torture.processes import end_tree
from tests.support.forked import Forked, request_of

STREAMS = {"stdin", "stdout", "stderr", "text"}
STRICT = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
"""Flags of the interpreter: warnings are errors, but for the one that Python 3.15 raises where a process with threads forks."""


Server = Literal["plain", "command", "torch"]
"""Which of the servers of `tests.support.fork_server` a program starts from: by what it imports."""


def start(
    command: Sequence[str | os.PathLike[str]],
    *,
    server: Server | None = "plain",
    cwd: Any = None,
    env: Any = None,
    **settings: Any,
) -> subprocess.Popen[Any]:
    """Starts a program in a session of its own; one of Python as a fork of a server, if that can be.

    Args:
        command: the program.
        server: that it starts from. None for programs to which it matters how they start: one that looks at its
            process, or at what has been imported, or in what order.
        cwd: its directory.
        env: its environment.
        settings: others of `subprocess.Popen`.
    """
    request = None if server is None or settings.keys() - STREAMS else request_of(command, cwd, env)
    if server is None or request is None:
        return subprocess.Popen(command, start_new_session=True, cwd=cwd, env=env, **settings)
    return Forked(request, server, **settings)


@contextlib.contextmanager
def launched(command: Sequence[str | os.PathLike[str]], **settings: Any) -> Generator[subprocess.Popen[Any]]:
    """A program in a session of its own. After the body it is ended if it runs: it, its children and its group.

    Args:
        command: the program.
        settings: those of `start`.
    """
    with start(command, **settings) as process:
        try:
            yield process
        finally:
            if process.returncode is None:  # not waited for, so its number is nobody else's
                end_tree(process.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def run_to_end(
    command: Sequence[str | os.PathLike[str]],
    *,
    timeout: float = 100,
    cwd: Path | str | None = None,
    environment: Mapping[str, str] | None = None,
    check: bool = False,
    server: Server | None = "plain",
) -> subprocess.CompletedProcess[str]:
    """Runs a program, and returns its status and what it printed.

    Args:
        server: as for `start`.

    Raises:
        AssertionError: if it is to be checked and did not end with 0.
        subprocess.TimeoutExpired: after `timeout` seconds; it is ended then.
    """
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with launched(command, cwd=cwd, env=environment, server=server, **streams) as process:
        out, errors = process.communicate(timeout=timeout)
    if check and process.returncode:
        raise AssertionError(f"the program ended with {process.returncode}:\n{errors}{out}")
    return subprocess.CompletedProcess(command, process.returncode, out, errors)
