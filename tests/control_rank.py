"""A rank of a job whose loops go at different speeds: it records what it is asked for, and says what that was.

    python -m tests.control_rank '{"directory": ..., "rank": 0, "world": 8, ...}' ['{...}' ...]

Further ranks that are named are children, as on a host that is told of one process only. Each finished window is a line of
`windows-RANK`. The loop ends when the file `stop` is there, or `stop-RANK`. Ranks keep together as those that exchange
gradients do, only not as closely: none is more than `LEAD` steps ahead of the slowest.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import stepscope
from stepscope.runtime.control.settings import Control
from stepscope.runtime.window import Window

LEAD = 40
GONE = 1 << 60


class RankSettings(msgspec.Struct, kw_only=True):
    """What the rank is told."""

    directory: str
    rank: int
    world: int
    step_ms: float = 2.0
    late: float = 0.0
    """Seconds that it begins later."""
    job: str = "job"
    patience: float = 20.0
    control: str = ""
    """What is watched; default: the directory."""
    alone: bool = False
    """Whether the system tells of no changes of files, as a shared file system does not."""
    signal: bool = False
    """Whether SIGUSR2 asks for windows."""
    host: str = ""
    """What the machine is to be called, for a process that has a name of it to itself."""


class Steps:
    """The steps of all ranks, in a file that is read and written: machines that share files have no memory in common."""

    def __init__(self, path: Path, ranks: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size < 8 * ranks:
            os.ftruncate(self._file, 8 * ranks)
        self._ranks = ranks

    def put(self, rank: int, step: int) -> None:
        """This is where the rank is; `GONE`: nobody waits for it any more."""
        os.pwrite(self._file, struct.pack("q", step), 8 * rank)

    def least(self) -> int:
        """Where the slowest rank is."""
        steps: tuple[int, ...] = struct.unpack(f"{self._ranks}q", os.pread(self._file, 8 * self._ranks, 0))
        return min(steps)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def main(settings: RankSettings) -> None:
    """Runs the loop."""
    logging.basicConfig(level=logging.INFO, format=f"{settings.rank} %(message)s")
    if settings.host:
        socket.sethostname(settings.host)
    if settings.alone:
        absent: Any = None
        sys.modules["watchfiles"] = absent
    directory = Path(settings.directory)
    steps = Steps(directory / "steps", settings.world)
    time.sleep(settings.late)
    os.environ.update(RANK=str(settings.rank), WORLD_SIZE=str(settings.world), STEPSCOPE_JOB=settings.job)
    windows = (directory / f"windows-{settings.rank}").open("a", buffering=1)

    def write(window: Window) -> None:
        armed = window.metadata["armed"]
        said = {
            "run": armed.get("run_id", ""),
            "steps": [step.number for step in window.steps],
            "complete": window.complete,
            "name": armed["name"],
            "trigger": armed["trigger"],
            "note": armed.get("note", ""),
        }
        print(json.dumps(said), file=windows)

    control = Control(
        path=settings.control or settings.directory,
        poll=0.1,
        patience=settings.patience,
        socket=True,
        signal=settings.signal,
    )
    with stepscope.trace(
        control=control,
        output_dir=directory / "out",
        on_trace_ready=write,
        options=stepscope.Options(journal=False, drain_interval=0.05),
    ) as profiler:
        (directory / f"ready-{settings.rank}").touch()
        stop, own_stop = directory / "stop", directory / f"stop-{settings.rank}"
        while not stop.exists() and not own_stop.exists():
            with stepscope.span("work"):
                time.sleep(settings.step_ms / 1000)
            profiler.step()
            steps.put(settings.rank, profiler.step_num)
            while steps.least() + LEAD < profiler.step_num and not stop.exists():
                time.sleep(0.001)
        steps.put(settings.rank, GONE)
    print(json.dumps({"rank": settings.rank, "armed": [status.state for status in profiler.armed()]}))


if __name__ == "__main__":
    others = [subprocess.Popen([sys.executable, "-m", "tests.control_rank", each]) for each in sys.argv[2:]]
    main(msgspec.json.decode(sys.argv[1], type=RankSettings))
    sys.exit(max([abs(other.wait()) for other in others], default=0))
