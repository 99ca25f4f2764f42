"""Places of code, a function with its file and line; which frames of a stack belong to the program; warnings for its lines."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType

_LIBRARY = re.compile(r"^.*?(?=(?:site|dist)-packages/)|^.*?(?=/lib/python3)")
"""The directories before the identifying part of a file of Python or of an installed package."""


def short_file(path: str) -> str:
    """Returns the path of a file; for Python and installed packages without the directories above them."""
    return _LIBRARY.sub("", path, count=1)


COMMAND = ("/bin/stepscope", "/stepscope/__main__.py")
"""Ends of the paths in which every stack begins under `stepscope run`."""


def in_library(file: str) -> bool:
    """Whether a file belongs to Python, to a package that was installed, to the command `stepscope`, or was written by torch.compile."""
    installed = "site-packages" in file or "dist-packages" in file or "/lib/python3" in file
    return installed or file.startswith("<") or file.endswith(COMMAND) or "/torchinductor_" in file


def caller() -> str:
    """Returns `function (file:line)` of the innermost function of the program below the caller; empty if there is none."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame.f_back if frame is not None else None
    while frame is not None and in_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else described_frame(frame)


def described_frame(frame: FrameType) -> str:
    """Returns `function (file:line)` of a frame."""
    return f"{frame.f_code.co_qualname} ({short_file(frame.f_code.co_filename)}:{frame.f_lineno})"


def place_of(what: object) -> str:
    """Returns `file:line` of a function, a method or an object with `__call__`, also inside of a partial; empty if unknown."""
    for _ in range(8):
        what = (
            getattr(what, "__wrapped__", None) or getattr(what, "func", None) or getattr(what, "__func__", None) or what
        )
    called = getattr(type(what), "__call__", None)  # noqa: B004 - for its code
    code = getattr(what, "__code__", None) or getattr(called, "__code__", None)
    return f"{short_file(code.co_filename)}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""


def qualified_name(what: object) -> str:
    """Returns module and qualified name of a function or class; for another object, those of its class."""
    what = getattr(what, "func", what)
    what = what if hasattr(what, "__qualname__") else type(what)
    return f"{getattr(what, '__module__', '')}.{getattr(what, '__qualname__', '')}"


_STANDARD = sys.stdlib_module_names


def is_own(frame: FrameType) -> bool:
    """Whether a frame is of a function of stepscope."""
    return _module(frame) == "stepscope"


def of_the_program(outermost_first: Iterable[FrameType]) -> Iterator[FrameType]:
    """Yields the frames of a stack without those of stepscope and of standard modules that stepscope called.

    Functions of the program that stepscope calls, such as wrapped ones, are included.
    """
    ours = False
    for frame in outermost_first:
        ours = is_own(frame) or (ours and _module(frame) in _STANDARD)
        if not ours:
            yield frame


def _module(frame: FrameType) -> str:
    """Name of the package, or of the module that is in none."""
    name: object = frame.f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning for the line of the program that called stepscope, at any depth. Filters of warnings use the category, and
    the module of that line."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and is_own(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
