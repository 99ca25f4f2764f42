"""Which frames of a stack are stepscope's own, and no part of the program."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType

_STANDARD = sys.stdlib_module_names


def is_ours(frame: FrameType) -> bool:
    """Whether a function of stepscope runs in it."""
    return _module(frame) == "stepscope"


def of_the_program(outermost_first: Iterable[FrameType]) -> Iterator[FrameType]:
    """The frames of a stack without stepscope's, and without those of Python's library that stepscope called.

    What stepscope calls of the program, such as a function that it wraps, is the program's again.
    """
    ours = False
    for frame in outermost_first:
        ours = is_ours(frame) or (ours and _module(frame) in _STANDARD)
        if not ours:
            yield frame


def _module(frame: FrameType) -> str:
    """Name of the package, or of the module that is in none."""
    name: object = frame.f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""
