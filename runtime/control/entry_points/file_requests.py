"""What a watched file asks for: each window once, and commands for those that there are."""

from __future__ import annotations

import logging

from stepscope.runtime.control.armable import Armable
from stepscope.runtime.control.entry_points.control_file import ControlFile
from stepscope.runtime.control.requests.request_history import RequestHistory
from stepscope.runtime.control.requests.request_router import RequestRouter
from stepscope.runtime.control.requests.window_request import WindowRequest
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.files.encoding import json_bytes

TRIGGER = "file"
ASKING = "rank 0 chooses the steps"
"""The answer before there is one."""


class FileRequests:
    """Those of one profiler, on the control thread."""

    def __init__(self, profiler: Armable, router: RequestRouter, history: RequestHistory) -> None:
        self._profiler, self._router, self._history = profiler, router, history

    def follow(self, found: ControlFile) -> None:
        """The file says this now."""
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
        """The file asks for a window, which it does once, unless nothing came of that."""
        self.release_lost()
        passed_over = self._history.show(request)
        if passed_over:
            self._router.report(request, TRIGGER, passed_over, logging.WARNING)
        elif passed_over is None:
            times = self._history.times(request)
            text = json_bytes(request).decode()
            if self._router.agreement is not None:
                self._router.report(request, TRIGGER, ASKING)
            self._router.window(request, TRIGGER, key=f"{text} {times}" if times else text)

    def release_lost(self, *more: str) -> None:
        """Requests of which nothing is or was recorded can be asked again; more states that mean that."""
        for request, answer in self._history.mine():
            states = [
                each.state
                for each in self._profiler.armed()
                if (each.run_id, each.trigger) == (request.run_id, TRIGGER)
                and (each.first == answer.first or each.requested == request.text())
            ]
            if states and all(state in ("missed", "withdrawn", *more) for state in states):
                self._history.release(request)
