"""Handles the requests of a watched file: each window once, and commands for existing windows."""

from __future__ import annotations

import logging
from typing import Protocol

from stepscope.runtime.control.request_history import RequestHistory
from stepscope.runtime.control.request_router import RequestRouter
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.requests.end_change import EndRequest
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.steps.arming import Arming

TRIGGER = "file"
PLAN = "the watched file"
"""The plan of windows that new content withdraws."""
PENDING = "rank 0 chooses the steps"
"""The answer until there is a decision."""


class FileContent(Protocol):
    """The content of a watched file; `ControlFile` is one."""

    def request(self) -> WindowRequest | None:
        """Returns the requested window; `None` if there is none. A `ValueError` says why no window can be like that."""
        ...

    def end_request(self) -> EndRequest | None:
        """Returns the requested end of the running window; `None` without a command."""
        ...

    def key(self) -> str:
        """Returns a text that is the same for the same content."""
        ...


class FileRequests:
    """The requests of the file for one profiler, on the control thread."""

    def __init__(
        self, profiler: Arming, router: RequestRouter, history: RequestHistory, *, withdraws_planned: bool = False
    ) -> None:
        """
        Args:
            profiler: that records the windows.
            router: of its requests.
            history: of the file.
            withdraws_planned: whether new content withdraws windows that have yet to begin, unless the ranks agree on them.
        """
        self._profiler, self._router, self._history = profiler, router, history
        self._plan = PLAN if withdraws_planned else ""

    def follow(self, found: FileContent) -> None:
        """Handles new content of the file."""
        end = found.end_request()
        if end is None:
            if self._plan and self._router.agreement is None:
                self._profiler.withdraw(self._plan, "the file asks for something else")
            try:
                request = found.request()
            except ValueError as error:
                self._router.refuse("the window of the file", TRIGGER, f"refused: {error}")
            else:
                if request is not None:
                    self.window(request)
        elif self._router.agreement is not None:
            self._router.all_ranks(end, TRIGGER, key=found.key())
        elif end.command == "abort":
            ended = self._profiler.abort(end.run_id or None, reason=end.reason)
            answer = f"{human_count(len(ended), 'window')} ended" if ended else "no armed window runs or waits"
            self._router.report("abort", TRIGGER, answer)
        else:
            extended = self._profiler.extend(end.steps, seconds=end.seconds, stop_step=end.stop_step)
            self._router.decided(end, TRIGGER, extended)

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
            self._router.window(request, TRIGGER, key=f"{text} {times}" if times else text, plan=self._plan)

    def release_lost(self, *more: str) -> None:
        """Allows requests again that led to no recording. Args: further states that mean this."""
        self._history.release_lost(self._profiler.armed(), ("missed", "withdrawn", *more))
