"""Orders: windows that operators ask for, handed on to the processes whose streams are connected.

For a window on several ranks, and for its end, the collector is the arbiter: it asks where all are, proposes steps that all
have ahead of them, and says at once to all whether it is so. A rank that does not hear of that before the first step at which
it makes a difference goes on as before; a rank that the word did not reach in time is named in the answer.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from stepscope.collector.live.stream import Process, State, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.orders.order import OrderedRank, OrderResult, WindowOrder
from stepscope.collector.problems import ProblemError
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.requests.end_change import NOTHING_WAITS, choose_end
from stepscope.runtime.requests.placement import ASK_TO_WAIT, allows_later_steps, choose_steps, nearest_of
from stepscope.runtime.requests.window_detail import detail_from
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.session.ranks import missing_ranges, ranges_text, ranks_from, ranks_text, usual_size

MARGIN = 1.0
"""Seconds from the proposal to the first step, in the first attempt; each attempt that came too late doubles them."""
ATTEMPTS = 5
LOOK = 0.3
"""Seconds between two looks at processes whose speed is not known yet."""
LEAST_STEPS = 3
"""Steps ahead of the fastest rank in any case."""
IN_ONE_TURN = 64
"""Processes that get a command in one turn of the loop, as there may be 10,000."""

NEEDED = "trace(control=Control(collector=True))"


class Target(NamedTuple):
    """A process that takes commands."""

    id: str
    """The rank's id, as in `/v1/ranks`."""
    stream: Stream
    process: Process

    @property
    def rank(self) -> int:
        """The process's rank; 0 if it has none."""
        return self.stream.run.rank or 0


_Answers: TypeAlias = list[tuple[Target, Answer]]


def addressees(streams: Streams, order: WindowOrder, wanted: tuple[int, ...] | None) -> tuple[list[Target], str]:
    """The processes that an order is for, one at least; and which ranks that are meant cannot be asked, and why, empty if all can.

    Args:
        wanted: the ranks that are meant; `None` for all: as many as most of the job's processes say that it has.

    Raises:
        ProblemError: 404 if no process is there that can be asked, or none of the job's ranks that are named; 409 if it is not
            clear which job is meant.
    """
    ranks = list(streams)
    connected = [
        Target(rank.id, stream, process)
        for rank in ranks
        for stream in [rank.latest]
        if (process := _process(stream)) is not None
        and (not order.name or stream.run.name == order.name)
        and (not order.job or stream.job == order.job)
    ]
    able = [target for target in connected if target.process.control]
    if not able:
        raise ProblemError(404, f"none of {len(connected)} connected processes takes commands; they need {NEEDED}")
    jobs = sorted({_job(target) for target in able})
    if len(jobs) > 1:
        shown = ", ".join(f"name {name!r} job {job!r}" for name, job in jobs[:10])
        raise ProblemError(409, f"several jobs are connected: say which one is meant: {shown}")
    its = [target for target in connected if _job(target) == jobs[0]]
    there = {target.rank for target in its}
    meant = there if wanted is None else set(wanted)
    size = usual_size(target.stream.run.world_size for target in its)
    absent = ranges_text(missing_ranges(there, size)) if wanted is None else ranks_text(tuple(meant - there))
    targets = [target for target in able if target.rank in meant]
    unwilling = {target.rank for target in its if not target.process.control} & meant
    lacking: list[str] = []
    if absent:
        lacking.append(f"not connected: {_named(absent)}")
    latest = {target.stream.id for target in its}
    shared = {rank.latest.run.rank or 0 for rank in ranks if rank.latest.id in latest and rank.others} & meant
    if shared:
        lacking.append(f"several processes at once, maybe of jobs of one name: {_named(ranks_text(tuple(shared)))}")
    if unwilling:
        lacking.append(f"without {NEEDED}: {_named(ranks_text(tuple(unwilling)))}")
    if not targets or (wanted is not None and lacking):
        raise ProblemError(404, f"not all ranks that are meant can be asked; {'; '.join(lacking)}")
    return targets, "; ".join(lacking)


def _process(stream: Stream) -> Process | None:
    """The way to the process of a stream; `None` if there is none now."""
    if stream.connection is not None:
        return stream.connection
    return stream.process if stream.state(time.monotonic()) is State.CONNECTED else None


def _job(target: Target) -> tuple[str, str]:
    return target.stream.run.name, target.stream.job


def _named(ranks: str) -> str:
    shown = ranks if len(ranks) <= 200 else f"{ranks[:200].rpartition(',')[0]}, ..."
    return f"rank {shown}" if ranks.isdigit() else f"ranks {shown}"


class Orders:
    """Gives the orders of all operators; each is for one job."""

    def __init__(self, streams: Streams) -> None:
        """Args: whose processes obey."""
        self._streams = streams

    async def obey(self, order: WindowOrder) -> OrderResult:
        """Carries out an order.

        Raises:
            ProblemError: 400 if it asks for what cannot be, 404 if no process is there that obeys, 409 if it is not
                clear which job is meant.
        """
        try:
            wanted = ranks_from(order.ranks)
            request = _request(order) if order.command == "arm" else None
        except ValueError as error:
            raise ProblemError(400, str(error)) from error
        targets, lacking = addressees(self._streams, order, wanted)
        if request is not None and lacking:
            those = ranks_text(tuple(target.rank for target in targets))
            return _refused(
                [(target, Answer()) for target in targets],
                f"not all ranks of the job can be asked, so none records; {lacking}; for the others: ranks {those}",
            )
        result = await self._carry_out(order, request, targets)
        if not lacking or result.outcome == "refused":
            return result
        reason = f"{result.reason}; {lacking}" if result.reason else lacking
        return msgspec.structs.replace(result, outcome="partly", reason=reason)

    async def _carry_out(self, order: WindowOrder, request: WindowRequest | None, targets: list[Target]) -> OrderResult:
        """Has these processes do it; without a request it is no window that is ordered."""
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

    async def _ask(self, targets: list[Target], command: Command, patience: float) -> _Answers:
        async def one(target: Target) -> Answer:
            try:
                return await target.process.order(command, patience)
            except TimeoutError:
                return Answer(error=f"no answer in {patience:g} s")
            except ConnectionError as error:
                return Answer(error=str(error))

        async with asyncio.TaskGroup() as asking:
            tasks: list[asyncio.Task[Answer]] = []
            for target in targets:
                tasks.append(asking.create_task(one(target)))
                if len(tasks) % IN_ONE_TURN == 0:
                    await asyncio.sleep(0)
        return [(target, task.result()) for target, task in zip(targets, tasks, strict=True)]

    async def _arm(self, order: WindowOrder, request: WindowRequest, targets: list[Target]) -> OrderResult:
        if len(targets) == 1:
            return _result(await self._ask(targets, Command(command="arm", request=request), order.patience))
        least, attempt, late = 0, 0, 0
        while True:
            where, ahead = await self._ahead(order, targets, late)
            if any(answer.error for _, answer in where):
                return _result(where, reason="not all processes answer, so none records")
            if apart := _apart(where):
                return _refused(where, f"{apart}: order again when all are in the same")
            ahead += request.warmup
            latest = f"a rank is at step {max(answer.step for _, answer in where)}"
            proposed, reason = choose_steps(request, ahead, least, ahead, latest)
            if proposed is None:
                return _refused(where, reason)
            by = int(proposed.start_step)
            command = Command(command="propose", request=proposed)
            result, nearest = await self._propose(order, command, by, targets, "record these steps", request)
            attempt += 1
            # A window in the way says where the next room is: more time would go past that.
            late += any((rank.step or 0) >= by for rank in result.ranks)
            if nearest is None or not allows_later_steps(request) or attempt == ATTEMPTS:
                return result
            least = nearest

    async def _end(self, order: WindowOrder, command: Command, targets: list[Target]) -> OrderResult:
        """Extends or aborts what is recorded, so that it ends with the same step on all ranks."""
        least, attempt, request = 0, 0, command.end_request()
        while True:
            where, ahead = await self._ahead(order, targets, attempt)
            if any(answer.error for _, answer in where):
                return _result(where, reason="not all processes answer, so nothing changes")
            if apart := _apart(where):
                if command.command == "extend":
                    return _refused(where, f"{apart}: extend when all are in the same")
                return _result(await self._ask(targets, command, order.patience), f"{apart}: each ended its own")
            ranks = [target.stream.run.rank for target in targets]
            names = [-1 - number if rank is None else rank for number, rank in enumerate(ranks)]
            windows = {name: answer.windows for name, (_, answer) in zip(names, where, strict=True)}
            chosen = choose_end(request, windows, max(ahead, least))
            if chosen.change is None and chosen.reason == NOTHING_WAITS:
                none = [(target, msgspec.structs.replace(answer, windows=())) for target, answer in where]
                return _result(none, reason=NOTHING_WAITS)
            if chosen.change is None:
                return _refused(where, chosen.reason)
            concerned = [target for name, target in zip(names, targets, strict=True) if name in chosen.ranks]
            by = chosen.change.decided_by
            proposal = Command(command="propose", end=chosen.change)
            result, nearest = await self._propose(order, proposal, by, concerned, f"{command.command} the window")
            attempt += 1
            if nearest is None or command.command == "extend" or attempt == ATTEMPTS:
                return result
            least = nearest

    async def _ahead(self, order: WindowOrder, targets: list[Target], late: int) -> tuple[_Answers, int]:
        """The current steps, and the first step that all ranks have ahead of them, with time to agree on it, after `late`
        attempts."""
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        where = await self._ask(targets, Command(command="status"), order.patience)
        rates = [answer.rate for _, answer in where]
        if not all(answer.rate or answer.error for _, answer in where):  # a loop that has just begun has no rate yet
            await asyncio.sleep(LOOK)
            before, since, sent_at = where, sent_at, loop.time()
            where = await self._ask(targets, Command(command="status"), order.patience)
            rates = [
                max(answer.rate, (answer.step - earlier.step) / (sent_at - since))
                for (_, earlier), (_, answer) in zip(before, where, strict=True)
            ]
        passed = loop.time() - sent_at + MARGIN * 2**late
        steps = [answer.step + math.ceil(rate * passed) for (_, answer), rate in zip(where, rates, strict=True)]
        return where, max(steps) + LEAST_STEPS

    async def _propose(
        self,
        order: WindowOrder,
        proposal: Command,
        by: int,
        targets: list[Target],
        what: str,
        request: WindowRequest | None = None,
    ) -> tuple[OrderResult, int | None]:
        """Proposes something to all; returns what became of it, and the step from which on another attempt might do.

        Args:
            by: the step at which it must be decided.
        """
        name = secrets.token_hex(16)
        answers = await self._ask(targets, msgspec.structs.replace(proposal, proposal=name), order.patience)
        if request is not None and request.overlap == "queue":
            answers = [(target, _without_advice(answer)) for target, answer in answers]
        if not all(_obeys(answer) for _, answer in answers):
            reason = f"not all ranks can {what}, so none does"
            no = Command(command="decide", proposal=name, committed=False, reason=reason)
            await self._ask([target for target, answer in answers if _obeys(answer)], no, order.patience)
            refusals = [(answer, answer.armed) for _, answer in answers if not _obeys(answer)]
            nearest = [
                None if armed is None else nearest_of(request, by, answer.step, armed.nearest)
                for answer, armed in refusals
            ]
            least = [step for step in nearest if step is not None]
            refused: _Answers = [
                (
                    target,
                    msgspec.structs.replace(answer, error=reason) if _obeys(answer) or answer.armed is None else answer,
                )
                for target, answer in answers
            ]
            return _result(refused, reason=reason), max(least) if len(least) == len(nearest) else None
        decided = await self._ask(targets, Command(command="decide", proposal=name, committed=True), order.patience)
        final: _Answers = [
            (target, msgspec.structs.replace(answer, error=decision.error, step=decision.step or answer.step))
            for (target, answer), (_, decision) in zip(answers, decided, strict=True)
        ]
        missed = any(answer.error for _, answer in final)
        nobody = all(answer.error for _, answer in final)
        reason = "some ranks did not hear in time that it is so" if missed else ""
        return _result(final, reason=reason), by + 1 if nobody else None


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
        stage=order.stage,
        detail=detail_from(order.detail),
    )


def _obeys(answer: Answer) -> bool:
    return not answer.error and (answer.armed is None or answer.armed.accepted)


def _without_advice(answer: Answer) -> Answer:
    """The answer to an order that waits already, without the advice to wait for it."""
    if answer.armed is None:
        return answer
    reason = answer.armed.reason.removesuffix(f"; {ASK_TO_WAIT}")
    return msgspec.structs.replace(answer, armed=msgspec.structs.replace(answer.armed, reason=reason))


def _apart(where: _Answers) -> str:
    """Names the stage of each rank if they differ: steps of different stages cannot be compared."""
    stages: dict[str, list[int]] = {}
    for target, answer in where:
        if answer.stage:
            stages.setdefault(answer.stage, []).append(target.rank)
    if len(stages) < 2:
        return ""
    shown = ", ".join(f"{stage!r} (ranks {ranks_text(tuple(ranks))})" for stage, ranks in sorted(stages.items()))
    return f"the ranks are in different stages, {shown}"


def _text(answer: Answer) -> str:
    if answer.error:
        return answer.error
    if answer.armed is not None:
        return str(answer.armed)
    return human_count(len(answer.windows), "window")


def _refused(where: _Answers, reason: str) -> OrderResult:
    """The answer if no rank follows an order, all for the same reason."""
    answers = [(target, Answer(error=reason, step=answer.step, stage=answer.stage)) for target, answer in where]
    return _result(answers, reason=reason)


def _result(answers: _Answers, reason: str = "") -> OrderResult:
    ranks = [
        OrderedRank(
            id=target.id,
            rank=target.stream.run.rank,
            host=target.stream.run.host,
            pid=target.stream.run.pid,
            step=answer.step if answer.pid or answer.step else None,
            stage=answer.stage,
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
