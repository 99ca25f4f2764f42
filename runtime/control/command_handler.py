"""Executes commands of other processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from stepscope.runtime.control.control_task import ControlTask
from stepscope.runtime.control.request_router import RequestRouter
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.command import VERSION, Answer, Command
from stepscope.runtime.requests.end_change import NOTHING_WAITS
from stepscope.runtime.session.job import this_host
from stepscope.runtime.steps.arming import Arming


class CommandHandler:
    """Executes commands of the socket and the collector for one profiler, on the control thread."""

    def __init__(self, profiler: Arming, rank: int | None, router: RequestRouter, task: ControlTask) -> None:
        """Args: the profiler; its rank; the router of its requests; its task on the control thread."""
        self._profiler, self._rank, self._router, self._task = profiler, rank, router, task

    def handle(self, command: Command, trigger: str = "socket") -> Future[Answer]:
        """Executes a command. Any thread may call. The answer comes when rank 0 has decided.

        Args:
            command: the command.
            trigger: its origin, for the windows' metadata.
        """
        answered: Future[Answer] = Future()

        def answer(**fields: Any) -> None:
            if not answered.done():
                answered.set_result(self._answer(**fields))

        if command.version != VERSION:
            answer(error=f"version {command.version} of commands is not known here, only {VERSION}")
        elif command.request is None and (command.command == "arm" or command.command == "propose" and not command.end):
            answer(error=f"{command.command} lacks a request")
        elif command.command in ("propose", "decide") and not command.proposal:
            answer(error=f"{command.command} lacks the name of a proposal")
        else:
            self._task.call_soon(partial(self._execute, command, trigger, answer))
        return answered

    def _execute(self, command: Command, trigger: str, answer: Callable[..., None]) -> None:
        request = command.request
        match command.command:
            case "arm":
                assert request is not None
                self._router.window(request, trigger, lambda armed: answer(armed=armed), key=os.urandom(16).hex())
            case "propose":
                answer(armed=self._propose(command, trigger))
            case "decide":
                answer(error=self._decide(command))
            case "extend" | "abort" if self._router.agreement is not None:
                self._end_on_all_ranks(command, trigger, answer)
            case "extend":
                answer(armed=self._profiler.extend(command.steps, seconds=command.seconds))
            case "abort":
                reason = command.reason or "a command"
                answer(windows=self._profiler.abort(command.run_id, reason=reason))
            case "status":
                answer(windows=self._profiler.armed())

    def _end_on_all_ranks(self, command: Command, trigger: str, answer: Callable[..., None]) -> None:
        request = command.end_request()
        if request.command == "extend" and bool(request.steps) == bool(request.seconds):
            answer(error="extend takes a number of steps or seconds")
            return

        def on_answer(armed: Armed) -> None:
            nothing = request.command == "abort" and armed.reason == NOTHING_WAITS
            answer(windows=()) if nothing else answer(armed=armed)

        self._router.all_ranks(request, trigger, on_answer, key=os.urandom(16).hex())

    def _propose(self, command: Command, trigger: str) -> Armed:
        if command.request is not None:
            return self._profiler.arm(command.request, trigger=trigger, plan=command.proposal, proposed=True)
        assert command.end is not None
        return self._profiler.change_end(command.end, proposal=command.proposal)

    def _decide(self, command: Command) -> str:
        """Carries out a decision. Returns why it has no effect; empty if it has."""
        reason = command.reason or "it was decided against"
        found = self._profiler.decide(command.proposal, committed=command.committed, reason=reason)
        return "" if found else "nothing of that name waits for a decision: nothing was decided in time"

    def _answer(self, **fields: Any) -> Answer:
        return Answer(
            profiler=self._profiler.name,
            rank=self._rank,
            stage=self._profiler.stage,
            host=this_host(),
            pid=os.getpid(),
            step=self._profiler.step_num,
            rate=self._task.pace.per_second,
            **fields,
        )
