"""Routes requests to this rank or to all ranks, and reports answers to the caller, the log and the status file."""

from __future__ import annotations

import logging
from collections.abc import Callable

from stepscope.runtime.control.agreement.agreement import Agreement
from stepscope.runtime.control.agreement.plans import Asked
from stepscope.runtime.control.entry_points.status_file import StatusFile
from stepscope.runtime.control.request_history import RequestHistory
from stepscope.runtime.requests.armable import Armable
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.armed_window import Gate
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.session.ranks import ranks_text

log = logging.getLogger("stepscope")

OnAnswer = Callable[[Armed], object]


class RequestRouter:
    """Routes the requests of one profiler, on the control thread."""

    def __init__(
        self,
        profiler: Armable,
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
        gate: Gate | None = None,
    ) -> None:
        """Asks for a window.

        Args:
            trigger: what asks for it.
            on_answer: is given the answer; without one, a rank that is not among those asked for is no refusal.
            key: what makes equal requests of several ranks one; see `Agreement.ask`.
            gate: of the window, where each rank uses its own steps.
        """
        if self.agreement is not None:
            self.all_ranks(request, trigger, on_answer, key)
        elif on_answer is None and not request.wants(self._rank):
            ranks = ranks_text(request.ranks)
            where = f"asked of ranks {ranks}, not of rank {self._rank or 0}; each goes by its own steps"
            self.report(request, trigger, where)
        else:
            armed = self._profiler.arm(request, trigger=trigger, gate=gate)
            self.decided(request, trigger, armed)
            if on_answer is not None:
                on_answer(armed)

    def all_ranks(self, asked: Asked, trigger: str, on_answer: OnAnswer | None = None, key: str = "") -> None:
        """Asks rank 0 for a window on all ranks, or for another end of what runs; there must be an agreement."""
        assert self.agreement is not None
        if on_answer is not None:
            self._waiting.append((_named(asked, trigger), on_answer))
        self.agreement.ask(asked, trigger, key)

    def decided(self, asked: Asked, trigger: str, armed: Armed) -> None:
        """This came of it; also for what another rank has asked for."""
        if self._history is not None and trigger == "file" and isinstance(asked, WindowRequest):
            self._history.decided(asked, armed)
        if armed:
            self.report(asked, trigger, str(armed))
        else:
            self.refuse(asked, trigger, str(armed))
        name = _named(asked, trigger)
        for waiting in [waiting for waiting in self._waiting if waiting[0] == name]:
            self._waiting.remove(waiting)
            waiting[1](armed)

    def refuse(self, asked: Asked | str, trigger: str, answer: str) -> None:
        """Reports a refusal."""
        if self._refused is not None:
            self._refused(answer)
        self.report(asked, trigger, answer, logging.INFO if self._refused else logging.WARNING)

    def report(self, asked: Asked | str, trigger: str, answer: str, level: int = logging.INFO) -> None:
        """Tells log and status file what was answered to a request, or to something of this name."""
        text, run_id = (asked, "") if isinstance(asked, str) else (asked.text(), asked.run_id)
        log.log(level, "control: %s, asked for by %s: %s", text, trigger, answer)
        if self._status is not None:
            self._status.put_answer(text, answer, trigger=trigger, run_id=run_id)

    def end(self) -> None:
        """Nothing is decided any more."""
        waiting, self._waiting = self._waiting, []
        for _, on_answer in waiting:
            on_answer(Armed(False, reason="the profiler was closed"))


def _named(asked: Asked, trigger: str) -> str:
    return f"{trigger} {asked!r}"
