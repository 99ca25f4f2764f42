"""Routes requests to this rank or to all ranks, and reports answers to the caller, the log and the status file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from stepscope.runtime.control.agreement.agreement import Agreement
from stepscope.runtime.control.agreement.job_directory import AnyRequest
from stepscope.runtime.control.entry_points.watched_file import StatusFile
from stepscope.runtime.control.request_history import RequestHistory
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.end_change import EndRequest
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.session.ranks import ranks_text
from stepscope.runtime.steps.arming import Arming

log = logging.getLogger("stepscope")

FILE = "file"
"""The trigger of requests of the watched file."""
PLAN = "the watched file"
"""The plan of windows that new content withdraws."""
PENDING = "rank 0 chooses the steps"
"""The answer until there is a decision."""

OnAnswer = Callable[[Armed], object]


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


class RequestRouter:
    """Routes the requests of one profiler, on the control thread."""

    def __init__(
        self,
        profiler: Arming,
        rank: int | None,
        status: StatusFile | None = None,
        history: RequestHistory | None = None,
        refused: Callable[[str], object] | None = None,
        *,
        withdraws_planned: bool = False,
        log_prefix: str = "control: ",
    ) -> None:
        """Args: `history`: of the watched file, if there is one. `refused`, `withdraws_planned`, `log_prefix`: as for `Controller`."""
        self.agreement: Agreement | None = None
        """With other ranks; without one each rank uses its own steps."""
        self._profiler, self._rank = profiler, rank
        self._status, self._history, self._refused = status, history, refused
        self._plan = PLAN if withdraws_planned else ""
        self._log_prefix = log_prefix
        self._waiting: list[tuple[str, OnAnswer]] = []

    def follow(self, found: FileContent) -> None:
        """Handles new content of the watched file: a window, unless it was recorded before, or a command."""
        end = found.end_request()
        if end is None:
            if self._plan and self.agreement is None:
                for window in self._profiler.withdraw(self._plan, "the file asks for something else"):
                    self._log(window.request.text(), FILE, f"withdrawn: {window.reason}")
            try:
                request = found.request()
            except ValueError as error:
                self.refuse("the window of the file", FILE, f"refused: {error}")
            else:
                if request is not None:
                    self._window_of_file(request)
        elif self.agreement is not None:
            self.all_ranks(end, FILE, key=found.key())
        elif end.command == "abort":
            ended = self._profiler.abort(end.run_id or None, reason=end.reason)
            answer = f"{human_count(len(ended), 'window')} ended" if ended else "no armed window runs or waits"
            self.report("abort", FILE, answer)
        else:
            extended = self._profiler.extend(end.steps, seconds=end.seconds, stop_step=end.stop_step)
            self.decided(end, FILE, extended)

    def _window_of_file(self, request: WindowRequest) -> None:
        assert self._history is not None
        self.release_lost()
        skipped = self._history.check(request)
        if skipped:
            self.report(request, FILE, skipped, logging.WARNING)
        elif skipped is None:
            times = self._history.times(request)
            text = json_bytes(request).decode()
            if self.agreement is not None:
                self.report(request, FILE, PENDING)
            self.window(request, FILE, key=f"{text} {times}" if times else text, plan=self._plan)

    def release_lost(self, *more: str) -> None:
        """Allows requests of the file again that led to no recording. Args: further states that mean this."""
        if self._history is not None:
            self._history.release_lost(self._profiler.armed(), ("missed", "withdrawn", *more))

    def window(
        self,
        request: WindowRequest,
        trigger: str,
        on_answer: OnAnswer | None = None,
        key: str = "",
        plan: str = "",
    ) -> None:
        """Asks for a window.

        Args:
            on_answer: is called with the answer; without one, a rank that the request does not name is no refusal.
            key: what makes equal requests of several ranks one; see `Agreement.request`.
            plan: of the window, where each rank uses its own steps; see `Arming.arm`.
        """
        if self.agreement is not None:
            self.all_ranks(request, trigger, on_answer, key)
        elif on_answer is None and not request.wants(self._rank):
            ranks = ranks_text(request.ranks)
            where = f"asked of ranks {ranks}, not of rank {self._rank or 0}; each goes by its own steps"
            self.report(request, trigger, where)
        else:
            armed = self._profiler.arm(request, trigger=trigger, plan=plan)
            self.decided(request, trigger, armed)
            if on_answer is not None:
                on_answer(armed)

    def all_ranks(self, request: AnyRequest, trigger: str, on_answer: OnAnswer | None = None, key: str = "") -> None:
        """Asks rank 0 for a window on all ranks, or for another end of what runs; there must be an agreement."""
        assert self.agreement is not None
        if on_answer is not None:
            self._waiting.append((_named(request, trigger), on_answer))
        self.agreement.request(request, trigger, key)

    def decided(self, request: AnyRequest, trigger: str, armed: Armed) -> None:
        """Reports the decision on a request, also of another rank."""
        if self._history is not None and trigger == FILE and isinstance(request, WindowRequest):
            self._history.decided(request, armed)
        if armed:
            self.report(request, trigger, str(armed))
        else:
            self.refuse(request, trigger, str(armed))
        name = _named(request, trigger)
        for waiting in [waiting for waiting in self._waiting if waiting[0] == name]:
            self._waiting.remove(waiting)
            waiting[1](armed)

    def refuse(self, request: AnyRequest | str, trigger: str, answer: str) -> None:
        if self._refused is not None:
            self._refused(answer)
        self.report(request, trigger, answer, None if self._refused else logging.WARNING)

    def report(self, request: AnyRequest | str, trigger: str, answer: str, level: int | None = logging.INFO) -> None:
        """Writes what was answered to a request, or to something of this name, into the status file, and with a level into the log."""
        text, run_id = (request, "") if isinstance(request, str) else (request.text(), request.run_id)
        if level is not None:
            self._log(text, trigger, answer, level)
        if self._status is not None:
            self._status.put(request=text, run_id=run_id or None, trigger=trigger, answer=answer)

    def _log(self, text: str, trigger: str, answer: str, level: int = logging.INFO) -> None:
        log.log(level, "%s%s, asked for by %s: %s", self._log_prefix, text, trigger, answer)

    def end(self) -> None:
        """Nothing is decided any more."""
        waiting, self._waiting = self._waiting, []
        for _, on_answer in waiting:
            on_answer(Armed(False, reason="the profiler was closed"))


def _named(request: AnyRequest, trigger: str) -> str:
    return f"{trigger} {request!r}"
