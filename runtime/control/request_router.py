"""Routes requests to this rank or to all ranks, and reports answers to the caller, the log and the status file."""

from __future__ import annotations

import logging
from collections.abc import Callable

from stepscope.runtime.control.agreement.agreement import Agreement
from stepscope.runtime.control.agreement.plans import AnyRequest
from stepscope.runtime.control.entry_points.status_file import StatusFile
from stepscope.runtime.control.request_history import RequestHistory
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.session.ranks import ranks_text
from stepscope.runtime.steps.arming import Arming

log = logging.getLogger("stepscope")

OnAnswer = Callable[[Armed], object]


class RequestRouter:
    """Routes the requests of one profiler, on the control thread."""

    def __init__(
        self,
        profiler: Arming,
        rank: int | None,
        status: StatusFile | None = None,
        history: RequestHistory | None = None,
        refused: Callable[[str], object] | None = None,
    ) -> None:
        """
        Args:
            profiler: of this rank.
            rank: of this process.
            status: the status file.
            history: of the requests of the watched file.
            refused: called with the answer to each refused request; default: it is logged as a warning.
        """
        self.agreement: Agreement | None = None
        """With other ranks; without one each rank uses its own steps."""
        self._profiler, self._rank = profiler, rank
        self._status, self._history, self._refused = status, history, refused
        self._waiting: list[tuple[str, OnAnswer]] = []

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
            trigger: what asks for it.
            on_answer: is called with the answer; without one, a rank that the request does not name is no refusal.
            key: what makes equal requests of several ranks one; see `Agreement.ask`.
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
        self.agreement.ask(request, trigger, key)

    def decided(self, request: AnyRequest, trigger: str, armed: Armed) -> None:
        """Reports the decision on a request, also of another rank."""
        if self._history is not None and trigger == "file" and isinstance(request, WindowRequest):
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
        """Reports a refusal."""
        if self._refused is not None:
            self._refused(answer)
        self.report(request, trigger, answer, logging.INFO if self._refused else logging.WARNING)

    def report(self, request: AnyRequest | str, trigger: str, answer: str, level: int = logging.INFO) -> None:
        """Tells log and status file what was answered to a request, or to something of this name."""
        text, run_id = (request, "") if isinstance(request, str) else (request.text(), request.run_id)
        log.log(level, "control: %s, asked for by %s: %s", text, trigger, answer)
        if self._status is not None:
            self._status.put_answer(text, answer, trigger=trigger, run_id=run_id)

    def end(self) -> None:
        """Nothing is decided any more."""
        waiting, self._waiting = self._waiting, []
        for _, on_answer in waiting:
            on_answer(Armed(False, reason="the profiler was closed"))


def _named(request: AnyRequest, trigger: str) -> str:
    return f"{trigger} {request!r}"
