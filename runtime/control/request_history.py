"""The requests of watched files that were accepted in this process. Each is recorded once, even if several profilers follow the
file."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.threads import locks

MOST = 1000
"""Limit of remembered requests, the latest of all files."""


class _Accepted(NamedTuple):
    owner: object
    answer: Armed


class RequestHistory:
    """The requests of one file for one profiler. Requests are equal if all fields are, including `run_id`."""

    def __init__(self, path: Path, *, shared: bool = True) -> None:
        """Args: `shared`: whether the profilers of the process that follow the file record each request once."""
        self._path = str(path)
        self._accepted = _accepted if shared else {}
        self._shown: dict[WindowRequest, int] = {}
        self._pending: set[WindowRequest] = set()
        self._refused: set[WindowRequest] = set()
        """Refused before this rank had read the file."""

    def check(self, request: WindowRequest) -> str | None:
        """Checks a request that the file contains now. Returns `None` if it must be handled; else why it is skipped, empty if
        another rank has handled it already."""
        times = self._shown[request] = self._shown.get(request, -1) + 1
        with _lock:
            accepted = self._accepted.get((self._path, request))
        if accepted is not None:
            if accepted.owner is self and not times:
                return ""
            return f"this request was taken already ({accepted.answer}); another run_id records it again"
        if request in self._pending:
            return "this request was asked for already, and is not decided on yet; another run_id makes it another one"
        if request in self._refused:
            self._refused.discard(request)
            return ""
        self._pending.add(request)
        return None

    def times(self, request: WindowRequest) -> int:
        """Returns how often the file had contained it before."""
        return max(self._shown.get(request, 0), 0)

    def decided(self, request: WindowRequest, answer: Armed) -> None:
        """Records the answer. A refused request may be repeated."""
        self._pending.discard(request)
        if not answer and request not in self._shown:
            self._refused.add(request)
        if answer:
            with _lock:
                self._accepted[self._path, request] = _Accepted(self, answer)
                while len(self._accepted) > MOST:
                    del self._accepted[next(iter(self._accepted))]

    def release_lost(self, windows: Sequence[ArmedStatus], states: Collection[str]) -> None:
        """Removes requests of this profiler that led to no recording: all windows of such a request are in one of these states."""
        with _lock:
            for (path, request), accepted in list(self._accepted.items()):
                found = [window.state for window in windows if _is_of(window, request, accepted.answer)]
                if accepted.owner is self and found and all(state in states for state in found):
                    del self._accepted[path, request]


def _is_of(window: ArmedStatus, request: WindowRequest, answer: Armed) -> bool:
    same = (window.run_id, window.trigger) == (request.run_id, "file")
    return same and (window.first == answer.first or window.requested == request.text())


_accepted: dict[tuple[str, WindowRequest], _Accepted] = {}
_lock = locks.reentrant()


os.register_at_fork(after_in_child=_accepted.clear)
