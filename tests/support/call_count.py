"""How much work something is, counted in calls of functions: a measure that no loaded machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import TypeVar

T = TypeVar("T")


def counted(work: Callable[[], T], of: ModuleType | None = None) -> tuple[T, int]:
    """Its result, and how often it called a function in Python on this thread: any, or one of a module."""
    calls = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and (of is None or frame.f_code.co_filename == of.__file__)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        found = work()
    finally:
        sys.setprofile(before)
    return found, calls
