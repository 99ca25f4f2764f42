"""What exporters are told about the run that they write."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.events.clock import ClockAnchor, identity, wall_clock
from stepscope.runtime.files.paths import readable
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.session.ranks import valid_rank, valid_world_size
from stepscope.runtime.session.trace_note import NoteOutput
from stepscope.runtime.settings.documented import Documented

MAX_JOB = 200
"""Characters of a job's id."""
JOB_VARIABLES = (
    *("STEPSCOPE_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"),
    *("PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "JOB_ID"),
)
"""Where the user and launchers, and other batch systems, say which job this is; the first one counts."""
_NUMBER = re.compile(r"-?[0-9]+")
_MAX_DIGITS = 20
"""Longer text is cut: its number is too large in any case, and Python refuses to read thousands of digits."""


class Run(Documented, frozen=True, kw_only=True):
    """One profiler's run, as its exporters see it."""

    name: str
    """As `trace(name=...)` says."""
    output_dir: Path
    """Directory of this run; exists."""
    pid: int
    """Process id of the run."""
    host: str
    """Name of the machine."""
    rank: int | None
    """Rank in a distributed job; `None` outside one."""
    world_size: int | None
    """How many ranks the job has; `None` outside one."""
    anchor: ClockAnchor
    """Wall and monotonic clock read together when the run was opened."""
    metadata: Callable[[], Mapping[str, Any]]
    """The metadata added so far; values are JSON-like."""
    ledger: Callable[[], Ledger] = Ledger
    """The accounts of the run so far: windows, what lies between them, and every output."""
    note_output: NoteOutput = lambda file, being_written, trace=None: None
    """To be called by an exporter before it begins a file that a crash would leave incomplete, with `True`, and when the
    file is complete, with `False`: so `stepscope recover` finds journals, and writes traces anew. Writes a small file."""
    job: str = ""
    """What the launcher calls the job that this run is part of; empty if it says nothing."""
    clock: str = ""
    """Names the machine's monotonic clock: runs of one name read the same clock. Empty: not known."""
    id: str = ""
    """Random, of this run alone: its journals and its note bear it. Empty: not known."""
    control: Callable[[Command], Future[Answer]] | None = None
    """Takes commands for the profiler, from any thread; `None`: it takes none from where this run goes."""

    def wall(self, monotonic_ns: int) -> int:
        """Unix time in ns that the machine's clock showed at a monotonic time of this run, also after it was set.

        For a run of another process it is as the anchor has it.
        """
        at = self.anchor.wall(monotonic_ns)
        return at + wall_clock.change(self.anchor.monotonic_ns, monotonic_ns) if self.pid == os.getpid() else at

    @classmethod
    def here(
        cls,
        *,
        name: str,
        output_dir: Path,
        rank: int | None,
        world_size: int | None,
        anchor: ClockAnchor,
        metadata: Callable[[], Mapping[str, Any]],
        ledger: Callable[[], Ledger],
        note_output: NoteOutput,
        control: Callable[[Command], Future[Answer]] | None = None,
    ) -> Run:
        """A run of this process, whose own facts are filled in."""
        return cls(
            name=readable(name),
            output_dir=output_dir,
            pid=os.getpid(),
            host=this_host(),
            rank=rank,
            world_size=world_size,
            anchor=anchor,
            metadata=metadata,
            ledger=ledger,
            note_output=note_output,
            job=job_from_environment(),
            clock=identity(),
            id=secrets.token_hex(16),
            control=control,
        )


def this_host() -> str:
    """Name of this machine."""
    return readable(socket.gethostname())


def job_from_environment(variables: Sequence[str] = JOB_VARIABLES) -> str:
    """The id of the job as the user or the launcher announces it in the environment; empty where nothing is said."""
    for name in variables:
        text = os.environ.get(name, "").strip()
        if text and text != "none":  # what torchrun says if nobody chose an id
            return readable(text[:MAX_JOB])[:MAX_JOB]
    return ""


def is_child() -> bool:
    """Whether `multiprocessing` has started this process, as `torch.multiprocessing.spawn` does for ranks."""
    module: Any = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def rank_from_environment() -> tuple[int | None, int | None]:
    """(rank, world size) as launchers announce them in the environment, else as torch.distributed has them, if it is in use;
    `None` where nothing is said. A number that is too large or negative is ignored, with a warning in the log."""

    rank = _number(valid_rank, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK_ID", "MS_NODE_ID")
    sizes = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "RANK_SIZE", "MS_WORKER_NUM")
    world = _number(valid_world_size, *sizes)
    group: Any = sys.modules.get("torch.distributed")
    if rank is None and group is not None and group.is_available() and group.is_initialized():
        return group.get_rank(), group.get_world_size()
    if rank is None:  # a job of one machine
        local = _number(valid_world_size, "LOCAL_WORLD_SIZE") if world is None else world
        return _number(valid_rank, "LOCAL_RANK"), local
    return rank, world


def local_world_size() -> int | None:
    """How many ranks of the job run on this machine, as launchers announce it; `None` where nothing is said."""
    return _number(valid_world_size, "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")


def _number(valid: Callable[[int | None, str], int | None], *names: str) -> int | None:
    """The first of these variables that is a valid number."""
    for name in names:
        found = _NUMBER.fullmatch(os.environ.get(name, "").strip())
        number = valid(int(found[0][:_MAX_DIGITS]), name) if found else None
        if number is not None:
            return number
    return None
