"""The job that a process is part of, as its environment says: which it is, which rank, on which host."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from stepscope.runtime.files.paths import readable
from stepscope.runtime.session.ranks import valid_rank, valid_world_size

MAX_JOB = 200
"""Characters of a job's id."""
JOB_VARIABLES = (
    *("STEPSCOPE_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"),
    *("PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "JOB_ID"),
)
"""Where the user and launchers, and other batch systems, say which job this is; the first one counts."""
_NAME_OR_RANK = "MS_NODE_ID"
"""MindSpore takes any name of a process here; `msrun` writes the rank."""
_NUMBER = re.compile(r"-?[0-9]+")
_MAX_DIGITS = 20
"""Longer text is cut: its number is too large in any case, and Python refuses to read thousands of digits."""


def this_host() -> str:
    """Name of this machine."""
    return readable(socket.gethostname())


def job_from_environment(variables: Sequence[str] = JOB_VARIABLES) -> str:
    """The id of the job as the user or the launcher announces it in the environment; empty by default."""
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
    `None` by default. A value that is no such number is ignored, with a warning in the log."""

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
    """How many ranks of the job run on this machine, as launchers announce it; `None` by default."""
    return _number(valid_world_size, "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")


def _number(valid: Callable[[int | str, str], int | None], *names: str) -> int | None:
    """The first of these variables that is a valid number."""
    for name in names:
        text = os.environ.get(name, "").strip()
        is_number = _NUMBER.fullmatch(text) is not None
        if not text or (name == _NAME_OR_RANK and not is_number):
            continue
        number = valid(int(text[:_MAX_DIGITS]) if is_number else text, name)
        if number is not None:
            return number
    return None
