"""One rank's part in agreeing with the others on the steps of windows. docs/control.md has the protocol.

Who leads asks where everybody is, chooses steps that all have ahead of them, and decides when all have answered. A rank
that comes to the first step before that decides itself that the window is not recorded, and the leader tries again with
later steps. So either all ranks that live record the same steps, or none does.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from stepscope.runtime.control.agreed_gate import AgreedGate
from stepscope.runtime.control.armable import Armable
from stepscope.runtime.control.armed import Armed
from stepscope.runtime.control.choosing import nearest_of, why_not
from stepscope.runtime.control.end_change import EndRequest
from stepscope.runtime.control.job_directory import JobDirectory, Member, read_record
from stepscope.runtime.control.leading import Leading
from stepscope.runtime.control.peer import Peer
from stepscope.runtime.control.proposal import ArmedAnswer, AtStep, Decision, Proposal, Records, Start, Wish
from stepscope.runtime.control.rate import StepRate
from stepscope.runtime.control.telling import answer_before, answer_of_others
from stepscope.runtime.control.window_request import WindowRequest
from stepscope.runtime.presence import replace_private

log = logging.getLogger("stepscope")

ACTIVE = 0.05
"""Seconds between two turns while something is being agreed on."""
BEAT = 5.0
"""Seconds, at most, between two signs of life for ranks of other machines, which cannot look at this process."""
MOST_WINDOWS = 32
"""Of those that were armed: so many are told to the others."""
AWAKE = 10.0
"""Seconds that a rank stays awake after it wished for something."""

Asked = WindowRequest | EndRequest
Outcome = Callable[[Asked, str, Armed], object]
"""Told of what became of a request: the request, what asked for it, and the answer."""


class _Taking:
    """What this rank knows of one proposal."""

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal
        self.said_step = False
        self.gate: AgreedGate | None = None
        self.armed: Armed | None = None
        self.own: Path | None = None

    def forget(self) -> None:
        """Nothing is to be published any more."""
        if self.own is not None:
            self.own.unlink(missing_ok=True)


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
        self._leading = Leading(world_size, patience)
        self._records: Records | None = None
        self._wishes: dict[str, Wish] = {}
        """Those that are not among the records yet."""
        self._taking: dict[int, _Taking] = {}
        self._followed: set[str] = set()
        """Keys of the wishes whose outcome was told here."""
        self._seen = 0
        self._awake = self._next_beat = 0.0
        self._beat = min(BEAT, patience / 8)
        self._rate = StepRate()
        self._patience = patience
        self._missing = 0.0
        """Since when there is no directory in which the job's can be made; 0: there is one."""
        self.trouble = ""
        """Why this rank cannot take part at present; empty if it does."""

    def wish(self, asked: Asked, trigger: str, key: str = "") -> None:
        """Asks for a window on all ranks, or that one ends later or earlier. The same again changes nothing: another
        `run_id` makes another window. To extend or abort once more means the same until another window was decided on.

        Args:
            key: what makes it the same; default: the request.
        """
        text = key or msgspec.json.encode(asked).decode()
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
        except OSError as error:
            self._stumble(f"{self._directory.path} cannot be used: {error}")
            self._leave_records()
        if self._records is None:
            return min(4 * ACTIVE, self._idle)
        busy = self._taking or self._wishes or time.monotonic() < self._awake
        return min(ACTIVE, self._idle) if busy else min(self._idle, self._beat)

    def close(self) -> None:
        """Takes part no more: nobody waits for this rank."""
        for taking in self._taking.values():
            taking.forget()
        if self._records is not None:
            try:
                self._say_member(left=True)
            except OSError as error:  # the directory is gone, and nobody asks any more
                log.info("control: %s", error)
        self._leave_records()

    # taking part

    def _turn(self) -> None:
        if self._records is None or not self._is_current():
            self._enter()
        records = self._records
        if records is None:
            return
        self.trouble = ""
        self._show_life(records)
        self._publish_wishes(records)
        if self._directory.leads:
            self._leading.turn(records, self._profiler.step_num)
        latest = records.latest()
        for number in range(self._seen + 1, latest + 1):
            proposal = records.read(Proposal, number)
            if proposal is None:
                continue
            if records.read(Decision, number) is None or self._may_join(records, number):
                self._taking[number] = _Taking(proposal)
        self._seen = max(self._seen, latest)
        for number, taking in list(self._taking.items()):
            if self._follow(records, number, taking):
                taking.forget()
                del self._taking[number]

    def _is_current(self) -> bool:
        """Whether the run is still the one that this rank entered; leads it if nobody does any more."""
        assert self._records is not None
        current = self._directory.current()
        if current is None or current.epoch != self._records.directory.name:
            self._leave_records()
            return False
        if not self._directory.leads and self._directory.try_to_lead():
            current = self._directory.current()  # another one may have begun a new run before
            if current is None or current.epoch != self._records.directory.name:
                self._leave_records()
                return False
            self._directory.say_leader(current.epoch)
            self._leading.begin()
        return True

    def _enter(self) -> None:
        try:
            self._directory.make()
        except FileNotFoundError:  # rank 0 has yet to make the directory of the watched file
            now = time.monotonic()
            self._missing = self._missing or now
            if now - self._missing < self._patience:
                return
            raise
        self._missing = 0.0
        found = self._directory.enter()
        if found is None:
            return
        records = Records(found)
        other = read_record(records.path("member", self._rank), Member)
        if other is not None and not other.left and other.peer != self._directory.me and not other.peer.is_dead:
            self._stumble(
                f"rank {self._rank} is {other.peer} in this job already; set STEPSCOPE_JOB to different names for "
                "different jobs"
            )
            self._directory.stop_leading()
            return
        self._records = records
        self._leading.begin()
        self._say_member()

    def _say_member(self, *, left: bool = False) -> None:
        assert self._records is not None
        member = Member(self._rank, self._directory.me, left)
        replace_private(self._records.path("member", self._rank), msgspec.json.encode(member))

    def _show_life(self, records: Records) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + self._beat
            os.utime(records.path("member", self._rank))

    def _leave_records(self) -> None:
        for taking in self._taking.values():
            if taking.gate is not None and taking.gate.known is None:
                self._profiler.withdraw(taking.gate, "the job's directory was taken over")
        self._taking.clear()
        self._records, self._seen = None, 0
        self._followed.clear()
        self._directory.stop_leading()

    def _stumble(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            log.error("control: %s", trouble)
        for wish in self._wishes.values():
            self._outcome(wish.asked, wish.trigger, Armed(False, run_id=wish.asked.run_id, reason=trouble))
        self._wishes.clear()

    # one proposal

    def _publish_wishes(self, records: Records) -> None:
        for text, wish in list(self._wishes.items()):
            about = "" if wish.end is None else f"{records.latest_window()} "
            key = hashlib.sha256(f"{about}{text}".encode()).hexdigest()[:16]
            if not records.write(wish, key) and (answer := answer_before(records, key, wish)) is not None:
                if key not in self._followed:
                    self._outcome(wish.asked, wish.trigger, answer)
            del self._wishes[text]

    def _follow(self, records: Records, number: int, taking: _Taking) -> bool:
        """Does this rank's next part in a proposal; returns whether it has none left."""
        if not taking.proposal.wants(self._rank):  # it is only told what becomes of it
            decision, start = records.read(Decision, number), records.read(Start, number)
            if decision is None:
                return False
            if start is not None:
                taking.armed = answer_of_others(start)
            self._tell(taking, decision)
            return True
        if not taking.said_step:
            step, rate = self._profiler.step_num, self._rate.per_second
            windows = () if taking.proposal.end is None else self._profiler.armed()[-MOST_WINDOWS:]
            records.write(AtStep(self._rank, step, rate, windows), number, self._rank)
            taking.said_step = True
        decision = taking.gate.known if taking.gate is not None else None
        decision = decision or records.read(Decision, number)
        if decision is None:
            start = records.read(Start, number)
            if start is not None and taking.armed is None:
                self._arm(records, number, taking, start)
            return False
        if taking.armed is None and decision.decision == "committed":  # joined late
            start = records.read(Start, number)
            if start is not None:
                armed = self._ask(start, taking.proposal.trigger, None)
                if start.end is not None and not armed:
                    armed = Armed(True, None, start.end.last, reason=f"asked of other ranks than rank {self._rank}")
                taking.armed = armed
        elif taking.gate is not None:
            if taking.gate.known is None:
                taking.gate.known = decision
            if decision.decision == "aborted":
                self._profiler.withdraw(taking.gate, decision.reason)
            else:
                self._profiler.confirm(taking.gate)
        self._tell(taking, decision)
        return True

    def _may_join(self, records: Records, number: int) -> bool:
        """Whether what was decided before this rank took part still lies ahead of it."""
        decision, start = records.read(Decision, number), records.read(Start, number)
        committed = decision is not None and decision.decision == "committed"
        return committed and start is not None and self._profiler.step_num < start.step

    def _ask(self, start: Start, trigger: str, gate: AgreedGate | None) -> Armed:
        if start.request is not None:
            return self._profiler.arm(start.request, trigger=trigger, gate=gate)
        assert start.end is not None
        return self._profiler.change_end(start.end, gate=gate)

    def _arm(self, records: Records, number: int, taking: _Taking, start: Start) -> None:
        if start.end is not None and self._rank not in start.ranks:
            return  # it has none of these windows, so it has no say
        proposal = taking.proposal
        late = f"rank {self._rank} came to step {start.step} before all ranks had answered"
        mine = Decision("aborted", late, again=proposal.end is None or proposal.may_move, least=start.step + 1)
        taking.own = records.private_copy(mine, number, self._rank)
        taking.gate = AgreedGate(records.path("decision", number), taking.own)
        armed = taking.armed = self._ask(start, proposal.trigger, taking.gate)
        answer = ArmedAnswer(self._rank, True)
        if not armed:
            least = nearest_of(proposal.request, start.step, self._profiler.step_num, armed.nearest)
            answer = ArmedAnswer(self._rank, False, why_not(proposal.request, armed.reason), least)
        records.write(answer, number, self._rank)

    def _tell(self, taking: _Taking, decision: Decision) -> None:
        asked, trigger = taking.proposal.asked, taking.proposal.trigger
        self._followed.add(taking.proposal.key)
        if decision.decision == "committed" and taking.armed is not None:
            self._outcome(asked, trigger, taking.armed)
        elif not decision.again:
            self._outcome(asked, trigger, Armed(False, run_id=asked.run_id, reason=decision.reason))

    @property
    def leader(self) -> Peer | None:
        """Who leads, as far as is known."""
        current = self._directory.current()
        return None if current is None else current.leader
