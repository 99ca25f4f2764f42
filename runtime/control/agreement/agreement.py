"""One rank's part in agreeing with the others on the steps of windows. docs/control.md has the protocol.

Who leads asks where everybody is, chooses steps that all have ahead of them, and decides when all have answered. A rank
that comes to the first step before that decides itself that the window is not recorded, and the leader tries again with
later steps. So either all ranks that live record the same steps, or none does.
"""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path

from stepscope.runtime.control.agreement.coordinator import Leading
from stepscope.runtime.control.agreement.job_directory import JobDirectory
from stepscope.runtime.control.agreement.membership import Membership
from stepscope.runtime.control.agreement.outcomes import answer_before
from stepscope.runtime.control.agreement.participant import Following, Outcome
from stepscope.runtime.control.agreement.rate import StepRate
from stepscope.runtime.control.agreement.records import Asked, Records, Wish
from stepscope.runtime.control.armable import Armable
from stepscope.runtime.control.requests.armed import Armed
from stepscope.runtime.control.requests.window_request import WindowRequest
from stepscope.runtime.errors import ControlError
from stepscope.runtime.files.encoding import json_bytes

log = logging.getLogger("stepscope")

ACTIVE = 0.05
"""Seconds between two turns while something is being agreed on."""
AWAKE = 10.0
"""Seconds that a rank stays awake after it wished for something."""


class Agreement:
    """Lives on one thread, which calls `turn()` from time to time. No thread and no waiting of its own."""

    def __init__(
        self,
        directory: JobDirectory,
        profiler: Armable,
        *,
        rank: int,
        world_size: int,
        patience: float = 20.0,
        idle: float = 2.0,
        outcome: Outcome = lambda request, trigger, armed: None,
    ) -> None:
        """
        Args:
            directory: of the job.
            profiler: that records.
            rank: of this process.
            world_size: how many ranks the job has.
            patience: seconds that are waited for a rank; one of another machine that gave no sign of life for half of that
                counts as dead.
            idle: seconds between two turns while nothing is asked for.
            outcome: told of what became of each request, here.
        """
        self._directory, self._profiler = directory, profiler
        self._rank, self._idle, self._outcome = rank, idle, outcome
        self._membership = Membership(directory, rank, patience)
        self._leading = Leading(world_size, patience)
        self._led = False
        self._following: Following | None = None
        self._records: Records | None = None
        self._wishes: dict[str, Wish] = {}
        """Those that are not among the records yet."""
        self._awake = 0.0
        self._rate = StepRate()
        self.trouble = ""
        """Why this rank cannot take part at present; empty if it does."""

    def wish(self, asked: Asked, trigger: str, key: str = "") -> None:
        """Asks for a window on all ranks, or that one ends later or earlier. The same again changes nothing: another
        `run_id` makes another window. To extend or abort once more means the same until another window was decided on.

        Args:
            key: what makes it the same; default: the request.
        """
        text = key or json_bytes(asked).decode()
        if isinstance(asked, WindowRequest):
            self._wishes[text] = Wish(asked, trigger)
        else:
            self._wishes[text] = Wish(None, trigger, end=asked)
        self._awake = time.monotonic() + AWAKE

    @property
    def directory(self) -> Path | None:
        """Where the records of the run are; `None` before this rank takes part."""
        return None if self._records is None else self._records.directory

    def turn(self) -> float:
        """Does what is to be done now; returns the seconds until the next turn, at most."""
        self._rate.add(time.monotonic(), self._profiler.step_num)
        try:
            self._turn()
        except (OSError, ControlError) as error:
            said = str(error) if isinstance(error, ControlError) else f"{self._directory.path} cannot be used: {error}"
            self._membership.drop()
            self._take_part(None)
            self._stumble(said)
        if self._records is None:
            return min(4 * ACTIVE, self._idle)
        busy = self._wishes or time.monotonic() < self._awake or (self._following is not None and self._following.busy)
        return min(ACTIVE, self._idle) if busy else min(self._idle, self._membership.beat)

    def begin_to_close(self) -> None:
        """It will be closed soon, on its thread: a later profiler of the process waits for that. From any thread."""
        self._membership.leaving = True

    def close(self) -> None:
        """Takes part no more: nobody waits for this rank."""
        self._take_part(None, "the profiler was closed")
        try:
            self._membership.leave()
        except OSError as error:  # the directory is gone, and nobody asks any more
            log.info("control: %s", error)

    def _turn(self) -> None:
        records = self._membership.look()
        if records is not self._records:
            self._take_part(records)
        leads = self._directory.leads
        if leads and not self._led:
            self._leading.begin()
        self._led = leads
        if records is None or self._following is None:
            return
        self.trouble = ""
        self._publish_wishes(records, self._following)
        if leads:
            self._leading.turn(records, self._profiler.step_num)
        self._following.turn()

    def _take_part(self, records: Records | None, why: str = "the job's directory was taken over") -> None:
        """In this run from now on, or in none."""
        if self._following is not None:
            self._following.end(why)
            self._following = None
        self._records = records
        if records is not None:
            again = self._membership.again
            self._following = Following(records, self._profiler, self._rank, self._rate, self._outcome, again=again)
            self._leading.begin()

    def _publish_wishes(self, records: Records, following: Following) -> None:
        for text, wish in list(self._wishes.items()):
            about = "" if wish.end is None else f"{records.latest_window()} "
            key = hashlib.sha256(f"{about}{text}".encode()).hexdigest()[:16]
            if not records.write(wish, key) and (answer := answer_before(records, key, wish)) is not None:
                if key not in following.followed:
                    self._outcome(wish.asked, wish.trigger, answer)
            del self._wishes[text]

    def _stumble(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            log.error("control: %s", trouble)
        for wish in self._wishes.values():
            self._outcome(wish.asked, wish.trigger, Armed(False, run_id=wish.asked.run_id, reason=trouble))
        self._wishes.clear()
