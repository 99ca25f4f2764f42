"""Commands and pages that open a result."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path

PERFETTO = "https://ui.perfetto.dev"
shell_directory: Path | None = None
"""Working directory of the shell, if the program of `stepscope run` may change that of this process."""


def shown(path: Path) -> str:
    """A path as a user would type it in this directory: relative if that is shorter."""
    try:
        relative = os.path.relpath(path, shell_directory)
    except OSError:  # the working directory was deleted
        return str(path)
    return relative if len(relative) < len(str(path)) else str(path)


def tensorboard(logdir: Path) -> str:
    """The command that shows a directory of runs in TensorBoard."""
    command = f"{_program('tensorboard', 'tensorboard.main')} --logdir {shlex.quote(shown(logdir))}"
    if missing_for_tensorboard():
        return f"{shlex.quote(sys.executable)} -m pip install tensorboard torch-tb-profiler && {command}"
    return command


def missing_for_tensorboard() -> list[str]:
    """Packages that are missing here to show traces of torch in TensorBoard."""
    return [name for name in ("tensorboard", "torch_tb_profiler") if importlib.util.find_spec(name) is None]


def command(name: str, *arguments: Path | str) -> str:
    """A command of `stepscope`, as a user would type it in this directory."""
    words = [shlex.quote(each if isinstance(each, str) else shown(each)) for each in arguments]
    return " ".join([_program("stepscope", "stepscope"), name, *words])


def perfetto(trace: Path) -> str:
    """Ways to open a Chrome trace: without the network first; Perfetto's page reads it in the browser, and sends it nowhere."""
    return f"{command('view', trace)}, or drag it into {PERFETTO}"


def _program(name: str, module: str) -> str:
    """The command that starts this program in this shell, whether or not its environment is activated."""
    script = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and (not script.exists() or Path(found).samefile(script)):
        return name
    return shlex.quote(shown(script)) if script.exists() else f"{shlex.quote(sys.executable)} -m {module}"
