"""Names of launches: all ranks of a job that were started together get the same name, and directories of their own."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from stepscope.runtime.events.clock import identity
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.session.job import job_from_environment, rank_from_environment, this_host
from stepscope.runtime.session.system import birth_of

_JOB = ("STEPSCOPE_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
"""Other batch systems do not distinguish one launch of a job from the next."""
_FACTS = (*_JOB, "SLURM_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
"""Variables that are the same in all ranks of a launch."""
_NO_STEP = 0xFFFFFFF0
"""From here on, numbers of Slurm's steps are not of `srun`, such as that of the batch script."""


def launch_name() -> str:
    """Returns a name for this launch, the same in all its ranks; empty if the environment does not identify it.

    - If torchrun runs all ranks on this machine, they are children of one process. The name consists of the begin, number and
      machine of that process, and the number of its restarts.
    - Else the name consists of the job's id, from the user (STEPSCOPE_JOB), torchrun (`--rdzv-id`) or Slurm, the address at
      which the ranks meet, and Slurm's step. A later job with the same id and address gets the same name.
    """
    rank, size = rank_from_environment()
    if rank is None or not size or size < 2:
        return ""
    env = os.environ.get
    job, elastic = job_from_environment(_JOB), env("TORCHELASTIC_RUN_ID")
    if elastic and env("LOCAL_WORLD_SIZE") == env("WORLD_SIZE"):
        began = birth_of(os.getppid())
        again = env("TORCHELASTIC_RESTART_COUNT", "0")
        parts = [time.strftime("%Y%m%d-%H%M%S", time.gmtime(began)), str(os.getppid())]
        # Process numbers repeat in containers; the id distinguishes several launches of one program.
        parts.append(_digest(this_host(), identity(), elastic))
        parts += [f"restart{again}"] if again != "0" else []
        return "-".join(parts) if began else ""
    facts = [env(name, "") for name in _FACTS]
    if "RANK" not in os.environ and "SLURM_PROCID" in os.environ:
        step = env("SLURM_STEP_ID", "")
        if not step.isdecimal() or int(step) >= _NO_STEP:
            return ""  # a batch script has the variables of a rank, too
        facts.append(step)
    return f"{_digest(*facts)}-{job}" if job else ""


def launch_directory(base: Path, name: str, launch: str) -> Path:
    """Returns a directory that the ranks of a launch (`launch_name`) share: a new one for each run of this process."""
    rank = rank_from_environment()[0]
    # Output of this rank in it is of an earlier launch with the same name.
    return _first_free(base / f"{name}-{launch}", lambda path: _has_output(path, f"rank{rank}"))


def own_directory(path: Path, rank: int | None) -> Path:
    """Returns a directory for a run of this process, or of this rank: `path`, or if that is used, `path` with a number.

    An existing one is of an earlier process with the same number, or of this process before `exec()`.
    """
    below = "" if rank is None else f"rank{rank}"
    return _first_free(path, lambda path: os.path.lexists(path / below), below)


def _first_free(first: Path, is_used: Callable[[Path], bool], below: str = "") -> Path:
    """Returns the first of `name`, `name-2`, ... that is not used and was not assigned before."""
    path, token, number = first, object(), 1
    while is_used(path) or _assigned.setdefault(absolute(path / below), token) is not token:
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


_assigned: dict[Path, object] = {}
"""Directories of runs of this process."""


def _has_output(run: Path, rank: str) -> bool:
    """Whether a rank has written to a run, or to a stage of it."""
    return any(run.glob(rank)) or any(run.glob(f"*/{rank}"))


def _digest(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:8]
