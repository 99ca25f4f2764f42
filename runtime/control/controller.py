"""The controller of one profiler: opens and closes every way by which windows are asked of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from stepscope.runtime.control.agreement.agreement import Agreement
from stepscope.runtime.control.agreement.job_directory import JobDirectory
from stepscope.runtime.control.command_handler import CommandHandler
from stepscope.runtime.control.control_task import ControlTask
from stepscope.runtime.control.entry_points import user_signal
from stepscope.runtime.control.entry_points.control_file import (
    ControlFile,
    decode_control_file,
    default_content,
    file_of,
)
from stepscope.runtime.control.entry_points.local_socket import LocalSocket
from stepscope.runtime.control.entry_points.watched_file import WatchedFile
from stepscope.runtime.control.file_requests import FileRequests
from stepscope.runtime.control.request_history import TakenRequests
from stepscope.runtime.control.request_router import RequestRouter
from stepscope.runtime.control.settings import Control
from stepscope.runtime.requests.armable import Armable
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.session.job import is_child, job_from_environment, rank_from_environment

log = logging.getLogger("stepscope")

ALONE = (
    "no world size was known when trace() was called: this process goes by its own steps as rank {}, and agrees with no other; "
    "give world_size=..., or have WORLD_SIZE set or torch.distributed initialised before"
)


class Controller:
    """Lives from the profiler's first start to its close, also while nothing is recorded.

    In a forked child it does nothing any more.
    """

    def __init__(self, settings: Control, profiler: Armable, rank: int | None, world_size: int | None) -> None:
        """Args: which ways are open; whose windows; which rank of how many this is."""
        self.settings = settings
        self._profiler, self._rank = profiler, rank
        self._file: WatchedFile[ControlFile] | None = None
        self._asking = RequestRouter(profiler, rank)
        if settings.path is not None:
            self._file = self._watched(file_of(Path(settings.path)), settings, first=not rank)
            taken = TakenRequests(self._file.path)
            self._asking = RequestRouter(profiler, rank, self._file.status, taken)
            self._requests = FileRequests(profiler, self._asking, taken)
            if settings.agree and rank is not None and (world_size or 1) > 1:
                self._asking.agreement = Agreement(
                    JobDirectory(self._file.path, settings.job or job_from_environment()),
                    profiler,
                    rank=rank,
                    world_size=world_size or 1,
                    patience=settings.patience,
                    idle=settings.poll,
                    outcome=self._asking.decided,
                )
        status = None if self._file is None else self._file.status
        self._task = ControlTask(profiler, self._asking.agreement, status, pause=settings.poll, ended=self._asking.end)
        self._commands = CommandHandler(profiler, rank, self._asking, self._task)
        self._socket: LocalSocket | None = None
        self._signals = 0
        self._notes: list[str] = []
        self._size_unknown = settings.path is not None and settings.agree and world_size is None

    def _watched(self, path: Path, settings: Control, *, first: bool) -> WatchedFile[ControlFile]:
        return WatchedFile(
            path,
            decode_control_file,
            default=default_content(),
            create=settings.create and first,
            poll=settings.poll,
            on_change=self._changed,
            status=first,
        )

    @property
    def file(self) -> Path | None:
        """The watched file."""
        return None if self._file is None else self._file.path

    def start(self, session: Path) -> None:
        """Opens the ways that the settings name; starting again changes nothing. What cannot be opened is noted.

        Args:
            session: directory of the process's session.
        """
        try:
            self._task.start(partial(self._open, session))
        except RuntimeError as error:
            self._note(f"nothing can be asked for: {error}")

    def _open(self, session: Path) -> None:
        if self._file is not None:
            try:
                self._file.start()
            except (OSError, RuntimeError) as error:
                self._note(f"{self._file.path} is not watched: {error}")
        if self.settings.signal and (problem := user_signal.watch(self._signalled)):
            self._note(problem)
        if self.settings.socket:
            self._socket = LocalSocket.listen(session, self._commands.handle)
            if self._socket.problem:
                self._note(self._socket.problem)

    def close(self) -> None:
        """Closes them. Idempotent; only the main thread can give SIGUSR2 back."""
        if self._task.inherited:
            return
        if self.settings.signal:
            user_signal.unwatch(self._signalled)
        if not self._task.running:
            return
        if self._socket is not None:
            self._socket.leave(self._commands.handle)
        if self._file is not None:
            self._file.close()
            self._requests.release_lost("queued")
        self._task.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Which ways are not open, and why; and that this rank is on its own, where it seems to be one of several."""
        alone = self._size_unknown and (self._rank is not None or is_child() or (rank_from_environment()[1] or 1) > 1)
        return (*self._notes, *([ALONE.format(self._rank or 0)] if alone else []))

    def _note(self, text: str) -> None:
        self._notes.append(text)
        log.error("control of profiler %r: %s", self._profiler.name, text)

    # what is asked

    @property
    def from_collector(self) -> Callable[[Command], Future[Answer]] | None:
        """Obeys commands of the collector's operators; `None` if the settings do not let it."""
        return partial(self._commands.handle, trigger="collector") if self.settings.collector else None

    def _changed(self, found: ControlFile) -> None:
        """The watched file says something new."""
        if self._task.running:
            self._task.soon(partial(self._requests.follow, found))
        else:  # in `start()`: what the file says at the start may be about the first step
            self._requests.follow(found)

    def _signalled(self) -> None:
        """SIGUSR2 came; called by its handler."""
        self._signals += 1
        self._task.soon(self._take_signal)

    def _take_signal(self) -> None:
        if self._signals:  # several that came at once are one
            self._signals = 0
            request = WindowRequest(steps=self.settings.signal_steps, run_id="")
            self._asking.window(request, "signal", key=f"signal {os.urandom(8).hex()}")
