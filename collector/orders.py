"""Orders: windows that operators ask for, handed on to the processes whose streams are connected.

For a window on several ranks, and for its end, the collector is the arbiter: it asks where all are, proposes steps that all
have ahead of them, and says at once to all whether it is so. A rank that does not hear of that before the first step at which
it makes a difference goes on as before; a rank that the word did not reach in time is named in the answer.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from typing import Literal, NamedTuple

import msgspec

from stepscope.collector.connection import Connection
from stepscope.collector.order import OrderedRank, OrderResult, WindowOrder
from stepscope.collector.problems import ProblemError
from stepscope.collector.stream import Stream
from stepscope.collector.streams import Streams, rank_id
from stepscope.runtime.control.command import Answer, Command
from stepscope.runtime.control.end_change import NOTHING_WAITS, choose_end
from stepscope.runtime.control.ranks import ranks_from
from stepscope.runtime.control.window_detail import detail_from
from stepscope.runtime.control.window_request import WindowRequest
from stepscope.runtime.schedule import NEVER
from stepscope.runtime.table import human_count

MARGIN = 1.0
"""Seconds from the proposal to the first step that the first attempt allows for; each further one doubles it."""
ATTEMPTS = 5
LEAST_STEPS = 3
"""Steps ahead of the fastest rank in any case."""


class _Target(NamedTuple):
    stream: Stream
    connection: Connection


_Answers = list[tuple[_Target, Answer]]


class Orders:
    """Gives the orders of all operators; each is for one job."""

    def __init__(self, streams: Streams) -> None:
        """Args: whose processes obey."""
        self._streams = streams

    async def obey(self, order: WindowOrder) -> OrderResult:
        """Has an order carried out.

        Raises:
            ProblemError: 400 if it asks for what cannot be, 404 if no process is there that obeys, 409 if it is not
                clear which job is meant.
        """
        try:
            wanted = ranks_from(order.ranks)
            request = _request(order) if order.command == "arm" else None
        except ValueError as error:
            raise ProblemError(400, str(error)) from error
        targets = self._targets(order, wanted)
        if request is not None:
            return await self._arm(order, request, targets)
        match order.command:
            case "extend":
                if (order.steps is None) == (order.seconds is None):
                    raise ProblemError(400, "extend takes steps or seconds: how much longer the window is to be")
                command = Command(command="extend", steps=order.steps or 0, seconds=order.seconds or 0.0)
            case "abort":
                command = Command(command="abort", run_id=order.run_id or None, reason="an operator of the collector")
            case _:
                return _result(await self._ask(targets, Command(command="status"), order.patience))
        if len(targets) == 1:
            return _result(await self._ask(targets, command, order.patience))
        return await self._end(order, command, targets)

    def _targets(self, order: WindowOrder, wanted: tuple[int, ...] | None) -> list[_Target]:
        """The processes that are meant."""
        connected = [
            _Target(stream, stream.connection)
            for rank in self._streams
            for stream in [rank.latest]
            if isinstance(stream.connection, Connection)
            and (not order.name or stream.run.name == order.name)
            and (not order.job or stream.run.job == order.job)
        ]
        able = [target for target in connected if target.connection.control]
        if not able:
            raise ProblemError(
                404,
                f"none of {len(connected)} connected processes takes commands; they need "
                "trace(control=Control(collector=True))",
            )
        jobs = sorted({(target.stream.run.name, target.stream.run.job) for target in able})
        if len(jobs) > 1:
            shown = ", ".join(f"name {name!r} job {job!r}" for name, job in jobs[:10])
            raise ProblemError(409, f"several jobs are connected: say which one is meant: {shown}")
        chosen = [target for target in able if wanted is None or (target.stream.run.rank or 0) in wanted]
        absent = set(wanted or ()) - {target.stream.run.rank or 0 for target in chosen}
        if absent:
            shown = ", ".join(map(str, sorted(absent)[:20]))
            raise ProblemError(404, f"of the ranks that are to record, these are not connected: {shown}")
        return chosen

    async def _ask(self, targets: list[_Target], command: Command, patience: float) -> _Answers:
        async def one(target: _Target) -> Answer:
            try:
                return await target.connection.order(command, patience)
            except TimeoutError:
                return Answer(error=f"no answer in {patience:g} s")
            except ConnectionError as error:
                return Answer(error=str(error))

        answers = await asyncio.gather(*map(one, targets))
        return list(zip(targets, answers, strict=True))

    async def _arm(self, order: WindowOrder, request: WindowRequest, targets: list[_Target]) -> OrderResult:
        if len(targets) == 1:
            return _result(await self._ask(targets, Command(command="arm", request=request), order.patience))
        least, attempt = 0, 0
        while True:
            where, ahead = await self._ahead(order, targets, attempt)
            if any(answer.error for _, answer in where):
                return _result(where, reason="not all processes answer, so none records")
            ahead = max(ahead + request.warmup, least)
            proposed, reason = _chosen(request, ahead, max(answer.step for _, answer in where))
            if proposed is None:
                return _refused(where, reason)
            first = int(proposed.start_step)
            command = Command(command="propose", request=proposed)
            result, again = await self._propose(order, command, first, targets, "record these steps")
            attempt += 1
            fixed = request.past == "refuse" and request.start_step != "next"
            if not again or fixed or attempt == ATTEMPTS:
                return result
            least = first + 1

    async def _end(self, order: WindowOrder, command: Command, targets: list[_Target]) -> OrderResult:
        """Extends or aborts what is recorded, so that it ends with the same step on all ranks."""
        least, attempt, asked = 0, 0, command.end_request()
        while True:
            where, ahead = await self._ahead(order, targets, attempt)
            if any(answer.error for _, answer in where):
                return _result(where, reason="not all processes answer, so nothing changes")
            ranks = [target.stream.run.rank for target in targets]
            names = [-1 - number if rank is None else rank for number, rank in enumerate(ranks)]
            windows = {name: answer.windows for name, (_, answer) in zip(names, where, strict=True)}
            chosen = choose_end(asked, windows, max(ahead, least))
            if chosen.change is None and chosen.reason == NOTHING_WAITS:
                none = [(target, msgspec.structs.replace(answer, windows=())) for target, answer in where]
                return _result(none, reason=NOTHING_WAITS)
            if chosen.change is None:
                return _refused(where, chosen.reason)
            concerned = [target for name, target in zip(names, targets, strict=True) if name in chosen.ranks]
            by = chosen.change.decided_by
            proposal = Command(command="propose", end=chosen.change)
            result, again = await self._propose(order, proposal, by, concerned, f"{command.command} the window")
            attempt += 1
            if not again or command.command == "extend" or attempt == ATTEMPTS:
                return result
            least = by + 1

    async def _ahead(self, order: WindowOrder, targets: list[_Target], attempt: int) -> tuple[_Answers, int]:
        """Where all are, and the first step that all have ahead of them, with time to agree on it."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        where = await self._ask(targets, Command(command="status"), order.patience)
        passed = loop.time() - asked + MARGIN * 2**attempt
        return where, max(answer.step + math.ceil(answer.rate * passed) for _, answer in where) + LEAST_STEPS

    async def _propose(
        self, order: WindowOrder, proposal: Command, by: int, targets: list[_Target], what: str
    ) -> tuple[OrderResult, bool]:
        """Proposes something to all; returns what became of it, and whether later steps might do.

        Args:
            by: the step at which it must be decided.
            what: what they are to do, for the answer.
        """
        name = secrets.token_hex(16)
        answers = await self._ask(targets, msgspec.structs.replace(proposal, proposal=name), order.patience)
        if not all(_obeys(answer) for _, answer in answers):
            reason = f"not all ranks can {what}, so none does"
            no = Command(command="decide", proposal=name, committed=False, reason=reason)
            await self._ask([target for target, answer in answers if _obeys(answer)], no, order.patience)
            late = any(answer.step >= by for _, answer in answers)
            refused: _Answers = [
                (target, msgspec.structs.replace(answer, error=reason) if _obeys(answer) else answer)
                for target, answer in answers
            ]
            return _result(refused, reason=reason), late
        decided = await self._ask(targets, Command(command="decide", proposal=name, committed=True), order.patience)
        final: _Answers = [
            (target, msgspec.structs.replace(answer, error=said.error, step=said.step or answer.step))
            for (target, answer), (_, said) in zip(answers, decided, strict=True)
        ]
        missed = any(answer.error for _, answer in final)
        nobody = all(answer.error for _, answer in final)
        reason = "some ranks did not hear in time that it is so" if missed else ""
        return _result(final, reason=reason), nobody


def _request(order: WindowOrder) -> WindowRequest:
    return WindowRequest(
        start_step=order.start_step,
        steps=order.steps,
        stop_step=order.stop_step,
        seconds=order.seconds,
        run_id=order.run_id,
        warmup=order.warmup,
        granularity=order.granularity,
        past=order.past,
        overlap=order.overlap,
        detail=detail_from(order.detail),
    )


def _chosen(request: WindowRequest, ahead: int, latest: int) -> tuple[WindowRequest | None, str]:
    """The request with steps that all ranks have ahead of them, or why there are none."""
    first, last = request.rounded(ahead)
    if first < ahead:
        where = f"start_step {first} is past, or too near: a rank is at step {latest}"
        if request.past == "refuse":
            return None, f"{where}; the nearest that all ranks can record is {ahead}"
        first = -(-ahead // request.granularity) * request.granularity
        if first > last:
            return None, f"{where}; nothing of the window is left that all ranks can record"
    return (
        WindowRequest(
            start_step=first,
            stop_step=None if last == NEVER else last,
            seconds=request.seconds,
            run_id=request.run_id,
            warmup=request.warmup,
            granularity=request.granularity,
            detail=request.detail,
        ),
        "",
    )


def _obeys(answer: Answer) -> bool:
    return not answer.error and (answer.armed is None or answer.armed.accepted)


def _text(answer: Answer) -> str:
    if answer.error:
        return answer.error
    if answer.armed is not None:
        return str(answer.armed)
    return human_count(len(answer.windows), "window")


def _refused(where: _Answers, reason: str) -> OrderResult:
    """Nobody does anything, for one reason."""
    return _result([(target, Answer(error=reason, step=answer.step)) for target, answer in where], reason=reason)


def _result(answers: _Answers, reason: str = "") -> OrderResult:
    ranks = [
        OrderedRank(
            id=rank_id(target.stream.run, target.stream.id),
            rank=target.stream.run.rank,
            host=target.stream.run.host,
            pid=target.stream.run.pid,
            step=answer.step if answer.pid or answer.step else None,
            obeys=_obeys(answer),
            text=_text(answer),
            armed=answer.armed,
            windows=answer.windows,
        )
        for target, answer in answers
    ]
    obeying = [rank for rank in ranks if rank.obeys]
    steps = {(rank.armed.first, rank.armed.last) for rank in obeying if rank.armed is not None}
    first, last = next(iter(steps)) if len(steps) == 1 else (None, None)
    outcome: Literal["done", "partly", "refused"] = (
        "done" if len(obeying) == len(ranks) else "partly" if obeying else "refused"
    )
    return OrderResult(outcome=outcome, reason=reason, first=first, last=last, ranks=ranks)
