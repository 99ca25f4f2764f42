"""The launch: what the ranks of a job share that were started together, and what no other ranks do."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from stepscope.runtime.events.clock import identity
from stepscope.runtime.export.run import job_from_environment, rank_from_environment, this_host
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.session.system import birth_of

_JOB = ("STEPSCOPE_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
"""Of a job of other batch systems nothing tells one launch from the next."""
_FACTS = (*_JOB, "SLURM_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
"""Variables that are the same in all ranks of a launch."""
_NO_STEP = 0xFFFFFFF0
"""Numbers of Slurm's steps from which on they are none of `srun`, such as that of the batch script."""


def launch_name() -> str:
    """Names this launch, alike in each of its ranks; empty where the environment does not tell it from others.

    - Where torchrun has all ranks on this machine they are children of one process: it is named by when that began, its
      number, its machine, and how often it has started them again.
    - Else by the job's id, as the user (STEPSCOPE_JOB), torchrun (`--rdzv-id`) or Slurm gives it, together with the
      address at which the ranks meet, and Slurm's step. Who starts another job under an id that was used gives it the
      same name if it meets at the same address.
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
        # In containers processes have few numbers, and a program that launches several times gives each launch an id.
        parts.append(_digest(this_host(), identity(), elastic))
        parts += [f"restart{again}"] if again != "0" else []
        return "-".join(parts) if began else ""
    facts = [env(name, "") for name in _FACTS]
    if "RANK" not in os.environ and "SLURM_PROCID" in os.environ:
        step = env("SLURM_STEP_ID", "")
        if not step.isdecimal() or int(step) >= _NO_STEP:
            return ""  # a batch script has the variables of a rank as well, whatever it runs
        facts.append(step)
    return f"{_digest(*facts)}-{job}" if job else ""


def launch_directory(base: Path, name: str, launch: str) -> Path:
    """The directory that the ranks of a launch share: a new one for each run of this process, as for those of the others.

    Args:
        base: directory that it is made in.
        name: of the run, as it is fit for a file.
        launch: what `launch_name` says, likewise.
    """
    rank = rank_from_environment()[0]
    # What is there of this rank already is of a launch before, which had the same name.
    return _first_free(base / f"{name}-{launch}", lambda path: _has_output(path, f"rank{rank}"))


def own_directory(path: Path, rank: int | None) -> Path:
    """A directory that no other run has of this process, or of this rank: this one, or the next number of it.

    What is there already is of a program before, which had the same number of process, or was this process before `exec()`.
    """
    below = "" if rank is None else f"rank{rank}"
    return _first_free(path, lambda path: os.path.lexists(path / below), below)


def _first_free(first: Path, is_used: Callable[[Path], bool], below: str = "") -> Path:
    """The first of a name and the numbers of it that holds nothing, and was not given before."""
    path, token, number = first, object(), 1
    while is_used(path) or _assigned.setdefault(absolute(path / below), token) is not token:
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


_assigned: dict[Path, object] = {}
"""What runs of this process were given."""


def _has_output(run: Path, rank: str) -> bool:
    """Whether a rank has written to a run, or to a stage of it."""
    return any(run.glob(rank)) or any(run.glob(f"*/{rank}"))


def _digest(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:8]
