"""`data_process`: the time that a program waits for the next batch of a dataset of MindSpore, and its Python functions that prepare data."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.display.code_places import qualified_name
from stepscope.runtime.threads import locks

PREPROCESS = "preprocess"
"""Category of the spans of functions that prepare data."""

_lock = locks.reentrant()
_users = 0
"""How many recordings want the spans."""
_batches = 0


class DatasetWaits:
    """Records each call for the next batch as a span `<class of the iterator>.__next__` of category `dataloader`, and each call of a Python
    function that `map` or `batch` runs as a span of its name, of category `preprocess`, on the thread of MindSpore that runs it.

    The first `begin()` wraps methods of MindSpore (2.10 is tested); outside of recordings they do what they did. Batches that are
    sunk to a device do not pass there, and operators in C++ and in other processes run without Python here.
    """

    def __init__(self) -> None:
        self._before = 0
        self._has_iterators = False

    def begin(self) -> None:
        """Wraps the methods, where they are not wrapped yet, and has their calls recorded."""
        global _users
        with _lock:
            self._has_iterators = _wrap("mindspore.dataset.engine.iterators", "Iterator", "__next__", _next)
            _wrap("mindspore.dataset.transforms.py_transforms_util", "FuncWrapper", "__call__", _call)
            _users += 1
        self._before = _batches

    def end(self) -> str:
        """Ends it; called once after each `begin()`. Returns why nothing was recorded, in words; empty if something was."""
        global _users
        with _lock:
            _users -= 1
        if not self._has_iterators:
            return "this version of MindSpore has no iterators of datasets that could be wrapped"
        return "" if _batches > self._before else "no iterator of a dataset of MindSpore was asked for a batch"


def _wrap(module: str, kind: str, name: str, ours: Callable[..., Any]) -> bool:
    """Puts a method that calls `ours` in the place of one of MindSpore's, once. Returns False for a version without it."""
    owner: Any = getattr(sys.modules.get(module), kind, None)
    original = getattr(owner, name, None)
    if original is None or getattr(original, "wraps_for_stepscope", False):
        return original is not None

    @functools.wraps(original)
    def method(*args: Any) -> Any:
        return ours(original, *args) if _users else original(*args)

    method.wraps_for_stepscope = True  # type: ignore[attr-defined]
    setattr(owner, name, method)
    return True


def _next(original: Callable[..., Any], iterator: Any) -> Any:
    """In the place of `Iterator.__next__`."""
    global _batches
    _batches += 1
    with _core.span(f"{type(iterator).__name__}.__next__", category="dataloader"):
        try:
            return original(iterator)
        except StopIteration as ended:  # the end of the data is no error of the span
            end = ended
    raise end


def _call(original: Callable[..., Any], function: Any, *values: Any) -> Any:
    """In the place of `FuncWrapper.__call__`, which calls a Python function of the program."""
    with _core.span(qualified_name(function.transform), category=PREPROCESS):
        return original(function, *values)
