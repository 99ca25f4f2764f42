"""`data_process`: the time that a program waits for the next batch of a dataset of MindSpore, and its Python functions that prepare data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.display.code_places import qualified_name
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.user_code import replace

PREPROCESS = "preprocess"
"""Category of the spans of functions that prepare data."""

_lock = locks.reentrant()
_users = 0
"""Number of recordings that want the spans."""
_undo: list[Callable[[], None]] = []
_batches = 0


class DatasetWaits:
    """Records each call for the next batch as a span `<class of the iterator>.__next__` of category `dataloader`, and each call of a Python
    function that `map` or `batch` runs as a span of its name, of category `preprocess`, on the thread of MindSpore that runs it.

    From `begin()` to `end()` methods of MindSpore (2.10 is tested) are replaced. Batches that are sunk to a device do not pass there, and
    operators in C++ and in other processes run without Python here.
    """

    def __init__(self) -> None:
        self._before = 0

    def begin(self) -> None:
        """Begins to record the calls."""
        global _users
        with _lock:
            _users += 1
            if not _undo:
                _replace("mindspore.dataset.engine.iterators", "Iterator", "__next__", _around_next)
                _replace("mindspore.dataset.transforms.py_transforms_util", "FuncWrapper", "__call__", _around_call)
        self._before = _batches

    def end(self) -> str:
        """Ends it; called once after each `begin()`. Returns why nothing was recorded, in words; empty if something was."""
        global _users
        with _lock:
            _users -= 1
            while _undo and not _users:
                _undo.pop()()
        return "" if _batches > self._before else "no iterator of a dataset of MindSpore was asked for a batch"


def _replace(module: str, kind: str, name: str, make: Callable[..., Any]) -> None:
    owner: Any = getattr(sys.modules.get(module), kind, None)
    if owner is not None:
        replace(_undo, name, make, owner)


def _around_next(original: Callable[..., Any]) -> Callable[..., Any]:
    def __next__(iterator: Any) -> Any:  # noqa: N807
        global _batches
        _batches += 1
        with _core.span(f"{type(iterator).__name__}.__next__", category="dataloader"):
            try:
                return original(iterator)
            except StopIteration as ended:  # the end of the data is no error of the span
                end = ended
        raise end

    return __next__


def _around_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(function: Any, *values: Any) -> Any:  # noqa: N807
        with _core.span(qualified_name(function.transform), category=PREPROCESS):
            return original(function, *values)

    return __call__
