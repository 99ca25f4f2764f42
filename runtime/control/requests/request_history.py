"""Which requests of watched files were taken in this process: each is recorded once, however many profilers follow the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from stepscope.runtime.control.requests.armed import Armed
from stepscope.runtime.control.requests.window_request import WindowRequest
from stepscope.runtime.threads import locks

MOST = 1000
"""Requests that are remembered, the latest of all files."""


class _Taken(NamedTuple):
    owner: object
    answer: Armed


class RequestHistory:
    """Those of one file, as one profiler sees them. The same request is one with the same fields; `run_id` is one of them."""

    def __init__(self, path: Path) -> None:
        """Args: the watched file."""
        self._path = str(path)
        self._shown: dict[WindowRequest, int] = {}
        self._asked: set[WindowRequest] = set()
        self._refused: set[WindowRequest] = set()
        """Before the file was seen to ask for it here."""

    def show(self, request: WindowRequest) -> str | None:
        """The file asks for it.

        Returns:
            Why it is passed over; empty where nothing is to be said of that, as another rank has asked before. `None` if it is
            to be asked for.
        """
        times = self._shown[request] = self._shown.get(request, -1) + 1
        with _lock:
            taken = _taken.get((self._path, request))
        if taken is not None:
            if taken.owner is self and not times:
                return ""
            return f"this request was taken already ({taken.answer}); another run_id records it again"
        if request in self._asked:
            return "this request was asked for already, and is not decided on yet; another run_id makes it another one"
        if request in self._refused:
            self._refused.discard(request)
            return ""
        self._asked.add(request)
        return None

    def times(self, request: WindowRequest) -> int:
        """How often the file had asked for it before."""
        return max(self._shown.get(request, 0), 0)

    def decided(self, request: WindowRequest, answer: Armed) -> None:
        """It was taken, or refused: then it can be asked for again."""
        self._asked.discard(request)
        if not answer and request not in self._shown:
            self._refused.add(request)
        if answer:
            with _lock:
                _taken[self._path, request] = _Taken(self, answer)
                while len(_taken) > MOST:
                    del _taken[next(iter(_taken))]

    def release(self, request: WindowRequest) -> None:
        """Nothing of it was recorded."""
        with _lock:
            taken = _taken.get((self._path, request))
            if taken is not None and taken.owner is self:
                del _taken[self._path, request]

    def mine(self) -> list[tuple[WindowRequest, Armed]]:
        """Those that this one has taken, and their answers."""
        with _lock:
            return [(request, taken.answer) for (_, request), taken in _taken.items() if taken.owner is self]


_taken: dict[tuple[str, WindowRequest], _Taken] = {}
_lock = locks.reentrant()


def _forget() -> None:
    """A forked child is a process of its own."""
    _taken.clear()


os.register_at_fork(after_in_child=_forget)
