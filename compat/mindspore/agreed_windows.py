"""Windows that a file asks for, where the ranks of a job agree on their steps before any of them records."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from stepscope.compat.mindspore.asked_steps import Asked
from stepscope.compat.mindspore.step_windows import StepWindows
from stepscope.runtime.control import control_loop
from stepscope.runtime.control.agreement import Agreement
from stepscope.runtime.control.armed import Armed, ArmedStatus
from stepscope.runtime.control.end_change import EndRequest
from stepscope.runtime.control.job_directory import JobDirectory
from stepscope.runtime.control.record_events import RecordEvents
from stepscope.runtime.control.status_file import StatusFile
from stepscope.runtime.control.window_request import WindowRequest
from stepscope.runtime.run import job_from_environment

log = logging.getLogger("stepscope")

ASKING = "the ranks are being asked"
"""The answer before there is one."""
SHOWN = 8
"""Windows that the status file tells of."""


class AgreedWindows:
    """One rank's part, on the control thread: a step of training only passes the gate of a window that begins with it.

    docs/control.md has the protocol. What becomes of each request is in the status file, which rank 0 writes.
    """

    def __init__(
        self, windows: StepWindows, path: Path, status: StatusFile, *, rank: int, world_size: int, poll: float
    ) -> None:
        """
        Args:
            windows: of this rank.
            path: the watched file, which all ranks see.
            status: the file beside it.
            rank: of this process.
            world_size: how many ranks the job has.
            poll: seconds between two looks for what others have written.
        """
        self._windows, self._path, self._status, self._poll = windows, path, status, poll
        self._agreement = Agreement(
            JobDirectory(path, job_from_environment()),
            windows,
            rank=rank,
            world_size=world_size,
            idle=poll,
            outcome=self._decided,
        )
        self._rank = rank
        self._latest: Asked | None = None
        self._wished: set[WindowRequest] = set()
        """What the file has asked for so far."""
        self._answers: dict[WindowRequest, str] = {}
        self._todo: deque[Callable[[], object]] = deque()
        self._told: tuple[ArmedStatus, ...] = ()
        self._loop: control_loop.ControlLoop | None = None
        self._task: Future[None] | None = None
        self._wake: asyncio.Event | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Takes part from now on.

        Raises:
            RuntimeError: if the system gives no further thread.
        """
        self._loop = control_loop.acquire()
        self._task = self._loop.start(self._run, "agreement of the dynamic profiler")

    def close(self) -> None:
        """Takes part no more, so that nobody waits for this rank. Closing twice, or in a forked child, changes nothing."""
        task, loop, self._task, self._loop = self._task, self._loop, None, None
        if task is None or loop is None or self._pid != os.getpid():
            return
        task.cancel()
        control_loop.release(loop)

    def ask(self, asked: Asked) -> None:
        """The file says something new; from any thread."""
        self._todo.append(lambda: self._take(asked))
        self._look()

    def _look(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            loop.call_soon(wake.set)

    # on the control thread

    async def _run(self) -> None:
        self._wake = asyncio.Event()
        events = RecordEvents(self._look)
        try:
            while True:
                pause = self._poll
                if self._path.parent.is_dir():  # rank 0 may have yet to make it
                    while self._todo:
                        self._todo.popleft()()
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
            self._agreement.close()
            self._tell_windows()

    def _take(self, asked: Asked) -> None:
        if asked == self._latest:
            return
        self._latest = asked
        if asked.command == "abort":
            self._wish_end(asked, EndRequest(command="abort", reason="it was aborted"))
        elif asked.command == "extend":
            self._extend(asked)
        elif not asked.is_nothing:
            try:
                request = self._windows.request(asked)
            except ValueError as error:
                self._refuse(asked.text(), asked.run_id, str(error))
                return
            if request in self._wished:
                before = self._answers.get(request, "it is not answered yet")
                again = f"it was asked for before ({before}): another run_id asks for it again"
                self._say(request.text(), request.run_id, again)
            elif request not in self._answers:  # another rank may have read the file before, and it is done
                self._say(request.text(), request.run_id, ASKING)
            self._wished.add(request)
            self._agreement.wish(request, "file")

    def _extend(self, asked: Asked) -> None:
        steps, window = asked.steps, self._windows.meant(asked)
        if not steps:
            if window is None or window.last is None:
                if asked.ranks is None or self._rank in asked.ranks:
                    self._refuse(
                        "extend", asked.run_id, "command 'extend' changes nothing: no such window runs or waits"
                    )
                return
            steps = asked.last - window.last
            if steps < 0:
                shorter = f"the window goes on until step {window.last}; where ranks agree, only abort makes it shorter"
                self._refuse("extend", asked.run_id, shorter)
            if steps <= 0:  # another rank may have read the file before, and it is done
                return
        self._wish_end(asked, EndRequest(command="extend", steps=steps))

    def _wish_end(self, asked: Asked, end: EndRequest) -> None:
        self._agreement.wish(end, "file", f"{asked.command} {asked.key!r}")

    def _decided(self, asked: WindowRequest | EndRequest, trigger: str, armed: Armed) -> None:
        if isinstance(asked, WindowRequest):
            self._answers[asked] = str(armed)
        if armed:
            log.info("[Dynamic Profiler] rank %d: %s: %s", self._rank, asked.text(), armed)
            self._say(asked.text(), asked.run_id, str(armed))
        else:
            self._refuse(asked.text(), asked.run_id, armed.reason)

    def _refuse(self, request: str, run_id: str, reason: str) -> None:
        self._windows.complain(f"{request}: {reason}")
        self._say(request, run_id, f"refused: {reason}")

    def _say(self, request: str, run_id: str, answer: str) -> None:
        self._status.put(request=request, run_id=run_id or None, trigger="file", answer=answer)

    def _tell_windows(self) -> None:
        windows = self._windows.armed()[-SHOWN:]
        if windows != self._told:
            self._told = windows
            self._status.put(windows=list(windows))
