"""`data_process`: the time that a program waits for the next batch of a dataset of MindSpore, and its Python functions that prepare data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.display.code_places import qualified_name
from stepscope.runtime.threads import locks

PREPROCESS = "preprocess"
"""Category of the spans of functions that prepare data."""

_lock = locks.reentrant()
_batches = 0


class _Method:
    """A method of MindSpore, in whose place another function is while somebody needs it."""

    def __init__(self, module: str, kind: str, name: str, ours: Callable[..., Any]) -> None:
        self._module, self._kind, self._name, self._ours = module, kind, name, ours
        self._users = 0
        self.original: Callable[..., Any] | None = None
        """MindSpore's own, while ours is in its place, or somebody else's calls ours."""

    @property
    def owner(self) -> Any:
        """The class; `None` in a version without it."""
        return getattr(sys.modules.get(self._module), self._kind, None)

    def wrap(self) -> bool:
        """Returns False where there is no such method."""
        owner = self.owner
        with _lock:
            if self.original is None:
                self.original = getattr(owner, self._name, None)
                if self.original is None:
                    return False
                setattr(owner, self._name, self._ours)
            self._users += 1
        return True

    def unwrap(self) -> None:
        """Is called once for each `wrap()` that returned True."""
        owner = self.owner
        with _lock:
            self._users -= 1
            if self._users == 0 and getattr(owner, self._name) is self._ours:  # else somebody has wrapped it since
                setattr(owner, self._name, self.original)
                self.original = None


class DatasetWaits:
    """Records each call for the next batch as a span `<class of the iterator>.__next__` of category `dataloader`, and each call of a Python
    function that `map` or `batch` runs as a span of its name, of category `preprocess`, on the thread of MindSpore that runs it.

    From `begin()` to `end()` methods of MindSpore (2.10 is tested) are wrapped; afterwards they are as they were, once nobody else needs
    them. Batches that are sunk to a device do not pass there, and operators in C++ and in other processes run without Python here.
    """

    def __init__(self) -> None:
        self._wrapped: list[_Method] = []
        self._before = 0

    def begin(self) -> None:
        """Wraps the methods."""
        self._before = _batches
        self._wrapped = [method for method in (_NEXT, _FUNCTION) if method.wrap()]

    def end(self) -> str:
        """Takes them back; called once after each `begin()`.

        Returns:
            Why nothing was recorded, in words; empty if something was.
        """
        wrapped, self._wrapped = self._wrapped, []
        for method in wrapped:
            method.unwrap()
        if _NEXT not in wrapped:
            return "this version of MindSpore has no iterators of datasets that could be wrapped"
        return "" if _batches > self._before else "no iterator of a dataset of MindSpore was asked for a batch"


def _next(iterator: Any) -> Any:
    """In the place of `Iterator.__next__`."""
    global _batches
    own = _NEXT.original
    if own is None:  # taken back since this call began
        return _NEXT.owner.__next__(iterator)
    _batches += 1
    with _core.span(f"{type(iterator).__name__}.__next__", category="dataloader"):
        try:
            return own(iterator)
        except StopIteration as ended:  # the end of the data is no error of the span
            end = ended
    raise end


def _call(function: Any, *values: Any) -> Any:
    """In the place of `FuncWrapper.__call__`, which calls a Python function of the program."""
    own = _FUNCTION.original
    if own is None:
        return _FUNCTION.owner.__call__(function, *values)
    with _core.span(qualified_name(function.transform), category=PREPROCESS):
        return own(function, *values)


_NEXT = _Method("mindspore.dataset.engine.iterators", "Iterator", "__next__", _next)
_FUNCTION = _Method("mindspore.dataset.transforms.py_transforms_util", "FuncWrapper", "__call__", _call)
