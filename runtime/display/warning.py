"""Warnings that show the line of the program that called stepscope."""

from __future__ import annotations

import inspect
import warnings

from stepscope.runtime.display.code_places import is_own


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning for the line of the program that called stepscope, at any depth.

    Args:
        text: of the warning.
        category: for filters of warnings, which also use the module of that line.
    """
    level, frame = 1, inspect.currentframe()
    while frame is not None and is_own(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
