"""Processes that a traced program starts, which are not in its trace: launchers start all ranks so."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

_TORCHRUN, _ACCELERATE = "torchrun --no-python", "accelerate launch --no_python"
_DEEPSPEED = "deepspeed --no_python --no_local_rank"
_LAUNCHERS: Mapping[str, str] = {
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "torchrun": _TORCHRUN,
    "accelerate": _ACCELERATE,
    "accelerate-launch": _ACCELERATE,
    "accelerate.commands.launch": _ACCELERATE,
    "deepspeed": _DEEPSPEED,
    "deepspeed.launcher.runner": _DEEPSPEED,
    **{name: name for name in ("mpirun", "mpiexec", "srun", "jsrun", "horovodrun")},
}
"""Modules and programs that start ranks: the command, with the options that have it start another program than Python.
Sources: the parsers of torch.distributed.run, of accelerate.commands.launch and of deepspeed.launcher.runner."""


class ChildProcesses:
    """Counts the processes that this one starts, from when it is made."""

    def __init__(self) -> None:
        self._programs = self._forks = 0
        sys.addaudithook(self._count_event)

    def _count_event(self, event: str, arguments: object) -> None:
        if event in ("subprocess.Popen", "os.system"):
            self._programs += 1
        elif event in ("os.fork", "os.forkpty"):
            self._forks += 1

    @property
    def count(self) -> int:
        """How many were started so far, as far as Python tells."""
        # Those that multiprocessing spawns make no event; those that it forks make one.
        counter = getattr(sys.modules.get("multiprocessing.process"), "_process_counter", None)
        found = re.fullmatch(r"count\((\d+)\)", repr(counter))
        made = int(found[1]) - 1 if found else 0
        return self._programs + max(self._forks, made)


def command_for_ranks(program: str) -> str:
    """The form of the command that traces each process that a launcher starts; empty if the program is no launcher that is known."""
    launcher = _LAUNCHERS.get(program) or _LAUNCHERS.get(Path(program).name, "")
    return f"{launcher} ... stepscope run [options] train.py" if launcher else ""
