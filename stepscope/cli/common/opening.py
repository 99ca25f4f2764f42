"""How to look at what was written: the command or page that opens it."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path

PERFETTO = "https://ui.perfetto.dev"


def shown(path: Path) -> str:
    """A path as it is typed here: relative if that is shorter."""
    try:
        relative = os.path.relpath(path)
    except OSError:  # the working directory was deleted
        return str(path)
    return relative if len(relative) < len(str(path)) else str(path)


def tensorboard(logdir: Path) -> str:
    """The command that shows a directory of runs in TensorBoard."""
    command = f"{_program('tensorboard', 'tensorboard.main')} --logdir {shlex.quote(shown(logdir))}"
    if any(importlib.util.find_spec(name) is None for name in ("tensorboard", "torch_tb_profiler")):
        return f"{shlex.quote(sys.executable)} -m pip install tensorboard torch-tb-profiler && {command}"
    return command


def view(path: Path) -> str:
    """The command that opens a run or a trace in a viewer of this machine."""
    return f"{_program('stepscope', 'stepscope')} view {shlex.quote(shown(path))}"


def perfetto(trace: Path) -> str:
    """How to open a Chrome trace: without the network first; Perfetto's page reads it in the browser, and sends it nowhere."""
    return f"{view(trace)}, or drag it into {PERFETTO}"


def convert(journal: Path, target: str) -> str:
    """The command that writes a journal in another format."""
    return f"{_program('stepscope', 'stepscope')} convert {shlex.quote(shown(journal))} {shlex.quote(target)}"


def report(run: Path) -> str:
    """The command that writes all that there is to say of a run as a page."""
    return f"{_program('stepscope', 'stepscope')} report {shlex.quote(shown(run))}"


def run(program: str) -> str:
    """The command that traces a program."""
    return f"{_program('stepscope', 'stepscope')} run {shlex.quote(program)}"


def _program(name: str, module: str) -> str:
    """How a program of this Python is called in this shell, whether or not its environment is activated."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and (not beside.exists() or Path(found).samefile(beside)):
        return name
    return shlex.quote(shown(beside)) if beside.exists() else f"{shlex.quote(sys.executable)} -m {module}"
