"""`MindSporeDataBackend`: the time that a program waits for the next batch of a dataset of MindSpore."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.action import ProfilerAction
from stepscope.runtime.sink import BackendReport, Sink

CATEGORY = "dataloader"
"""Category of the spans."""

_lock = threading.Lock()
_users = 0
_original: Callable[[Any], Any] | None = None
"""MindSpore's own method, while ours is in its place."""
_batches = 0


class MindSporeDataBackend:
    """Records each call for the next batch as a span `<class of the iterator>.__next__` of category `dataloader`.

    While one of these is open, the method of MindSpore's iterators (2.10 is tested) is wrapped; afterwards it is as it was.
    What is sunk to a device does not pass there, and is not seen.

    Args:
        name: of this source in ledgers and reports.
    """

    thread_bound = False

    def __init__(self, name: str = "mindspore data") -> None:
        self.name = name
        self._sink: Sink | None = None
        self._wrapped = False
        self._before = 0

    def open(self, sink: Sink) -> None:
        self._sink, self._before = sink, _batches
        self._wrapped = _wrap()

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        # The spans are the recorder's own; there is nothing to deliver here.
        if self._sink is not None:
            self._sink.watermark(at)

    async def aclose(self) -> None:
        self._sink = None
        if self._wrapped:
            self._wrapped = False
            _unwrap()

    def report(self) -> BackendReport:
        if not self._wrapped and self._sink is not None:
            return BackendReport(
                notes=("this version of MindSpore has no iterators of datasets that could be wrapped",)
            )
        asked = _batches - self._before
        notes = () if asked else ("no iterator of a dataset of MindSpore was asked for a batch",)
        return BackendReport(mode=f"{asked} batches asked for", notes=notes)


def _iterators() -> Any:
    return getattr(sys.modules.get("mindspore.dataset.engine.iterators"), "Iterator", None)


def _wrap() -> bool:
    global _users, _original
    kind = _iterators()
    with _lock:
        if _users == 0:
            _original = getattr(kind, "__next__", None)
            if _original is None:
                return False
            kind.__next__ = _next
        _users += 1
    return True


def _unwrap() -> None:
    global _users
    kind = _iterators()
    with _lock:
        _users -= 1
        if _users == 0 and kind.__next__ is _next:  # somebody else may have wrapped it since
            kind.__next__ = _original


def _next(iterator: Any) -> Any:
    """In the place of `Iterator.__next__`."""
    global _batches
    assert _original is not None
    _batches += 1
    with _core.span(f"{type(iterator).__name__}.__next__", category=CATEGORY):
        try:
            return _original(iterator)
        except StopIteration as ended:  # the end of the data is no error of the span
            end = ended
    raise end
