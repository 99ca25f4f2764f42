"""`profile_process="server"`: what is asked of other processes goes over a remote control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from stepscope.compat.mxnet.errors import MXNetError, one_of

PROCESSES = ("worker", "server")


@runtime_checkable
class RemoteControl(Protocol):
    """Reaches the other processes of a job. Each method returns when the request is sent, and raises if it cannot be."""

    def configure(self, settings: Mapping[str, Any]) -> None:
        """The settings of `set_config`, as they were given, without `profile_process`."""
        ...

    def set_state(self, state: str) -> None:
        """`run` or `stop`."""
        ...

    def pause(self) -> None:
        """Records nothing until `resume`."""
        ...

    def resume(self) -> None:
        """Ends the latest pause."""
        ...

    def dump(self, finished: bool) -> None:
        """Completes the files, and stops if `finished`."""
        ...


class Remote:
    """The remote control of this process, if there is one."""

    def __init__(self) -> None:
        self.handle: object = None

    def control(self, call: str) -> RemoteControl:
        """What reaches the others.

        Raises:
            MXNetError: if nothing does.
        """
        if isinstance(self.handle, RemoteControl) and not isinstance(self.handle, type):
            return self.handle
        given = "none was given" if self.handle is None else f"{type(self.handle).__name__} is none"
        raise MXNetError(
            f"{call} with profile_process='server' needs a remote control, and {given}; "
            "give one to set_kvstore_handle(), such as stepscope.mxnet.RemoteProcesses(pid)"
        )


def for_server(profile_process: object) -> bool:
    """True if a call is for the other processes.

    Raises:
        MXNetValueError: if it is neither `worker` nor `server`.
    """
    return one_of("profile_process", profile_process, PROCESSES) == "server"
