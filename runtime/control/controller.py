"""The controller of one profiler: opens and closes the entry points for requests."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from stepscope.runtime.control.agreement.agreement import Agreement
from stepscope.runtime.control.agreement.job_directory import job_directory
from stepscope.runtime.control.command_handler import CommandHandler
from stepscope.runtime.control.control_task import ControlTask
from stepscope.runtime.control.entry_points import user_signal
from stepscope.runtime.control.entry_points.control_file import (
    decode_control_file,
    default_content,
    file_of,
)
from stepscope.runtime.control.entry_points.local_socket import LocalSocket
from stepscope.runtime.control.entry_points.watched_file import WatchedFile
from stepscope.runtime.control.file_requests import FileContent, FileRequests
from stepscope.runtime.control.request_history import RequestHistory
from stepscope.runtime.control.request_router import RequestRouter
from stepscope.runtime.control.settings import Control
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.session.job import is_child, job_from_environment, rank_from_environment
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
    ) -> None:
        """
        Args:
            settings: the entry points to open.
            profiler: that records the windows.
            rank: of this process.
            world_size: number of ranks.
            decode: decodes the content of the watched file.
            refused: called with the answer to each refused request; default: it is logged as a warning.
            withdraws_planned: whether new content withdraws windows that have yet to begin, unless the ranks agree on them:
                the file says how things are to be, and is no list of requests. Another profiler of the process then
                records the same request as well.
        """
        self.settings = settings
        self._profiler, self._rank = profiler, rank
        self._decode = decode
        self._file: WatchedFile[FileContent] | None = None
        self.followed: FileContent | None = None
        """The latest valid content of the file whose request was handled, or handed to rank 0."""
        self._router = RequestRouter(profiler, rank)
        if settings.path is not None:
            self._file = self._watched(file_of(Path(settings.path)), settings, first=not rank)
            agrees = settings.agree and rank is not None and (world_size or 1) > 1
            history = RequestHistory(self._file.path, shared=agrees or not withdraws_planned)
            self._router = RequestRouter(profiler, rank, self._file.status, history, refused)
            self._requests = FileRequests(profiler, self._router, history, withdraws_planned=withdraws_planned)
            if agrees:
                self._router.agreement = Agreement(
                    job_directory(self._file.path, settings.job or job_from_environment(), rank or 0),
                    profiler,
                    rank=rank or 0,
                    world_size=world_size or 1,
                    patience=settings.patience,
                    poll=settings.poll,
                    outcome=self._router.decided,
                )
        self._task = ControlTask(
            profiler, self._router.agreement, self._file, pause=settings.poll, ended=self._router.end
        )
        self._commands = CommandHandler(profiler, rank, self._router, self._task)
        self._socket: LocalSocket | None = None
        self._signals = 0
        self._notes: list[str] = []
        self._size_unknown = settings.path is not None and settings.agree and world_size is None

    def _watched(self, path: Path, settings: Control, *, first: bool) -> WatchedFile[FileContent]:
        return WatchedFile(
            path,
            self._decode,
            default=default_content() if settings.create and first else None,
            on_change=self._changed,
            status=first,
        )

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
            self._task.start(partial(self._open, session))
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
            self._socket = LocalSocket.listen(session, self._commands.handle)
            if self._socket.problem:
                self._note(self._socket.problem)

    def close(self) -> None:
        """Closes the entry points. Idempotent. Only the main thread can restore the handler of SIGUSR2."""
        if self._task.inherited:
            return
        if self.settings.signal:
            user_signal.unwatch(self._signalled)
        if not self._task.running:
            return
        if self._socket is not None:
            self._socket.remove_handler(self._commands.handle)
        if self._file is not None:
            self._requests.release_lost("queued")
        self._task.close()

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
        return partial(self._commands.handle, trigger="collector") if self.settings.collector else None

    def _changed(self, found: FileContent) -> None:
        """Called on the control thread, or by `start()`, when the content of the watched file has changed."""
        self._requests.follow(found)
        self.followed = found

    def _signalled(self) -> None:
        """Called by the handler of SIGUSR2."""
        self._signals += 1
        self._task.call_soon(self._handle_signal)

    def _handle_signal(self) -> None:
        if self._signals:  # several signals at once are one request
            self._signals = 0
            request = WindowRequest(steps=self.settings.signal_steps, run_id="")
            self._router.window(request, "signal", key=f"signal {os.urandom(8).hex()}")
