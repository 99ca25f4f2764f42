"""Faults that end the process: killed, crashed, out of memory, or asked to stop."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Generator
from functools import partial
from pathlib import Path

from stepscope.cli.writing.recover import rewrite_traces
from stepscope.runtime.errors import FormatError, StepscopeError
from stepscope.runtime.recovery.recover import recover
from tests.stress.torture.cgroup import Group, limited
from tests.stress.torture.fault import Fault, Outcome
from tests.stress.torture.journal_check import check_accounts
from tests.support.basics import ROOT
from tests.support.launch import launched

CRASHES = {
    "SIGSEGV": ("segfault", -signal.SIGSEGV),
    "SIGABRT": ("abort", -signal.SIGABRT),
    "SIGABRT in a thread that Python did not make": ("abort_in_a_foreign_thread", -signal.SIGABRT),
    "os._exit": ("leave_at_once", 7),
    "stack overflow": ("overflow_the_stack", -signal.SIGSEGV),
    "RLIMIT_AS used up, then SIGKILL": ("killed_without_address_space", -signal.SIGKILL),
    "RLIMIT_DATA used up, then SIGKILL": ("killed_without_data", -signal.SIGKILL),
}
"""Ends that run none of our code: what the victim does, and what its parent sees of it."""
STOPS = {
    "SIGTERM": ("terminate", -signal.SIGTERM),
    "SIGINT": ("interrupt", -signal.SIGINT),
    "sys.exit": ("exit_normally", 3),
    "exception in the loop": ("raise_an_exception", 1),
    "exception in a thread, then sys.exit": ("raise_in_a_thread", 1),
}
"""Ends that let the profiler close."""
GROUP_MEMORY = 512 << 20
"""Bytes that a control group leaves to a victim."""
MOST_NS = 5_500_000_000
"""Deadline for closing, and half a second."""


@contextlib.contextmanager
def started(
    place: Path, seed: int, ending: str = "wait", group: Group | None = None, *, program: str = "victim"
) -> Generator[subprocess.Popen[bytes]]:
    """The victim, or another program with it, in a control group if there is one, when it records."""
    (place / "session").mkdir()
    command = [sys.executable, "-m", f"tests.stress.torture.{program}", str(place), str(seed), ending]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        (place / "stderr").open("wb") as errors,
        launched(command, cwd=ROOT, env=environment, stdout=errors, stderr=errors) as process,
    ):
        if group is not None:
            group.take(process.pid)
        deadline = time.monotonic() + 60
        while not (place / "ready").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        yield process


def bare_ns() -> int:
    """The time that the machine takes at this moment to start and end an interpreter, which is no part of closing."""
    began = time.monotonic_ns()
    subprocess.run([sys.executable, "-c", ""], check=True)
    return time.monotonic_ns() - began


def traces(place: Path) -> list[str]:
    """Faults of the Chrome and TensorBoard files, which are to be complete."""
    problems: list[str] = []
    for path in [*place.glob("run/*.json*"), *place.glob("run/tb/*.json*")]:
        try:
            if path.name.endswith(".part"):
                raise FormatError("it was not complete")
            data = path.read_bytes()
            json.loads(zlib.decompress(data, 31) if path.name.endswith(".gz") else data)
        except (StepscopeError, ValueError, zlib.error) as error:
            problems.append(f"{path.name}: {error!r}")
    return problems


def recovered(place: Path, *, closed: bool = False) -> Outcome:
    """Recovers the victim's files, and checks accounts; `closed` if it may have ended its last window."""
    began = time.monotonic_ns()
    result = recover(place / "run")
    took = time.monotonic_ns() - began
    messages: list[str] = []
    _, complete = rewrite_traces(result, place / "run", set(), messages.append)
    problems = [*([] if complete else messages), *traces(place)]
    return check_accounts(place, result.journal, closed=closed, recovered=closed) + Outcome(
        tried=0, shutdown_ns=took, problems=tuple(problems)
    )


def kill(place: Path, seed: int) -> Outcome:
    """SIGKILL at a random moment."""
    with started(place, seed) as process:
        time.sleep(random.Random(seed).uniform(0.0, 0.4))
        process.kill()
    return recovered(place)


def kill_closing(place: Path, seed: int) -> Outcome:
    """SIGKILL at a random moment of the closing that SIGTERM or the program's own end has begun, or right after it."""
    chance = random.Random(seed)
    with started(place, seed, chance.choice(["terminate", "exit_normally"])) as process:
        while process.poll() is None and not (place / "ending").exists():
            time.sleep(0.001)
        time.sleep(chance.uniform(0.0, 0.15))
        process.kill()
    return _left(place)


def crash(ending: str, code: int, place: Path, seed: int) -> Outcome:
    """An end that runs none of our code."""
    with started(place, seed, ending) as process:
        ended = process.wait(60)
    outcome = recovered(place)
    if ended != code:
        outcome += Outcome(tried=0, problems=(f"{ending} ended with {ended}: {_output(place)}",))
    return outcome


def stop(ending: str, code: int, place: Path, seed: int) -> Outcome:
    """An end that lets the profiler close."""
    with started(place, seed, ending) as process:
        while process.poll() is None and not (place / "ending").exists():
            time.sleep(0.002)
        began = time.monotonic_ns()
        ended = process.wait(60)
    return delivered(place, time.monotonic_ns() - began, ending, ended, code)


def delivered(place: Path, took: int, ending: str, ended: int, code: int, *, bare: bool = False) -> Outcome:
    """Accounts of a victim that closed in order.

    Args:
        took: ns from what asked it to end until it had ended.
        ending: what asked it.
        ended: its status.
        code: what that should be.
        bare: whether it may have ended in a step in which nothing was recorded.
    """
    problems = traces(place)
    problems += [f"{ending} ended with {ended}: {_output(place)}"] if ended != code else []
    problems += ["there is something to recover"] if (place / "run" / "session").exists() else []
    if took > MOST_NS and took > MOST_NS + (machine := bare_ns()):
        problems.append(f"closing took {took / 1e9:.1f} s, where a bare interpreter takes {machine / 1e9:.1f} s")
    return check_accounts(place, place / "run" / "journal", closed=True, bare=bare) + Outcome(
        tried=0, shutdown_ns=took, problems=tuple(problems)
    )


def starve(place: Path, seed: int) -> Outcome:
    """The limit is 1 GiB, and the memory stays in use while Python ends: a trace that cannot be closed then is recovered."""
    with started(place, seed, "run_out_of_address_space") as process:
        ended = process.wait(60)
    # Python reports files that could not be closed after that, or before; this depends on its version.
    known = "MemoryError" in (place / "stderr").read_text(errors="replace")
    problems = () if ended and known else (f"ended with {ended}: {_output(place)}",)
    return _left(place) + Outcome(tried=0, problems=problems)


def _left(place: Path) -> Outcome:
    """Accounts of a victim that had begun to close: what it could not is recovered."""
    if (place / "run" / "session").exists():
        return recovered(place, closed=True)
    return check_accounts(place, place / "run" / "journal", closed=True)


def out_of_memory(place: Path, seed: int) -> Outcome:
    """The kernel kills the victim in a control group whose limit on memory it passes."""
    with limited(GROUP_MEMORY) as group, started(place, seed, "eat_memory", group) as process:
        ended = process.wait(60)
        problems = () if ended == -signal.SIGKILL and group.kills else (f"ended with {ended}: {_output(place)}",)
    return recovered(place) + Outcome(tried=0, problems=problems)


def _output(place: Path) -> str:
    return (place / "stderr").read_text(errors="replace")[-300:]


FAMILY = "killed"
FAULTS = (
    Fault(family=FAMILY, name="SIGKILL at a random moment", trial=kill, trials=50, short=4, least=50),
    Fault(family=FAMILY, name="SIGKILL while it closes", trial=kill_closing, trials=20, short=2, least=10),
    *(
        Fault(family=FAMILY, name=name, trial=partial(crash, ending, code), trials=2)
        for name, (ending, code) in CRASHES.items()
    ),
    Fault(family=FAMILY, name="RLIMIT_AS used up, then MemoryError", trial=starve, trials=2),
    Fault(family=FAMILY, name="out of memory in a control group", trial=out_of_memory, trials=2),
    *(
        Fault(family=FAMILY, name=name, trial=partial(stop, ending, code), trials=4)
        for name, (ending, code) in STOPS.items()
    ),
)
