"""Runs a Python program in this process as the interpreter would."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

import msgspec

from stepscope.cli.common.messages import message
from stepscope.runtime.files.paths import absolute, real

_OWN = (__file__, runpy.__file__, "<frozen runpy>")


class Outcome(msgspec.Struct, frozen=True):
    """The end of a program."""

    code: int
    """Its exit code."""
    error: BaseException | None = None
    """Its exception, if that is no `SystemExit`."""
    message: str = ""
    """The text of its `SystemExit` for standard error."""

    def print_error(self) -> None:
        """Prints what the interpreter would have printed at the end: the error as `sys.excepthook` shows it."""
        if self.message:
            message(self.message)
        if self.error is not None:
            # Python's own hook shows the traceback that the error holds, not the one that it is given.
            self.error.__traceback__ = _without_own(self.error.__traceback__)
            sys.excepthook(type(self.error), self.error, self.error.__traceback__)


def run(program: str, arguments: Sequence[str], *, module: bool) -> Outcome:
    """Runs a program to its end, as `__main__`, with its own `sys.argv` and `sys.path[0]`.

    Args:
        program: path of a script (or of a directory or zip file with `__main__.py`), or name of a module.
        arguments: those of the program.
        module: whether it is a module, as for `python -m`.
    """
    sys.argv = [program, *arguments]
    if not sys.flags.safe_path:
        if module:
            sys.path[0] = str(absolute(""))
        else:
            path = Path(real(program))
            sys.path[0] = str(path if path.is_dir() else path.parent)
    try:
        if module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            _run_path(program)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return Outcome((end.code or 0) & 0xFF)
        return Outcome(1, message=str(end.code))
    except KeyboardInterrupt as error:
        return Outcome(130, error)
    except ImportError as error:
        if _without_own(error.__traceback__) is None:  # it never began: Python says so in one line as well
            return Outcome(1, message=f"stepscope run: {error}")
        return Outcome(1, error)
    except BaseException as error:
        return Outcome(1, error)
    return Outcome(0)


def why_missing(program: str, *, module: bool) -> str:
    """The reason why there is no such program, before anything of it runs; empty if there is one, as far as can be known."""
    if module:
        name = program.partition(".")[0]
        if not name:
            return f"{program!r} is no name of a module"
        here = PathFinder.find_spec(name, [str(absolute(""))])
        return "" if here or importlib.util.find_spec(name) else f"there is no module {name}"
    path = Path(program)
    if not path.exists():
        scripts = [script.name for script in path.parent.glob("*.py")] if path.parent.is_dir() else []
        close = get_close_matches(path.name, scripts, 1)
        return f"there is no file {program}{f'; did you mean {path.parent / close[0]}?' if close else ''}"
    importer = pkgutil.get_importer(program)
    if path.is_dir() and (importer is None or importer.find_spec("__main__") is None):
        return f"{program} is a directory without __main__.py; name a script in it"
    return ""


def _run_path(program: str) -> None:
    """Runs a script as `__main__`; `runpy` runs the rest: directories, zip files and compiled code.

    `runpy` is not enough for scripts: it names them in `__file__` and in tracebacks as they were typed, where the
    interpreter gives the absolute path, and takes `__main__` away from what runs at exit.
    """
    if pkgutil.get_importer(program) is not None:
        runpy.run_path(program, run_name="__main__")
        return
    # As the interpreter makes it absolute: `.`, `..` and links stay. Source: `_Py_abspath` in CPython.
    path = program if os.path.isabs(program) else os.path.join(os.getcwd(), program)
    with io.open_code(path) as file:
        source = file.read()
    if source.startswith(importlib.util.MAGIC_NUMBER):
        runpy.run_path(program, run_name="__main__")
        return
    main = ModuleType("__main__")
    names = vars(main)
    names.update(__builtins__=builtins, __file__=path, __loader__=SourceFileLoader("__main__", path))
    sometimes: dict[str, object] = {"__annotations__": {}, "__cached__": None}  # depends on Python's version
    names.update({name: value for name, value in sometimes.items() if name in vars(sys.modules["__main__"])})
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec", dont_inherit=True), names)


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the program; nothing if it never got there."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN:
        trace = trace.tb_next
    return trace
