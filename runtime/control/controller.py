"""The controller of one profiler: every way by which windows are asked of it comes together here."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from stepscope.runtime.control import control_loop, user_signal
from stepscope.runtime.control.agreement import Agreement, Asked
from stepscope.runtime.control.armable import Armable
from stepscope.runtime.control.armed import Armed, ArmedStatus
from stepscope.runtime.control.command import VERSION, Answer, Command
from stepscope.runtime.control.control_file import ControlFile, decode_control_file, default_content, file_of
from stepscope.runtime.control.end_change import NOTHING_WAITS
from stepscope.runtime.control.job_directory import JobDirectory
from stepscope.runtime.control.local_socket import LocalSocket
from stepscope.runtime.control.ranks import ranks_text
from stepscope.runtime.control.rate import StepRate
from stepscope.runtime.control.record_events import RecordEvents
from stepscope.runtime.control.remote_gate import RemoteGate
from stepscope.runtime.control.settings import Control
from stepscope.runtime.control.taken import TakenRequests
from stepscope.runtime.control.watched_file import WatchedFile
from stepscope.runtime.control.window_request import WindowRequest
from stepscope.runtime.run import is_child, job_from_environment, rank_from_environment, this_host
from stepscope.runtime.table import human_count

log = logging.getLogger("stepscope")

MOST_PROPOSALS = 64
ALONE = (
    "no world size was known when trace() was called: this process goes by its own steps as rank {}, and agrees with no other; "
    "give world_size=..., or have WORLD_SIZE set or torch.distributed initialised before"
)

_Waiting = tuple[str, Callable[[Armed], object]]


class Controller:
    """Lives from the profiler's first start to its close, on the control thread, also while nothing is recorded.

    In a forked child it does nothing any more.
    """

    def __init__(self, settings: Control, profiler: Armable, rank: int | None, world_size: int | None) -> None:
        """Args: which ways are open; whose windows; which rank of how many this is."""
        self.settings = settings
        self._profiler, self._rank = profiler, rank
        self._file: WatchedFile[ControlFile] | None = None
        self._agreement: Agreement | None = None
        self._requests: TakenRequests | None = None
        if settings.path is not None:
            path = file_of(Path(settings.path))
            self._requests = TakenRequests(path.absolute())
            first = not rank
            self._file = WatchedFile(
                path,
                decode_control_file,
                default=default_content(),
                create=settings.create and first,
                poll=settings.poll,
                on_change=self._changed,
                status=first,
            )
            if settings.agree and rank is not None and (world_size or 1) > 1:
                job = settings.job or job_from_environment()
                self._agreement = Agreement(
                    JobDirectory(path, job),
                    profiler,
                    rank=rank,
                    world_size=world_size or 1,
                    patience=settings.patience,
                    idle=settings.poll,
                    outcome=self._decided,
                )
        self._asked: deque[Callable[[], object]] = deque()
        """What is to be done on the control thread."""
        self._waiting: list[_Waiting] = []
        self._gates: dict[str, RemoteGate] = {}
        self._rate = StepRate()
        self._loop: control_loop.ControlLoop | None = None
        self._task: Future[None] | None = None
        self._wake: asyncio.Event | None = None
        self._socket: LocalSocket | None = None
        self._signals = 0
        self._told: tuple[ArmedStatus, ...] = ()
        self._pid = 0
        self._notes: list[str] = []
        self._size_unknown = settings.path is not None and settings.agree and world_size is None

    @property
    def file(self) -> Path | None:
        """The watched file."""
        return None if self._file is None else self._file.path

    def start(self, session: Path) -> None:
        """Opens the ways that the settings name; starting again changes nothing. What cannot be opened is noted.

        Args:
            session: directory of the process's session.
        """
        if self._task is not None:
            return
        self._pid = os.getpid()
        try:
            self._loop = control_loop.acquire()
        except RuntimeError as error:
            self._note(f"nothing can be asked for: {error}")
            return
        if self._file is not None:
            try:
                self._file.start()
            except (OSError, RuntimeError) as error:
                self._note(f"{self._file.path} is not watched: {error}")
        if self.settings.signal and (problem := user_signal.watch(self._signalled)):
            self._note(problem)
        if self.settings.socket:
            self._socket = LocalSocket.listen(session, self.handle)
            if self._socket.problem:
                self._note(self._socket.problem)
        self._task = self._loop.start(self._run, "control")

    def close(self) -> None:
        """Closes them. Idempotent."""
        task, loop, self._task, self._loop = self._task, self._loop, None, None
        if loop is None or self._pid != os.getpid():
            return
        if self.settings.signal:
            user_signal.unwatch(self._signalled)
        if self._socket is not None:
            self._socket.leave(self.handle)
        if self._file is not None:
            self._file.close()
        self._release_lost("queued")
        if task is not None:
            task.cancel()
        control_loop.release(loop)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which ways are not open, and why; and that this rank is on its own, where it seems to be one of several."""
        alone = self._size_unknown and (self._rank is not None or is_child() or (rank_from_environment()[1] or 1) > 1)
        return (*self._notes, *([ALONE.format(self._rank or 0)] if alone else []))

    def _note(self, text: str) -> None:
        self._notes.append(text)
        log.error("control of profiler %r: %s", self._profiler.name, text)

    # asking

    def handle(self, command: Command, trigger: str = "socket") -> Future[Answer]:
        """Obeys a command from outside; from any thread. The answer may take as long as ranks take to agree.

        Args:
            trigger: where it comes from, for the windows' metadata.
        """
        answered: Future[Answer] = Future()

        def answer(**said: Any) -> None:
            if not answered.done():
                answered.set_result(self._answer(**said))

        if command.version != VERSION:
            answer(error=f"version {command.version} of commands is not known here, only {VERSION}")
        elif command.request is None and (command.command == "arm" or command.command == "propose" and not command.end):
            answer(error=f"{command.command} lacks a request")
        else:
            self._soon(partial(self._obey, command, trigger, answer))
        return answered

    @property
    def from_collector(self) -> Callable[[Command], Future[Answer]] | None:
        """Obeys commands of the collector's operators; `None` if the settings do not let it."""
        return partial(self.handle, trigger="collector") if self.settings.collector else None

    def _obey(self, command: Command, trigger: str, answer: Callable[..., None]) -> None:
        request = command.request
        match command.command:
            case "arm":
                assert request is not None
                self._ask(request, trigger, lambda armed: answer(armed=armed), key=os.urandom(16).hex())
            case "propose":
                gate = RemoteGate()
                if request is not None:
                    armed = self._profiler.arm(request, trigger=trigger, gate=gate)
                else:
                    assert command.end is not None
                    armed = self._profiler.change_end(command.end, gate=gate)
                if armed:
                    self._gates[command.proposal] = gate
                    while len(self._gates) > MOST_PROPOSALS:
                        self._gates.pop(next(iter(self._gates)))
                answer(armed=armed)
            case "decide":
                answer(**self._decide(command))
            case "extend" | "abort" if self._agreement is not None:
                asked = command.end_request()
                if asked.command == "extend" and bool(asked.steps) == bool(asked.seconds):
                    answer(error="extend takes a number of steps or seconds")
                    return

                def told(armed: Armed) -> None:
                    nothing = asked.command == "abort" and armed.reason == NOTHING_WAITS
                    answer(windows=()) if nothing else answer(armed=armed)

                self._agree(asked, trigger, told, key=os.urandom(16).hex())
            case "extend":
                answer(armed=self._profiler.extend(command.steps, seconds=command.seconds))
            case "abort":
                reason = command.reason or "a command"
                answer(windows=self._profiler.abort(command.run_id, reason=reason))
            case "status":
                answer(windows=self._profiler.armed())

    def _decide(self, command: Command) -> dict[str, Any]:
        gate = self._gates.pop(command.proposal, None)
        if gate is None:
            return {"error": "nothing of that name was proposed"}
        if gate.committed is not None:
            return {"error": gate.reason}
        gate.committed, gate.reason = command.committed, command.reason
        if command.committed:
            self._profiler.confirm(gate)
        else:
            self._profiler.withdraw(gate, command.reason or "it was decided against")
        return {}

    def _answer(self, **said: Any) -> Answer:
        return Answer(
            profiler=self._profiler.name,
            rank=self._rank,
            host=this_host(),
            pid=os.getpid(),
            step=self._profiler.step_num,
            rate=self._rate.per_second,
            **said,
        )

    def _ask(
        self, request: WindowRequest, trigger: str, told: Callable[[Armed], object] | None = None, key: str = ""
    ) -> None:
        """Asks this rank, or all of them if they agree with each other."""
        if self._agreement is None and told is None and not request.wants(self._rank):
            where = (
                f"asked of ranks {ranks_text(request.ranks)}, not of rank {self._rank or 0}; each goes by its own steps"
            )
            self._put_answer(request, trigger, where)
            return
        if self._agreement is None:
            armed = self._profiler.arm(request, trigger=trigger)
            self._decided(request, trigger, armed)
            if told is not None:
                told(armed)
            return
        self._agree(request, trigger, told, key)

    def _agree(self, asked: Asked, trigger: str, told: Callable[[Armed], object] | None, key: str) -> None:
        """Has the ranks agree on it."""
        assert self._agreement is not None
        if told is not None:
            self._waiting.append((_named(asked, trigger), told))
        self._agreement.wish(asked, trigger, key)

    def _decided(self, asked: Asked, trigger: str, armed: Armed) -> None:
        if self._requests is not None and trigger == "file" and isinstance(asked, WindowRequest):
            self._requests.decided(asked, armed)
        self._say(asked, trigger, armed)
        name = _named(asked, trigger)
        for waiting in [waiting for waiting in self._waiting if waiting[0] == name]:
            self._waiting.remove(waiting)
            waiting[1](armed)

    def _say(self, asked: Asked, trigger: str, armed: Armed) -> None:
        level = logging.INFO if armed else logging.WARNING
        self._put_answer(asked, trigger, str(armed), level)

    def _put_answer(self, asked: Asked, trigger: str, answer: str, level: int = logging.INFO) -> None:
        log.log(level, "control: %s, asked for by %s: %s", asked.text(), trigger, answer)
        if self._file is not None:
            self._file.status.put(request=asked.text(), run_id=asked.run_id or None, trigger=trigger, answer=answer)

    def _changed(self, found: ControlFile) -> None:
        """The watched file says something new."""
        asked = found.end_request()
        if asked is not None and self._agreement is not None:
            self._soon(partial(self._agree, asked, "file", None, msgspec.json.encode(found).decode()))
        elif found.command == "abort":
            ended = self._profiler.abort(found.run_id or None, reason="the control file says so")
            self._say_command(
                "abort", f"{human_count(len(ended), 'window')} ended" if ended else "no armed window runs or waits"
            )
        elif found.command == "extend":
            self._say_command("extend", str(self._profiler.extend(found.steps or 0, seconds=found.seconds or 0.0)))
        else:
            request = found.request()
            if request is None:
                return
            if self._task is None:  # in `start()`: what the file says at the start may be about the first step
                self._ask_by_file(request)
            else:
                self._soon(partial(self._ask_by_file, request))

    def _ask_by_file(self, request: WindowRequest) -> None:
        """The file asks for it: once, unless nothing came of that."""
        assert self._requests is not None
        self._release_lost()
        passed_over = self._requests.show(request)
        if passed_over:
            self._put_answer(request, "file", passed_over, logging.WARNING)
        elif passed_over is None:
            times = self._requests.times(request)
            text = msgspec.json.encode(request).decode()
            self._ask(request, "file", key=f"{text} {times}" if times else text)

    def _release_lost(self, *more: str) -> None:
        """Requests of which nothing is or was recorded can be asked again; more states that mean that."""
        if self._requests is None:
            return
        for request, answer in self._requests.mine():
            states = [
                each.state
                for each in self._profiler.armed()
                if (each.run_id, each.trigger) == (request.run_id, "file")
                and (each.first == answer.first or each.requested == request.text())
            ]
            if states and all(state in ("missed", "withdrawn", *more) for state in states):
                self._requests.release(request)

    def _say_command(self, command: str, answer: str) -> None:
        log.info("control: %s, asked for by file: %s", command, answer)
        if self._file is not None:
            self._file.status.put(request=command, trigger="file", answer=answer)

    def _signalled(self) -> None:
        """SIGUSR2 came; called by its handler."""
        self._signals += 1
        self._soon(self._take_signal)

    def _take_signal(self) -> None:
        if self._signals:  # several that came at once are one
            self._signals = 0
            request = WindowRequest(steps=self.settings.signal_steps, run_id="")
            self._ask(request, "signal", key=f"signal {os.urandom(8).hex()}")

    # on the control thread

    def _soon(self, call: Callable[[], object]) -> None:
        """Has something done on the control thread; it takes no lock, so that a signal handler may say so."""
        self._asked.append(call)
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            loop.call_soon(wake.set)

    async def _run(self) -> None:
        self._wake = asyncio.Event()
        events = RecordEvents(self._look)
        try:
            while True:
                self._do_asked()
                self._rate.add(time.monotonic(), self._profiler.step_num)
                pause = self.settings.poll
                if self._agreement is not None:
                    pause = min(self._agreement.turn(), pause)
                    events.follow(self._agreement.directory)
                self._tell_windows()
                try:
                    await asyncio.wait_for(self._wake.wait(), pause)
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            events.close()
            if self._agreement is not None:
                self._agreement.close()
            for _, told in self._waiting:
                told(Armed(False, reason="the profiler was closed"))
            self._tell_windows()

    def _look(self) -> None:
        self._soon(lambda: None)

    def _do_asked(self) -> None:
        while self._asked:
            call = self._asked.popleft()
            try:
                call()
            except Exception as error:  # one request that goes wrong is no reason not to take the next
                log.error("control: a request failed", exc_info=error)

    def _tell_windows(self) -> None:
        """Says in the status file what has become of the windows."""
        if self._file is None:
            return
        windows = self._profiler.armed()[-8:]
        if windows != self._told:
            self._told = windows
            self._file.status.put(windows=list(windows))


def _named(asked: Asked, trigger: str) -> str:
    return f"{trigger} {asked!r}"
