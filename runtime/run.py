"""What exporters are told about the run that they write."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepscope.runtime.clock import ClockAnchor
from stepscope.runtime.ledger import Ledger


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One profiler's run, as its exporters see it."""

    name: str
    output_dir: Path
    """Directory of this run; exists."""
    pid: int
    host: str
    rank: int | None
    """Rank in a distributed job; `None` outside one."""
    world_size: int | None
    anchor: ClockAnchor
    """Wall and monotonic clock read together when the run was opened."""
    metadata: Callable[[], Mapping[str, Any]]
    """The metadata added so far; values are JSON-like."""
    ledger: Callable[[], Ledger] = Ledger
    """The accounts of the run so far: windows, what lies between them, and every output."""


def this_host() -> str:
    """Name of this machine."""
    return socket.gethostname()


def rank_from_environment() -> tuple[int | None, int | None]:
    """(rank, world size) as launchers announce them in the environment; `None` where nothing is said."""

    def number(*names: str) -> int | None:
        for name in names:
            text = os.environ.get(name, "").strip()
            if text.isdigit():
                return int(text)
        return None

    rank = number("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK_ID")
    world = number("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "RANK_SIZE")
    return rank, world
