"""Asks this rank for a window, or all ranks, and passes the answer on to who asked, the log and the status file."""

from __future__ import annotations

import logging
from collections.abc import Callable

from stepscope.runtime.control.agreement.agreement import Agreement
from stepscope.runtime.control.agreement.plans import Asked
from stepscope.runtime.control.entry_points.status_file import StatusFile
from stepscope.runtime.control.request_history import TakenRequests
from stepscope.runtime.requests.armable import Armable
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.session.ranks import ranks_text

log = logging.getLogger("stepscope")

Told = Callable[[Armed], object]


class RequestRouter:
    """Lives on the control thread. What comes of a request is told to who asked, to the log and to the status file."""

    def __init__(
        self,
        profiler: Armable,
        rank: int | None,
        status: StatusFile | None = None,
        taken: TakenRequests | None = None,
        refused: Callable[[Asked, Armed], object] | None = None,
    ) -> None:
        """
        Args:
            profiler: of this rank.
            rank: of this process.
            status: the file that says how things stand.
            taken: what the watched file has asked for.
            refused: told of requests that nothing comes of; default: the log says so.
        """
        self.agreement: Agreement | None = None
        """Of the ranks; without one each goes by its own steps."""
        self._profiler, self._rank = profiler, rank
        self._status, self._taken, self._refused = status, taken, refused
        self._waiting: list[tuple[str, Told]] = []

    def window(self, request: WindowRequest, trigger: str, told: Told | None = None, key: str = "") -> None:
        """Asks for a window.

        Args:
            trigger: what asks for it.
            told: is given the answer; without one, a rank that is not among those asked for is no refusal.
            key: what makes equal requests of several ranks one; see `Agreement.ask`.
        """
        if self.agreement is not None:
            self.all_ranks(request, trigger, told, key)
        elif told is None and not request.wants(self._rank):
            ranks = ranks_text(request.ranks)
            where = f"asked of ranks {ranks}, not of rank {self._rank or 0}; each goes by its own steps"
            self.say(request, trigger, where)
        else:
            armed = self._profiler.arm(request, trigger=trigger)
            self.decided(request, trigger, armed)
            if told is not None:
                told(armed)

    def all_ranks(self, asked: Asked, trigger: str, told: Told | None = None, key: str = "") -> None:
        """Asks rank 0 for a window on all ranks, or for another end of what runs; there must be an agreement."""
        assert self.agreement is not None
        if told is not None:
            self._waiting.append((_named(asked, trigger), told))
        self.agreement.ask(asked, trigger, key)

    def decided(self, asked: Asked, trigger: str, armed: Armed) -> None:
        """This came of it; also for what another rank has asked for."""
        if self._taken is not None and trigger == "file" and isinstance(asked, WindowRequest):
            self._taken.decided(asked, armed)
        if not armed and self._refused is not None:
            self._refused(asked, armed)
        self.say(asked, trigger, str(armed), logging.INFO if armed or self._refused else logging.WARNING)
        name = _named(asked, trigger)
        for waiting in [waiting for waiting in self._waiting if waiting[0] == name]:
            self._waiting.remove(waiting)
            waiting[1](armed)

    def say(self, asked: Asked | str, trigger: str, answer: str, level: int = logging.INFO) -> None:
        """Tells log and status file what was answered to a request, or to something of this name."""
        text, run_id = (asked, "") if isinstance(asked, str) else (asked.text(), asked.run_id)
        log.log(level, "control: %s, asked for by %s: %s", text, trigger, answer)
        if self._status is not None:
            self._status.put_answer(text, answer, trigger=trigger, run_id=run_id)

    def end(self) -> None:
        """Nothing is decided any more."""
        waiting, self._waiting = self._waiting, []
        for _, told in waiting:
            told(Armed(False, reason="the profiler was closed"))


def _named(asked: Asked, trigger: str) -> str:
    return f"{trigger} {asked!r}"
