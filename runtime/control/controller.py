"""The controller of one profiler: opens and closes the entry points for requests, and executes commands of other processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.runtime.control.agreement.agreement import Agreement, Timing
from stepscope.runtime.control.agreement.job_directory import job_directory
from stepscope.runtime.control.control_thread import ControlThread
from stepscope.runtime.control.entry_points import user_signal
from stepscope.runtime.control.entry_points.control_file import decode_control_file, default_content, file_of
from stepscope.runtime.control.entry_points.local_socket import LocalSocket
from stepscope.runtime.control.entry_points.watched_file import WatchedFile
from stepscope.runtime.control.request_history import RequestHistory
from stepscope.runtime.control.request_router import FileContent, RequestRouter
from stepscope.runtime.control.settings import Control
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.command import VERSION, Answer, Command
from stepscope.runtime.requests.end_change import NOTHING_WAITS
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.session.job import is_child, job_from_environment, rank_from_environment, this_host
from stepscope.runtime.steps.arming import Arming

log = logging.getLogger("stepscope")

ALONE = (
    "no world size was known when trace() was called: this process goes by its own steps as rank {}, and agrees with no other; "
    "give world_size=..., or have WORLD_SIZE set or torch.distributed initialised before"
)


class Controller:
    """Exists from the profiler's first start to its close, also while nothing is recorded.

    In a forked child it does nothing.
    """

    def __init__(
        self,
        settings: Control,
        profiler: Arming,
        rank: int | None,
        world_size: int | None,
        *,
        decode: Callable[[bytes], FileContent] = decode_control_file,
        refused: Callable[[str], object] | None = None,
        withdraws_planned: bool = False,
        log_prefix: str = "control: ",
    ) -> None:
        """
        Args:
            settings: the entry points to open.
            profiler: records the windows.
            rank: of this process.
            world_size: number of ranks.
            decode: decodes the content of the watched file.
            refused: called with the answer to each refused request; default: it is logged as a warning.
            withdraws_planned: whether new content withdraws windows that have yet to begin, unless the ranks agree on them:
                the file says how things are to be, and is no list of requests. Another profiler of the process then
                records the same request as well.
            log_prefix: begins each line of the log about requests and the file.
        """
        self.settings = settings
        self._profiler, self._rank = profiler, rank
        self._file: WatchedFile[FileContent] | None = None
        self.followed: FileContent | None = None
        """The latest valid content of the file whose request was handled, or handed to rank 0."""
        agrees = settings.path is not None and settings.agree and rank is not None and (world_size or 1) > 1
        status = history = None
        if settings.path is not None:
            self._file = WatchedFile(
                file_of(Path(settings.path)),
                decode,
                default=default_content() if settings.create and not rank else None,
                on_change=self._changed,
                status=not rank,
                log_prefix=log_prefix,
            )
            status = self._file.status
            history = RequestHistory(self._file.path, shared=agrees or not withdraws_planned)
        self._router = RequestRouter(
            profiler, rank, status, history, refused, withdraws_planned=withdraws_planned, log_prefix=log_prefix
        )
        if self._file is not None and agrees:
            self._router.agreement = Agreement(
                job_directory(self._file.path, settings.job or job_from_environment(), rank or 0),
                profiler,
                rank=rank or 0,
                world_size=world_size or 1,
                timing=Timing(settings.patience, settings.poll),
                outcome=self._router.decided,
                log_prefix=log_prefix,
            )
        self._thread = ControlThread(
            profiler, self._router.agreement, self._file, pause=settings.poll, ended=self._router.end
        )
        self._socket: LocalSocket | None = None
        self._signals = 0
        self._notes: list[str] = []
        self._refusal = ""
        self._size_unknown = settings.path is not None and settings.agree and world_size is None

    @property
    def file(self) -> Path | None:
        """The watched file."""
        return None if self._file is None else self._file.path

    @property
    def content(self) -> FileContent | None:
        """The latest valid content of the file."""
        return None if self._file is None else self._file.current

    def read(self) -> FileContent | None:
        """Reads the file now, on this thread. Returns its latest valid content."""
        if self._file is not None:
            self._file.look()
        return self.content

    def start(self, session: Path | None = None) -> None:
        """Opens the entry points of the settings. A second call has no effect. If one cannot be opened, `notes` has the reason.

        Args:
            session: directory of the process's session; without one there is no socket.
        """
        try:
            self._thread.start(partial(self._open, session))
        except RuntimeError as error:
            self._note(f"nothing can be asked for: {error}")

    def _open(self, session: Path | None) -> None:
        if self._file is not None:
            try:
                self._file.create()
            except OSError as error:
                self._note(f"{self._file.path} is not created: {error}")
            self._file.look()
        if self.settings.signal and (problem := user_signal.watch(self._signalled)):
            self._note(problem)
        if self.settings.socket and session is not None:
            try:
                self._socket = LocalSocket.listen(session, self._handle)
            except RuntimeError as error:
                self._note(f"no commands are taken at {session}: {error}")
            else:
                if self._socket.problem:
                    self._note(self._socket.problem)

    def close(self) -> None:
        """Closes the entry points. Idempotent. Only the main thread can restore the handler of SIGUSR2."""
        if self._thread.inherited:
            return
        if self.settings.signal:
            user_signal.unwatch(self._signalled)
        if self._socket is not None:
            self._socket.remove_handler(self._handle)
        self.refuse("the profiler was closed")

    def refuse(self, reason: str) -> None:
        """Follows no further requests. Commands are answered with this reason, until the entry points are closed."""
        self._refusal = reason
        if not self._thread.running:
            return
        if self._file is not None:
            self._router.release_lost("queued")
        self._thread.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why entry points are not open, and a warning if this seems to be one of several ranks without agreement."""
        alone = self._size_unknown and (self._rank is not None or is_child() or (rank_from_environment()[1] or 1) > 1)
        return (*self._notes, *([ALONE.format(self._rank or 0)] if alone else []))

    def _note(self, text: str) -> None:
        self._notes.append(text)
        log.error("control of profiler %r: %s", self._profiler.name, text)

    # requests

    @property
    def from_collector(self) -> Callable[[Command], Future[Answer]] | None:
        """Executes commands of the collector's operators; `None` if the settings do not allow them."""
        return partial(self._handle, trigger="collector") if self.settings.collector else None

    def _changed(self, found: FileContent) -> None:
        """Called on the control thread, or by `start()`, when the content of the watched file has changed."""
        self._router.follow(found)
        self.followed = found

    def _signalled(self) -> None:
        """Called by the handler of SIGUSR2."""
        self._signals += 1
        self._thread.call_soon(self._handle_signal)

    def _handle_signal(self) -> None:
        if self._signals:  # several signals at once are one request
            self._signals = 0
            request = WindowRequest(steps=self.settings.signal_steps, run_id="")
            self._router.window(request, "signal", key=f"signal {os.urandom(8).hex()}")

    # commands of other processes

    def _handle(self, command: Command, trigger: str = "socket") -> Future[Answer]:
        """Executes a command of this origin. Any thread may call. The answer comes when rank 0 has decided."""
        answered: Future[Answer] = Future()

        def answer(**fields: Any) -> None:
            if not answered.done():
                answered.set_result(self._answer(**fields))

        if self._refusal:
            answer(error=self._refusal, windows=self._profiler.armed())
        elif command.version != VERSION:
            answer(error=f"version {command.version} of commands is not known here, only {VERSION}")
        elif command.request is None and (command.command == "arm" or command.command == "propose" and not command.end):
            answer(error=f"{command.command} lacks a request")
        elif command.command in ("propose", "decide") and not command.proposal:
            answer(error=f"{command.command} lacks the name of a proposal")
        else:
            self._thread.call_soon(partial(self._execute, command, trigger, answer))
        return answered

    def _execute(self, command: Command, trigger: str, answer: Callable[..., None]) -> None:
        request, profiler = command.request, self._profiler
        match command.command:
            case "arm":
                assert request is not None
                self._router.window(request, trigger, lambda armed: answer(armed=armed), key=os.urandom(16).hex())
            case "propose" if request is not None:
                answer(armed=profiler.arm(request, trigger=trigger, plan=command.proposal, proposed=True))
            case "propose":
                assert command.end is not None
                answer(armed=profiler.change_end(command.end, proposal=command.proposal))
            case "decide":
                reason = command.reason or "it was decided against"
                found = profiler.decide(command.proposal, committed=command.committed, reason=reason)
                late = "nothing of that name waits for a decision: nothing was decided in time"
                answer(error="" if found else late)
            case "extend" | "abort" if self._router.agreement is not None:
                self._end_on_all_ranks(command, trigger, answer)
            case "extend":
                answer(armed=profiler.extend(command.steps, seconds=command.seconds))
            case "abort":
                answer(windows=profiler.abort(command.run_id, reason=command.reason or "a command"))
            case "status":
                answer(windows=profiler.armed())

    def _end_on_all_ranks(self, command: Command, trigger: str, answer: Callable[..., None]) -> None:
        request = command.end_request()
        if request.command == "extend" and bool(request.steps) == bool(request.seconds):
            answer(error="extend takes a number of steps or seconds")
            return

        def on_answer(armed: Armed) -> None:
            nothing = request.command == "abort" and armed.reason == NOTHING_WAITS
            answer(windows=()) if nothing else answer(armed=armed)

        self._router.all_ranks(request, trigger, on_answer, key=os.urandom(16).hex())

    def _answer(self, **fields: Any) -> Answer:
        return Answer(
            profiler=self._profiler.name,
            rank=self._rank,
            stage=self._profiler.stage,
            host=this_host(),
            pid=os.getpid(),
            step=self._profiler.step_num,
            rate=self._thread.pace.per_second,
            **fields,
        )
