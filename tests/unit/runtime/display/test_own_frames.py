"""Stepscope's own functions, and what they call of Python's library, are no part of a program's stacks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from stepscope.runtime.display.code_places import is_own, of_the_program, warn


class Looking:
    """Notes the stack on which it is copied."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __deepcopy__(self, memo: object) -> Looking:
        frames: list[FrameType] = []
        frame = inspect.currentframe()
        while frame is not None:
            frames.insert(0, frame)
            frame = frame.f_back
        self.seen = [each.f_code.co_name for each in of_the_program(frames)]
        assert not any(is_own(each) for each in of_the_program(frames))
        return self


def made_in(module: str, source: str) -> dict[str, Any]:
    """The names that a module of that name defines."""
    namespace: dict[str, Any] = {"__name__": module, "copy": copy, "warn": warn}
    exec(compile(source, f"{module}.py", "exec"), namespace)
    return namespace


CALL = "def call(value): return copy.deepcopy(value)"


@pytest.mark.parametrize(
    ("module", "frames"),
    [("stepscope.something", []), ("stepscope", []), ("stepscope_extra", ["call", "deepcopy"])],
)
def test_frames_of_the_program_stay(module: str, frames: list[str]) -> None:
    """Frames that call stepscope and frames that it calls stay; a library's function that stepscope itself called is left out."""
    looking = Looking()
    call: Callable[[object], object] = made_in(module, CALL)["call"]
    call(looking)
    here = "test_frames_of_the_program_stay"
    assert looking.seen[looking.seen.index(here) :] == [here, *frames, "__deepcopy__"]


def test_the_library_of_the_program_stays() -> None:
    """Called by the program it is of the program."""
    looking = Looking()
    copy.deepcopy(looking)
    assert looking.seen[-2:] == ["deepcopy", "__deepcopy__"]


def test_warnings_name_the_line_that_called() -> None:
    """However deep in stepscope their reason was found."""
    deep = made_in("stepscope.deep", "def deep(): warn('look here', FutureWarning)")["deep"]
    between = made_in("stepscope.between", "def between(call): call()")["between"]
    with pytest.warns(FutureWarning, match="look here") as caught:
        between(deep)
    (warning,) = caught
    assert warning.filename == __file__
    with open(__file__, encoding="utf-8") as source:
        assert source.read().splitlines()[warning.lineno - 1].strip() == "between(deep)"
