"""Processes that a traced program starts, which are not in its trace: launchers start all ranks so."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LAUNCHERS = {
    "torch.distributed.run": ("torchrun", "--no-python"),
    "torch.distributed.launch": ("torchrun", "--no-python"),
    "torchrun": ("torchrun", "--no-python"),
    "accelerate": ("accelerate", "--no_python"),
    "accelerate-launch": ("accelerate launch", "--no_python"),
    "accelerate.commands.launch": ("accelerate launch", "--no_python"),
    "accelerate.commands.accelerate_cli": ("accelerate", "--no_python"),
}
"""Modules and programs that start others: the command, and its option for programs that are not Python's scripts.
Sources: the parsers of torch.distributed.run and of accelerate.commands.launch."""


class ChildProcesses:
    """Counts the processes that this one starts, from when it is made."""

    def __init__(self) -> None:
        self._programs = self._forks = 0
        self._owner = os.getpid()
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" or event == "os.system":
            self._programs += 1
        elif event == "os.fork" or event == "os.forkpty":
            self._forks += 1

    @property
    def count(self) -> int:
        """How many were started so far, as far as Python tells."""
        # Those that multiprocessing spawns make no event; those that it forks make one.
        counter = getattr(sys.modules.get("multiprocessing.process"), "_process_counter", None)
        found = re.fullmatch(r"count\((\d+)\)", repr(counter))
        made = int(found[1]) - 1 if found else 0
        return self._programs + max(self._forks, made)


def command_for_ranks(options: Sequence[str], program: str, rest: Sequence[str]) -> str:
    """The command that traces what a launcher starts.

    Args:
        options: of `stepscope run`.
        program: that is run: a script, or the name of a module.
        rest: its arguments.

    Returns:
        The command; empty if the program is no launcher that is known.
    """
    launcher = _LAUNCHERS.get(program) or _LAUNCHERS.get(Path(program).name)
    if launcher is None:
        return ""
    command, no_python = launcher
    words = list(rest)
    if command == "accelerate":
        if words[:1] != ["launch"]:
            return ""
        command, words = "accelerate launch", words[1:]
    module = next((at for at, word in enumerate(words) if word in ("-m", "--module")), None)
    script = next((at for at, word in enumerate(words) if Path(word).is_file()), None)
    if module is not None and (script is None or module < script):
        own, traced = words[:module], ["-m", *words[module + 1 :]]
    elif script is not None:
        own, traced = words[:script], words[script:]
    else:
        own, traced = words, ["train.py"]
    return f"{command} {shlex.join([no_python, *own, 'stepscope', 'run', *options, *traced])}"
