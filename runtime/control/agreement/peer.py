"""Processes of one machine or several: their names, and whether they live."""

from __future__ import annotations

import os
from functools import cache

import msgspec

from stepscope.runtime.events.clock import identity
from stepscope.runtime.export.run import this_host
from stepscope.runtime.session.system import is_running, process_identity


class Peer(msgspec.Struct, frozen=True):
    """Names a process for good: its number alone is given again to another one."""

    pid: int
    start_time: int
    """In clock ticks since boot."""
    machine: str
    """Of the boot and the numbering of processes; a process of another one cannot be looked at from here."""
    host: str

    @classmethod
    def here(cls) -> Peer:
        """This process."""
        return cls(**process_identity(), machine=this_machine(), host=this_host())

    @property
    def is_local(self) -> bool:
        """Whether it can be looked at from here."""
        return self.machine == this_machine()

    @property
    def is_dead(self) -> bool:
        """Whether it is known to have ended; of another machine's nothing is known."""
        return self.is_local and not is_running(self.pid, self.start_time)

    @property
    def shares_kernel(self) -> bool:
        """Whether it is of this machine since its boot, in whatever container: the kernel that has its locks is ours."""
        return _boot(self.machine) == _boot(this_machine())

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


@cache
def this_machine() -> str:
    """Names this machine since its boot, and this process's view of process numbers: containers have their own."""
    try:
        numbering = os.readlink("/proc/self/ns/pid")
    except OSError:
        numbering = ""
    return f"{identity() or this_host()}/{numbering}"


def _boot(machine: str) -> str:
    """A machine's part of its name, without what containers have of their own."""
    return machine.partition("/")[0].partition("+")[0]
