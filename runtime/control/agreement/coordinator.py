"""The leader's part in an agreement: whom to wait for, which steps to choose, when to decide."""

from __future__ import annotations

import contextlib
import logging
import math
import time

import msgspec

from stepscope.runtime.control.agreement.job_directory import Member, read_record
from stepscope.runtime.control.agreement.outcomes import repeats
from stepscope.runtime.control.agreement.records import ArmedAnswer, AtStep, Decision, Proposal, Records, Start
from stepscope.runtime.control.agreement.step_choice import choose_steps
from stepscope.runtime.control.requests.end_change import EndRequest, choose_end
from stepscope.runtime.control.requests.window_request import WindowRequest
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.private_files import replace_private

log = logging.getLogger("stepscope")

MARGIN = 0.3
"""Seconds from the choice of steps to the first of them that the first attempt allows for; each further one doubles it."""
ATTEMPTS = 8
LEAST_STEPS = 2
"""Steps ahead of the fastest rank in any case."""


class Leading:
    """Keeps nothing but times: everything else is in the records, so that another rank can go on with it."""

    def __init__(self, world_size: int, patience: float) -> None:
        self._world_size, self._patience = world_size, patience
        self._since: dict[tuple[int, str], float] = {}
        self._arrived: dict[tuple[int, int], float] = {}
        self._absent: set[int] = set()
        """Ranks that were waited for in vain and have not come since."""

    def begin(self) -> None:
        """This process leads from now on: everybody has the full time to answer."""
        self._since.clear()
        self._arrived.clear()

    def turn(self, records: Records, step: int) -> None:
        """Does the next thing that can be done.

        Args:
            records: of the run.
            step: where this rank is.

        Raises:
            OSError: if a record cannot be written.
        """
        number = records.latest()
        if number:
            proposal = records.read(Proposal, number)
            if proposal is None:
                records.write(Decision("aborted", "the proposal cannot be read"), number)
                return
            decision = records.read(Decision, number)
            if decision is None:
                self._lead(records, proposal)
                return
            if decision.again and proposal.attempt + 1 < ATTEMPTS:
                least = max(proposal.least, decision.least)
                again = msgspec.structs.replace(proposal, number=number + 1, attempt=proposal.attempt + 1, least=least)
                records.write(again, number + 1)
                return
        for key, wish in records.wishes():
            same = repeats(records, wish, step)
            if not same:
                records.write(Proposal(number + 1, key, wish.request, wish.trigger, end=wish.end), number + 1)
            taken = msgspec.structs.replace(wish, proposal=same or number + 1)
            replace_private(records.path("wish", key), json_bytes(taken))
            if same:
                log.info(
                    "control: %s, asked for by %s, is what will be recorded already", wish.asked.text(), wish.trigger
                )
                continue
            records.prune(number)
            self.begin()
            return

    def _lead(self, records: Records, proposal: Proposal) -> None:
        start = records.read(Start, proposal.number)
        if start is None and proposal.request is not None:
            self._choose(records, proposal, proposal.request)
        elif start is None:
            self._choose_end(records, proposal)
        else:
            self._decide(records, proposal, start)

    def _waited(self, number: int, what: str) -> float:
        now = time.monotonic()
        return now - self._since.setdefault((number, what), now)

    def _members(self, records: Records, proposal: Proposal) -> tuple[dict[int, Member], set[int]]:
        """The ranks that live and have a part in it, and those that have left or died; one that will be back is neither."""
        living: dict[int, Member] = {}
        gone: set[int] = set()
        signs: dict[int, float] = {}
        for path in records.directory.glob("member-*.json"):
            member = read_record(path, Member)
            if member is None:
                continue
            with contextlib.suppress(FileNotFoundError):
                signs[member.rank] = path.stat().st_mtime
            if not proposal.wants(member.rank):
                continue
            if member.peer.is_dead or (member.left and not member.waits):
                gone.add(member.rank)
            elif not member.left:
                living[member.rank] = member
        latest = max(signs.values(), default=0.0)  # this process gives signs as well: now, by the file system's clock
        for rank, member in list(living.items()):
            if not member.peer.is_local and latest - signs.get(rank, 0.0) > self._patience / 2:
                gone.add(rank)
                del living[rank]
        return living, gone

    def _said(self, records: Records, number: int, gone: set[int]) -> dict[int, AtStep]:
        """Where the ranks are that have said so."""
        said = {each.rank: each for each in records.of(AtStep, number) if each.rank not in gone}
        now = time.monotonic()
        for rank in said:
            self._arrived.setdefault((number, rank), now)
        return said

    def _ahead(self, said: dict[int, AtStep], proposal: Proposal) -> int:
        """The first step that all have ahead of them, with time to agree on it."""
        now, margin = time.monotonic(), MARGIN * 2**proposal.attempt
        ahead: int = max(
            each.step + math.ceil(each.rate * (now - self._arrived[proposal.number, each.rank] + margin))
            for each in said.values()
        )
        return ahead + LEAST_STEPS + proposal.attempt

    def _choose_end(self, records: Records, proposal: Proposal) -> None:
        """Chooses how windows end when it is known where all are that have some. Only who takes part can have one."""
        number, asked = proposal.number, proposal.asked
        assert isinstance(asked, EndRequest)
        members, gone = self._members(records, proposal)
        said = self._said(records, number, gone)
        silent = [rank for rank in members if rank not in said]
        if silent:
            if self._waited(number, "step") >= self._patience:
                self._abort(records, number, f"{_ranks(silent)} did not say at which step in {self._patience:g} s")
            return
        if not said:
            self._abort(records, number, "none of the ranks takes part any more")
            return
        windows = {rank: each.windows for rank, each in said.items()}
        chosen = choose_end(asked, windows, max(self._ahead(said, proposal), proposal.least))
        if chosen.change is None:
            self._abort(records, number, chosen.reason)
        else:
            records.write(Start(None, chosen.ranks, chosen.change), number)

    def _choose(self, records: Records, proposal: Proposal, request: WindowRequest) -> None:
        """Chooses steps when it is known where all are."""
        number = proposal.number
        members, gone = self._members(records, proposal)
        wanted = range(self._world_size) if request.ranks is None else request.ranks
        unknown = [rank for rank in wanted if rank >= self._world_size]
        if unknown:
            self._abort(
                records, number, f"{_ranks(unknown)}: this job has ranks 0 to {self._world_size - 1}, so none records"
            )
            return
        said = self._said(records, number, gone)
        self._absent -= members.keys()
        missing = [rank for rank in wanted if rank not in said and rank not in gone and rank not in self._absent]
        if missing and self._waited(number, "step") < self._patience:
            return
        self._absent.update(rank for rank in missing if rank not in members)
        silent = [rank for rank in missing if rank in members]
        if silent:
            self._abort(records, number, f"{_ranks(silent)} did not say at which step in {self._patience:g} s")
            return
        if not said:
            self._abort(records, number, "none of the ranks that are to record takes part")
            return
        ahead = self._ahead(said, proposal) + request.warmup
        latest = max(said.values(), key=lambda each: each.step)
        where = f"rank {latest.rank} is at step {latest.step}"
        chosen = choose_steps(request, ahead, proposal.least, latest.step + 1, where)
        if chosen.request is None:
            self._abort(records, number, chosen.reason)
        else:
            records.write(Start(chosen.request, tuple(sorted(said))), number)

    def _decide(self, records: Records, proposal: Proposal, start: Start) -> None:
        """Decides when everybody has answered who lives."""
        number = proposal.number
        members, _ = self._members(records, proposal)
        answers = {each.rank: each for each in records.of(ArmedAnswer, number)}
        refused = [each for each in answers.values() if not each.ok and each.rank in start.ranks]
        if refused:
            worst = max(refused, key=lambda each: each.least or 0)
            again = all(each.least is not None for each in refused) and proposal.may_move
            records.write(Decision("aborted", f"rank {worst.rank}: {worst.reason}", again, worst.least or 0), number)
            return
        silent = [rank for rank in start.ranks if rank not in answers and rank in members]
        if not silent:
            if any(rank in answers for rank in start.ranks):
                records.write(Decision("committed"), number)
            else:
                self._abort(records, number, f"{_ranks(start.ranks)} ended before the window")
        elif self._waited(number, "armed") > self._patience:
            self._abort(records, number, f"{_ranks(silent)} did not answer in {self._patience:g} s")

    def _abort(self, records: Records, number: int, reason: str) -> None:
        log.warning("control: a window is not recorded: %s", reason)
        records.write(Decision("aborted", reason), number)


def _ranks(ranks: list[int] | tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
