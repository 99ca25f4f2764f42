"""Processes that a traced program starts, which are not in its trace: launchers start all ranks so."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_TORCHRUN, _ACCELERATE = "torchrun --no-python", "accelerate launch --no_python"
_DEEPSPEED = "deepspeed --no_python --no_local_rank"
_LAUNCHERS: Mapping[str, str] = {
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "torchrun": _TORCHRUN,
    "accelerate": _ACCELERATE,
    "accelerate-launch": _ACCELERATE,
    "accelerate.commands.launch": _ACCELERATE,
    "accelerate.commands.accelerate_cli": _ACCELERATE,
    "deepspeed": _DEEPSPEED,
    "deepspeed.launcher.runner": _DEEPSPEED,
    **{name: name for name in ("mpirun", "mpiexec", "orterun", "prterun", "srun", "jsrun", "aprun", "horovodrun")},
}
"""Modules and programs that start ranks: the command, with the options that have it start another program than Python.
Sources: the parsers of torch.distributed.run, of accelerate.commands.launch and of deepspeed.launcher.runner."""
_WITH_COMMANDS = ("accelerate", "accelerate.commands.accelerate_cli")
"""Programs that start ranks by their command `launch` only."""
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")


class ChildProcesses:
    """Counts the processes that this one starts, from when it is made."""

    def __init__(self) -> None:
        self._programs = self._forks = 0
        self.ranks = ""
        """The form of the command that traces the ranks, if one of these processes is a launcher."""
        sys.addaudithook(self._count_event)

    def _count_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("subprocess.Popen", "os.system"):
            self._programs += 1
            with suppress(Exception):  # a hint, which must not keep the program from starting another
                self.ranks = self.ranks or _command_for_ranks_of(_words(arguments))
        elif event in ("os.fork", "os.forkpty"):
            self._forks += 1

    @property
    def count(self) -> int:
        """Number of processes that Python has started so far."""
        # Those that multiprocessing spawns make no event; those that it forks make one.
        counter = getattr(sys.modules.get("multiprocessing.process"), "_process_counter", None)
        found = re.fullmatch(r"count\((\d+)\)", repr(counter))
        made = int(found[1]) - 1 if found else 0
        return self._programs + max(self._forks, made)


def command_for_ranks(program: str, rest: Sequence[str]) -> str:
    """The form of the command that traces each process that a launcher starts.

    Args:
        program: that is run: a script, or the name of a module.
        rest: its arguments.

    Returns:
        The form; empty if the program is no launcher that is known, or starts no ranks with these arguments.
    """
    name = Path(program).name
    launcher = _LAUNCHERS.get(program) or _LAUNCHERS.get(name)
    if launcher is None or (name in _WITH_COMMANDS and rest[:1] != ["launch"]):
        return ""
    return f"{launcher} ... stepscope run [options] train.py"


def _command_for_ranks_of(words: Sequence[str]) -> str:
    """The same for the words of a command, which may call Python."""
    if words and _PYTHON.fullmatch(Path(words[0]).name):
        words = words[2:] if words[1:2] == ["-m"] else words[1:]
    return command_for_ranks(words[0], words[1:]) if words else ""


def _words(arguments: tuple[Any, ...]) -> list[str]:
    """The words of a command, from the arguments of the audit events of `subprocess` and `os.system`."""
    command = (arguments[1:2] or arguments)[0]
    if isinstance(command, str | bytes):
        return shlex.split(os.fsdecode(command))
    return [os.fsdecode(word) for word in command]
