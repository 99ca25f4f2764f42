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
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def tensorboard(logdir: Path) -> str:
    """The command that shows a directory of runs in TensorBoard, as it works in this shell."""
    command = f"--logdir {shlex.quote(shown(logdir))}"
    beside = Path(sys.executable).with_name("tensorboard")
    if shutil.which("tensorboard") is not None:
        command = f"tensorboard {command}"
    elif beside.is_file():
        command = f"{shlex.quote(shown(beside))} {command}"
    else:
        command = f"{shlex.quote(sys.executable)} -m tensorboard.main {command}"
    missing = [name for name in ("tensorboard", "torch_tb_profiler") if importlib.util.find_spec(name) is None]
    if missing:
        return f"pip install tensorboard torch-tb-profiler && {command}"
    return command


def perfetto(trace: Path) -> str:
    """What to do to see a Chrome trace; the page reads it in the browser, and sends it nowhere."""
    return f"open {PERFETTO} and drag {shown(trace)} into it"


def convert(journal: Path, target: str) -> str:
    """The command that writes a journal in another format."""
    return f"stepscope convert {shlex.quote(shown(journal))} {shlex.quote(target)}"
