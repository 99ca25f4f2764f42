"""`data_process`: the time that a program waits for the next batch of a dataset of MindSpore."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.threads import locks

_lock = locks.reentrant()
_users = 0
_original: Callable[[Any], Any] | None = None
"""MindSpore's own method, while ours is in its place, or somebody else's calls ours."""
_batches = 0


class DatasetWaits:
    """Records each call for the next batch as a span `<class of the iterator>.__next__` of category `dataloader`.

    From `begin()` to `end()` the method of MindSpore's iterators (2.10 is tested) is wrapped; afterwards it is as it was, once
    nobody else needs it. What is sunk to a device does not pass there, and is not seen.
    """

    def __init__(self) -> None:
        self._wrapped = False
        self._before = 0

    def begin(self) -> None:
        """Wraps it."""
        self._before, self._wrapped = _batches, _wrap()

    def end(self) -> str:
        """Takes it back; called once after each `begin()`.

        Returns:
            Why nothing was recorded, in words; empty if something was.
        """
        if not self._wrapped:
            return "this version of MindSpore has no iterators of datasets that could be wrapped"
        self._wrapped = False
        _unwrap()
        return "" if _batches > self._before else "no iterator of a dataset of MindSpore was asked for a batch"


def _iterators() -> Any:
    return getattr(sys.modules.get("mindspore.dataset.engine.iterators"), "Iterator", None)


def _wrap() -> bool:
    global _users, _original
    kind = _iterators()
    with _lock:
        if _original is None:
            _original = getattr(kind, "__next__", None)
            if _original is None:
                return False
            kind.__next__ = _next
        _users += 1
    return True


def _unwrap() -> None:
    global _users, _original
    kind = _iterators()
    with _lock:
        _users -= 1
        if _users == 0 and kind.__next__ is _next:  # else somebody has wrapped it since
            kind.__next__, _original = _original, None


def _next(iterator: Any) -> Any:
    """In the place of `Iterator.__next__`."""
    global _batches
    own = _original
    if own is None:  # taken back since this call began
        return _iterators().__next__(iterator)
    _batches += 1
    with _core.span(f"{type(iterator).__name__}.__next__", category="dataloader"):
        try:
            return own(iterator)
        except StopIteration as ended:  # the end of the data is no error of the span
            end = ended
    raise end
