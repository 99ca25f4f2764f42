"""`profile_process="server"`: calls for other processes go over a remote control, such as windows that stepscope asks for."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from stepscope.compat.mxnet.errors import MXNetError, MXNetValueError, one_of
from stepscope.runtime.control.entry_points.client import ask_process
from stepscope.runtime.errors import ControlError
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.requests.window_request import WindowRequest

log = logging.getLogger("stepscope")

PROCESSES = ("worker", "server")


@runtime_checkable
class RemoteControl(Protocol):
    """Reaches the other processes of a job. Each method returns when the request is sent, and raises if it cannot be."""

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Passes on the arguments of `set_config`, without `profile_process`."""

    def set_state(self, state: str) -> None:
        """Sets the state: `run` or `stop`."""

    def pause(self) -> None:
        """Records nothing until `resume`."""

    def resume(self) -> None:
        """Ends the latest pause."""

    def dump(self, finished: bool) -> None:
        """Completes the files, and stops if `finished`."""


def remote_control(handle: object, call: str) -> RemoteControl:
    """The handle, if it is a remote control.

    Raises:
        MXNetError: if it is none; names the call that needs one.
    """
    if isinstance(handle, RemoteControl) and not isinstance(handle, type):
        return handle
    found = "none was given" if handle is None else f"{type(handle).__name__} is none"
    raise MXNetError(
        f"{call} with profile_process='server' needs a remote control, and {found}; "
        "give one to set_kvstore_handle(), such as stepscope.mxnet.RemoteProcesses(pid)"
    )


def for_server(profile_process: object) -> bool:
    """True if a call is for the other processes.

    Raises:
        MXNetValueError: if it is neither `worker` nor `server`.
    """
    return one_of("profile_process", profile_process, PROCESSES) == "server"


LONGEST = 86_400.0
"""Seconds after which a forgotten window ends by itself."""


class RemoteWindows(ABC):
    """Switches recording on and off elsewhere, from one step to another: running is a window without a planned end.

    The others decide themselves what they record, and to which file (`set_config` there): nothing that comes over a
    connection chooses a path. Their files are complete at any moment, so a dump has nothing to do.
    """

    def __init__(self, ranks: tuple[int, ...] | None) -> None:
        self._request = WindowRequest(seconds=LONGEST, ranks=ranks)
        self._wanted = False
        self._pauses = 0

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Passes nothing on, and logs that."""
        if settings:
            log.warning(
                "stepscope.mxnet: the other processes have their own settings; not passed on: %s", ", ".join(settings)
            )

    def set_state(self, state: str) -> None:
        """Asks for a window, or ends it.

        Raises:
            MXNetError: if somebody cannot be asked, or refuses; says who and why.
        """
        if (state == "run") == self._wanted:
            return
        if not self._pauses:
            self._switch(state == "run")
        self._wanted, self._pauses = state == "run", 0

    def pause(self) -> None:
        """Ends the window; errors are those of `set_state`."""
        if self._wanted and not self._pauses:
            self._switch(False)
        self._pauses += self._wanted

    def resume(self) -> None:
        """After the last pause, asks for another window; errors are those of `set_state`."""
        if self._pauses == 1:
            self._switch(True)
        self._pauses = max(self._pauses - 1, 0)

    def dump(self, finished: bool) -> None:
        """Ends the window if `finished`; errors are those of `set_state`."""
        if finished:
            self.set_state("stop")

    def _switch(self, on: bool) -> None:
        try:
            self._request_window(on)
        except ControlError as error:
            raise MXNetError(str(error)) from error

    @abstractmethod
    def _request_window(self, on: bool) -> None:
        """Asks for a window, or ends those that there are.

        Raises:
            ControlError: if somebody cannot be asked, or refuses.
        """


class RemoteProcesses(RemoteWindows):
    """Processes of this user on this machine, over their sockets. They call `step()`, and are set to take commands:
    `set_config(control=stepscope.Control(socket=True))`, and then `set_state("run")`.

    Args:
        pids: their numbers.
        ranks: which of them record; by default all.
        timeout: seconds to wait for the answers of one.

    Raises:
        MXNetValueError: if none is named.
    """

    def __init__(self, *pids: int, ranks: tuple[int, ...] | None = None, timeout: float = 30.0) -> None:
        if not pids:
            raise MXNetValueError("RemoteProcesses() needs the number of a process at least")
        super().__init__(ranks)
        self._pids, self._timeout = pids, timeout

    def _request_window(self, on: bool) -> None:
        command = Command(command="arm", request=self._request) if on else Command(command="abort")
        problems: list[str] = []
        for pid in self._pids:
            try:
                answers = ask_process(pid, command, self._timeout)
            except ControlError as error:
                problems.append(str(error))
            else:
                problems += [f"process {pid}: {why}" for answer in answers if (why := _refusal(answer))]
        if problems:
            raise ControlError("; ".join(problems))


def _refusal(answer: Answer) -> str:
    if answer.error:
        return answer.error
    return "" if answer.armed is None or answer.armed.accepted else str(answer.armed)


class RemoteCollector(RemoteWindows):
    """All processes that a collector knows, by the command `stepscope arm`: those with
    `set_config(control=stepscope.Control(collector=True), exporters=[stepscope.CollectorExporter(...)])`.

    Args:
        url: of the collector.
        token_file: a file with its token; without one, `STEPSCOPE_TOKEN` of the environment.
        ranks: which ranks record; by default all.
        timeout: seconds to wait for the answers.
        options: further ones of `stepscope arm`, such as `("--ca", "ca.pem")`.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: str | os.PathLike[str] | None = None,
        ranks: tuple[int, ...] | None = None,
        timeout: float = 30.0,
        options: tuple[str, ...] = (),
    ) -> None:
        super().__init__(ranks)
        self._command = [sys.executable, "-m", "stepscope", "arm", "--url", url, "--timeout", f"{timeout:g}", *options]
        if token_file is not None:
            self._command += ["--token-file", os.fspath(token_file)]
        if ranks is not None:
            self._command += ["--ranks", ",".join(map(str, ranks))]
        self._timeout = timeout

    def _request_window(self, on: bool) -> None:
        command = [*self._command, *(("--seconds", f"{LONGEST:g}") if on else ("--abort",))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20 * self._timeout)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ControlError(f"stepscope arm did not end well: {error}") from error
        if done.returncode:
            raise ControlError((done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}")[-2000:])
