"""Windows that a monitor's file asks for, where rank 0 chooses their steps for all ranks of a job."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from stepscope.compat.mindspore.asked_steps import Asked
from stepscope.compat.mindspore.step_windows import StepWindows
from stepscope.runtime.control.agreement.agreement import Agreement
from stepscope.runtime.control.agreement.job_directory import JobDirectory
from stepscope.runtime.control.agreement.plans import Asked as AskedOfRanks
from stepscope.runtime.control.control_task import ControlTask
from stepscope.runtime.control.entry_points.status_file import StatusFile
from stepscope.runtime.control.file_requests import TRIGGER, FileRequests
from stepscope.runtime.control.request_history import RequestHistory
from stepscope.runtime.control.request_router import RequestRouter
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.end_change import EndRequest
from stepscope.runtime.session.job import job_from_environment


class AgreedWindows:
    """One rank's part, on the control thread. docs/control.md has how ranks record the same steps.

    The status file, which rank 0 writes, has the answer to each request.
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
        self._windows, self._status, self._rank = windows, status, rank
        history = RequestHistory(path)
        self._asking = RequestRouter(windows, rank, status, history, self._refused)
        self._requests = FileRequests(windows, self._asking, history)
        agreement = self._asking.agreement = Agreement(
            JobDirectory(path, job_from_environment()),
            windows,
            rank=rank,
            world_size=world_size,
            idle=poll,
            outcome=self._asking.decided,
        )
        self._task = ControlTask(windows, agreement, status, pause=poll, ended=self._asking.end)
        self._latest: Asked | None = None

    def start(self) -> None:
        """Takes part from now on.

        Raises:
            RuntimeError: if the system gives no further thread.
        """
        self._task.start()

    def close(self) -> None:
        """Takes part no more. Closing twice, or in a forked child, changes nothing."""
        if self._task.running and not self._task.inherited:
            self._requests.release_lost("queued")
            self._task.close()

    def ask(self, asked: Asked) -> None:
        """The file says something new; from any thread."""
        self._task.call_soon(partial(self._take, asked))

    def _take(self, asked: Asked) -> None:
        if asked == self._latest:
            return
        self._latest = asked
        if asked.command == "abort":
            self._end(asked, EndRequest(command="abort", reason="it was aborted"))
        elif asked.command == "extend":
            self._extend(asked)
        elif not asked.is_nothing:
            try:
                request = self._windows.request(asked)
            except ValueError as error:
                self._refuse(asked.text(), asked.run_id, str(error))
            else:
                self._requests.window(request)

    def _extend(self, asked: Asked) -> None:
        steps, window = asked.steps, self._windows.meant(asked)
        if not steps:
            if window is None or window.last is None:
                if self._rank == 0 or asked.ranks is None or self._rank in asked.ranks:
                    self._refuse(
                        "extend", asked.run_id, "command 'extend' changes nothing: no such window runs or waits"
                    )
                return
            steps = asked.last - window.last
            if steps < 0:
                shorter = f"the window goes on until step {window.last}; with several ranks only abort makes it shorter"
                self._refuse("extend", asked.run_id, shorter)
            if steps <= 0:  # another rank may have read the file before, and it is done
                return
        self._end(asked, EndRequest(command="extend", steps=steps))

    def _end(self, asked: Asked, end: EndRequest) -> None:
        self._asking.all_ranks(end, TRIGGER, key=f"{asked.command} {asked.key!r}")

    def _refuse(self, request: str, run_id: str, reason: str) -> None:
        self._windows.complain(f"{request}: {reason}")
        self._status.put_answer(request, f"refused: {reason}", trigger=TRIGGER, run_id=run_id)

    def _refused(self, asked: AskedOfRanks, armed: Armed) -> None:
        self._windows.complain(f"{asked.text()}: {armed.reason}")
