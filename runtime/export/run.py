"""What exporters are told about the run that they write."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.events.clock import ClockAnchor, identity, wall_clock
from stepscope.runtime.files.paths import readable
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.session.job import job_from_environment, this_host
from stepscope.runtime.session.trace_note import NoteOutput
from stepscope.runtime.settings.documented import Documented


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
