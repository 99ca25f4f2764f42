"""A rank's part in what the leader proposes: it says where it is, arms what is chosen, and does what is decided."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from stepscope.runtime.control.agreement.agreed_gate import AgreedGate
from stepscope.runtime.control.agreement.outcomes import answer_of_others
from stepscope.runtime.control.agreement.rate import StepRate
from stepscope.runtime.control.agreement.records import ArmedAnswer, Asked, AtStep, Decision, Proposal, Records, Start
from stepscope.runtime.control.agreement.step_choice import nearest_of, why_not
from stepscope.runtime.control.armable import Armable
from stepscope.runtime.control.requests.armed import Armed

MOST_WINDOWS = 32
"""Of those that were armed: so many are told to the others."""

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
            with contextlib.suppress(OSError):  # it is only in the way where its directory is still there
                self.own.unlink()


class Following:
    """Follows the proposals of one run."""

    def __init__(
        self, records: Records, profiler: Armable, rank: int, rate: StepRate, outcome: Outcome, *, again: bool = False
    ) -> None:
        """
        Args:
            records: of the run.
            profiler: that records.
            rank: of this process.
            rate: how fast the profiler's loop goes.
            outcome: told of what became of each request, here.
            again: whether this process took part before, with another profiler: what it had a part in then is over.
        """
        self.followed: set[str] = set()
        """Keys of the wishes whose outcome was told here."""
        self._records, self._profiler, self._rank, self._rate = records, profiler, rank, rate
        self._outcome, self._again = outcome, again
        self._taking: dict[int, _Taking] = {}
        self._seen = 0

    @property
    def busy(self) -> bool:
        """Whether something is being agreed on."""
        return bool(self._taking)

    def turn(self) -> None:
        """Does this rank's next part in each proposal.

        Raises:
            OSError: if a record cannot be written.
        """
        latest = self._records.latest()
        for number in range(self._seen + 1, latest + 1):
            proposal = self._records.read(Proposal, number)
            if proposal is None:
                continue
            if self._records.read(Decision, number) is None or self._may_join(number):
                self._taking[number] = _Taking(proposal)
        self._seen = max(self._seen, latest)
        for number, taking in list(self._taking.items()):
            if self._follow(number, taking):
                taking.forget()
                del self._taking[number]

    def end(self, reason: str) -> None:
        """Follows no more: what is not decided on is forgotten, for this reason."""
        for taking in self._taking.values():
            taking.forget()
            if taking.gate is not None and taking.gate.known is None:
                self._profiler.withdraw(taking.gate, reason)
        self._taking.clear()

    def _follow(self, number: int, taking: _Taking) -> bool:
        """Does the next part in a proposal; returns whether there is none left."""
        records = self._records
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
                self._arm(number, taking, start)
            return False
        self._carry_out(number, taking, decision)
        self._tell(taking, decision)
        return True

    def _carry_out(self, number: int, taking: _Taking, decision: Decision) -> None:
        if taking.armed is None and decision.decision == "committed":  # joined late
            start = self._records.read(Start, number)
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

    def _may_join(self, number: int) -> bool:
        """Whether what was decided before this rank took part still lies ahead of it."""
        decision, start = self._records.read(Decision, number), self._records.read(Start, number)
        if decision is None or decision.decision != "committed" or start is None:
            return False
        if self._again and self._rank in start.ranks:
            return False
        return self._profiler.step_num < start.step

    def _ask(self, start: Start, trigger: str, gate: AgreedGate | None) -> Armed:
        if start.request is not None:
            return self._profiler.arm(start.request, trigger=trigger, gate=gate)
        assert start.end is not None
        return self._profiler.change_end(start.end, gate=gate)

    def _arm(self, number: int, taking: _Taking, start: Start) -> None:
        if start.end is not None and self._rank not in start.ranks:
            return  # it has none of these windows, so it has no say
        proposal, records = taking.proposal, self._records
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
        self.followed.add(taking.proposal.key)
        if decision.decision == "committed" and taking.armed is not None:
            self._outcome(asked, trigger, taking.armed)
        elif not decision.again:
            self._outcome(asked, trigger, Armed(False, run_id=asked.run_id, reason=decision.reason))
