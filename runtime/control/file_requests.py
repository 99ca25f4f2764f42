"""Handles the requests of a watched file: each window once, and commands for existing windows."""

from __future__ import annotations

import logging

from stepscope.runtime.control.entry_points.control_file import ControlFile
from stepscope.runtime.control.request_history import RequestHistory
from stepscope.runtime.control.request_router import RequestRouter
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.requests.armable import Armable
from stepscope.runtime.requests.window_request import WindowRequest

TRIGGER = "file"
PENDING = "rank 0 chooses the steps"
"""The answer until there is a decision."""


class FileRequests:
    """The requests of the file for one profiler, on the control thread."""

    def __init__(self, profiler: Armable, router: RequestRouter, history: RequestHistory) -> None:
        self._profiler, self._router, self._history = profiler, router, history

    def follow(self, found: ControlFile) -> None:
        """Handles new content of the file."""
        end = found.end_request()
        if end is None:
            request = found.request()
            if request is not None:
                self.window(request)
        elif self._router.agreement is not None:
            self._router.all_ranks(end, TRIGGER, key=json_bytes(found).decode())
        elif end.command == "abort":
            ended = self._profiler.abort(end.run_id or None, reason=end.reason)
            answer = f"{human_count(len(ended), 'window')} ended" if ended else "no armed window runs or waits"
            self._router.report("abort", TRIGGER, answer)
        else:
            self._router.report("extend", TRIGGER, str(self._profiler.extend(end.steps, seconds=end.seconds)))

    def window(self, request: WindowRequest) -> None:
        """Requests a window, unless the same request was handled before and led to a recording."""
        self.release_lost()
        skipped = self._history.check(request)
        if skipped:
            self._router.report(request, TRIGGER, skipped, logging.WARNING)
        elif skipped is None:
            times = self._history.times(request)
            text = json_bytes(request).decode()
            if self._router.agreement is not None:
                self._router.report(request, TRIGGER, PENDING)
            self._router.window(request, TRIGGER, key=f"{text} {times}" if times else text)

    def release_lost(self, *more: str) -> None:
        """Allows requests again that led to no recording. Args: further states that mean this."""
        for request, answer in self._history.own():
            states = [
                each.state
                for each in self._profiler.armed()
                if (each.run_id, each.trigger) == (request.run_id, TRIGGER)
                and (each.first == answer.first or each.requested == request.text())
            ]
            if states and all(state in ("missed", "withdrawn", *more) for state in states):
                self._history.release(request)
