"""A rank of a job whose loops go at different speeds: it records what it is asked for, and says what that was.

    python -m tests.support.control_rank '{"directory": ..., "rank": 0, "world": 8, ...}' ['{...}' ...]

Further ranks that are named are children, as on a host that knows one process only. Each finished window is a line of
`windows-RANK`. The loop ends when the file `stop` is there, or `stop-RANK`. Ranks keep together as those that exchange
gradients do, only not as closely: none is more than `LEAD` steps ahead of the slowest.

The loops of several stages follow each other, each with a profiler and steps of its own. A stage ends when the file `end-STAGE`
is there, or `end-STAGE-RANK`, and the next one begins with `go-STAGE` or `go-STAGE-RANK`. One whose name begins with `own` is
this rank's alone: the others are not kept up with.
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
from collections.abc import Callable
from pathlib import Path

import msgspec

import stepscope
from stepscope.runtime.control.settings import Control
from stepscope.runtime.windows.window import Window

LEAD = 40
GONE = 1 << 60
STAGE = 1 << 40
"""Steps that a stage has at most."""


class RankSettings(msgspec.Struct, kw_only=True):
    """The configuration of a rank."""

    directory: str
    rank: int
    world: int
    step_ms: float = 2.0
    late: float = 0.0
    """Seconds that it begins later."""
    job: str = "job"
    patience: float = 20.0
    control: str = ""
    """The file or directory that is watched; default: the directory."""
    signal: bool = False
    """True if SIGUSR2 asks for windows."""
    host: str = ""
    """The machine's name, for a process that has a name of it to itself."""
    stages: tuple[str, ...] = ("only",)
    """Loops, one after the other."""


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
    directory = Path(settings.directory)
    steps = Steps(directory / "steps", settings.world)
    time.sleep(settings.late)
    os.environ.update(RANK=str(settings.rank), WORLD_SIZE=str(settings.world), STEPSCOPE_JOB=settings.job)
    common = 0
    for stage in settings.stages:
        wait_for(settings, "go", stage if stage != settings.stages[0] else "")
        own = stage.startswith("own")
        run_stage(settings, stage, None if own else steps, common * STAGE)
        common += not own
    steps.put(settings.rank, GONE)


def wait_for(settings: RankSettings, what: str, stage: str) -> None:
    """Waits until the test says so; not for the first stage, whose name is empty here."""
    while stage and not is_notified(settings, what, stage):
        time.sleep(0.002)


def is_notified(settings: RankSettings, what: str, stage: str) -> bool:
    """True if the test has set it for this stage, or that all is to end."""
    rank = settings.rank
    names = ("stop", f"stop-{rank}", f"{what}-{stage}", f"{what}-{stage}-{rank}")
    return any((Path(settings.directory) / name).exists() for name in names)


def run_stage(settings: RankSettings, stage: str, steps: Steps | None, begin: int) -> None:
    """Runs the loop of a stage.

    Args:
        steps: of the ranks that are kept up with.
        begin: where the stage begins among all.
    """
    directory, rank = Path(settings.directory), settings.rank
    control = Control(
        path=settings.control or settings.directory,
        poll=0.1,
        patience=settings.patience,
        socket=True,
        signal=settings.signal,
    )
    with (
        (directory / f"windows-{rank}").open("a", buffering=1) as windows,
        stepscope.trace(
            control=control,
            output_dir=directory / "out",
            metadata={"stage": stage},
            on_trace_ready=writes_to(windows.write, stage),
            options=stepscope.Options(journal=False, drain_interval=0.05),
        ) as profiler,
    ):
        (directory / f"ready-{rank}").touch()
        (directory / f"begun-{stage}-{rank}").touch()
        while not is_notified(settings, "end", stage):
            with stepscope.span("work"):
                time.sleep(settings.step_ms / 1000)
            profiler.step()
            if steps is not None:
                at = begin + profiler.step_num
                steps.put(rank, at)
                while steps.least() + LEAD < at and not is_notified(settings, "end", stage):
                    time.sleep(0.001)
    (directory / f"ended-{stage}-{rank}").touch()
    print(json.dumps({"rank": rank, "stage": stage, "armed": [status.state for status in profiler.armed()]}))


def writes_to(write: Callable[[str], object], stage: str) -> Callable[[Window], None]:
    """Returns a function that writes a line about each finished window."""

    def ready(window: Window) -> None:
        armed = window.metadata["armed"]
        facts = {
            "run": armed.get("run_id", ""),
            "stage": stage,
            "steps": [step.number for step in window.steps],
            "complete": window.complete,
            "name": armed["name"],
            "trigger": armed["trigger"],
            "note": armed.get("note", ""),
        }
        write(json.dumps(facts) + "\n")

    return ready


if __name__ == "__main__":
    others = [subprocess.Popen([sys.executable, "-m", "tests.support.control_rank", each]) for each in sys.argv[2:]]
    main(msgspec.json.decode(sys.argv[1], type=RankSettings))
    sys.exit(max([abs(other.wait()) for other in others], default=0))
