"""Warnings at the line of the program that they are about."""

from __future__ import annotations

import inspect
import warnings

from stepscope.runtime.observers.code_places import is_ours


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line that called into stepscope, however deep in it the reason is found.

    Args:
        text: of the warning.
        category: filters of warnings go by it, and by the module of that line.
    """
    level, frame = 1, inspect.currentframe()
    while frame is not None and is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
