"""Identities of processes on one or several machines, and whether they live."""

from __future__ import annotations

import os
from functools import cache

import msgspec

from stepscope.runtime.events.clock import identity
from stepscope.runtime.session.job import this_host
from stepscope.runtime.session.system import is_running, process_identity


class Peer(msgspec.Struct, frozen=True):
    """Identifies a process. Its number alone does not, as the system uses numbers again."""

    pid: int
    start_time: int
    """In clock ticks since boot."""
    machine: str
    """Identifies the boot and the process namespace. Processes of another machine are not visible from here."""
    host: str

    @classmethod
    def here(cls) -> Peer:
        """This process."""
        return cls(**process_identity(), machine=this_machine(), host=this_host())

    @property
    def is_local(self) -> bool:
        """Whether it is visible from here."""
        return self.machine == this_machine()

    @property
    def is_dead(self) -> bool:
        """Whether it has certainly ended; false for processes of other machines."""
        return self.is_local and not is_running(self.pid, self.start_time)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


@cache
def this_machine() -> str:
    """Returns a name for this boot of the machine and the process namespace. Containers have their own namespaces."""
    try:
        numbering = os.readlink("/proc/self/ns/pid")
    except OSError:
        numbering = ""
    return f"{identity() or this_host()}/{numbering}"
