"""Runs the command line as users do: in a process of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Literal

from tests.support.launch import Server, run_to_end

LAUNCHERS = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK_ID")


def python(
    *arguments: object, cwd: Path, env: dict[str, str] | None = None, server: Server | None = "plain"
) -> subprocess.CompletedProcess[str]:
    """Runs Python; its exit code and what it wrote.

    Args:
        server: as for `launch.start`.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    environment = {**inherited, "COLUMNS": "120", **(env or {})}
    return run_to_end([sys.executable, *map(str, arguments)], cwd=cwd, environment=environment, server=server)


def stepscope(*arguments: object, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command `stepscope`."""
    return python("-m", "stepscope", *arguments, cwd=cwd, env=env, server="command")


def on_terminal(
    *arguments: object,
    width: int,
    cwd: Path,
    env: dict[str, str] | None = None,
    stream: Literal["stdout", "stderr"] = "stdout",
    status: int = 0,
) -> list[str]:
    """The lines that a terminal of this width gets from one stream of the command `stepscope`, which must end with `status`."""
    main, secondary = pty.openpty()
    command = [sys.executable, "-m", "stepscope", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm-256color", **(env or {})}
    out, errors = (secondary, None) if stream == "stdout" else (None, secondary)
    with subprocess.Popen(command, stdout=out, stderr=errors, cwd=cwd, env=environment) as program:
        os.close(secondary)
        with os.fdopen(main, "rb", buffering=0) as terminal:
            output = b""
            with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
                while piece := terminal.read(4096):
                    output += piece
    assert program.returncode == status
    return output.decode().splitlines()
