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

_TORCHRUN = ("torchrun", "--no-python")
_ACCELERATE = ("accelerate launch", "--no_python")
_DEEPSPEED = ("deepspeed", "--no_python --no_local_rank")
_LAUNCHERS: Mapping[str, tuple[str, str]] = {
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "torchrun": _TORCHRUN,
    "accelerate": ("accelerate", "--no_python"),
    "accelerate-launch": _ACCELERATE,
    "accelerate.commands.launch": _ACCELERATE,
    "accelerate.commands.accelerate_cli": ("accelerate", "--no_python"),
    "deepspeed": _DEEPSPEED,
    "deepspeed.launcher.runner": _DEEPSPEED,
}
"""Modules and programs that start scripts of Python: the command, and its options for other programs.
Sources: the parsers of torch.distributed.run, of accelerate.commands.launch and of deepspeed.launcher.runner."""
_STARTERS = ("mpirun", "mpiexec", "orterun", "prterun", "srun", "jsrun", "aprun", "horovodrun")
"""Programs that start any command."""
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")


class ChildProcesses:
    """Counts the processes that this one starts, from when it is made.

    Args:
        options: of `stepscope run`, for the command that traces what a launcher starts.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._programs = self._forks = 0
        self._options = options
        self.ranks = ""
        """The command that traces the ranks, if one of these processes is a launcher."""
        sys.addaudithook(self._count_event)

    def _count_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" or event == "os.system":
            self._programs += 1
            with suppress(Exception):  # a hint, which must not keep the program from starting another
                self.ranks = self.ranks or command_for_command(self._options, _words(arguments))
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
    name = Path(program).name
    if name in _STARTERS:
        return _started(options, [name, *rest])
    launcher = _LAUNCHERS.get(program) or _LAUNCHERS.get(name)
    if launcher is None:
        return ""
    command, no_python = launcher
    words = list(rest)
    if command == "accelerate":
        if words[:1] != ["launch"]:
            return ""
        command, words = "accelerate launch", words[1:]
    words = [word for word in words if word not in no_python.split()]
    module = next((at for at, word in enumerate(words) if word in ("-m", "--module")), None)
    script = next((at for at, word in enumerate(words) if os.path.isfile(word)), None)
    if module is not None and (script is None or module < script):
        own, traced = words[:module], ["-m", *words[module + 1 :]]
    elif script is not None:
        own, traced = words[:script], words[script:]
    else:
        own, traced = words, ["train.py"]
    return f"{command} {no_python} {shlex.join([*own, 'stepscope', 'run', *options, *traced])}"


def command_for_command(options: Sequence[str], words: Sequence[str]) -> str:
    """The command that traces what another command starts; empty if that is no launcher that is known.

    Args:
        options: of `stepscope run`.
        words: of the command, which may call Python.
    """
    if not words:
        return ""
    if _PYTHON.fullmatch(Path(words[0]).name):
        words = words[2:] if words[1:2] == ["-m"] else words[1:]
    return command_for_ranks(options, words[0], words[1:]) if words else ""


def _started(options: Sequence[str], words: Sequence[str]) -> str:
    """The command of a launcher of any program, with `stepscope run` in place of Python."""
    python = next((at for at, word in enumerate(words) if at and _PYTHON.fullmatch(Path(word).name)), None)
    own, traced = (words, ["train.py"]) if python is None else (words[:python], words[python + 1 :])
    return shlex.join([*own, "stepscope", "run", *options, *traced])


def _words(arguments: tuple[Any, ...]) -> list[str]:
    """The words of a command, as the audit events of `subprocess` and `os.system` have it."""
    given = (arguments[1:2] or arguments)[0]
    try:
        return (
            shlex.split(os.fsdecode(given)) if isinstance(given, str | bytes) else [os.fsdecode(word) for word in given]
        )
    except (TypeError, ValueError):
        return []
