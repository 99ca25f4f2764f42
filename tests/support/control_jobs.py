"""Jobs of several ranks that watch one file, as processes: what is asked of them, and what they have recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.support.basics import ROOT
from tests.support.control_rank import GONE, RankSettings, Steps
from tests.support.launch import launched

SPEEDS = (0.5, 1.0, 1.5, 2.5, 2.0, 1.25, 3.0, 0.75)
"""ms per step."""
PATIENCE = 60.0
STARTING = 150.0
"""Seconds until all ranks run; frameworks take long to import."""


class Job:
    """Ranks that were started."""

    control_file = "stepscope.json"
    """The file or directory that they watch, relative to their directory."""

    def __init__(self, directory: Path, ranks: Sequence[RankSettings]) -> None:
        self.directory = directory
        self.ranks = ranks
        self.steps = Steps(directory / "steps", len(ranks))
        self.processes: dict[int, subprocess.Popen[Any]] = {}
        """By the first rank of each process that was started."""
        self.killed: set[int] = set()
        self.asked = ""
        """Run id of the latest window that was asked for."""

    def write(self, **fields: Any) -> None:
        """Writes the control file as an editor does: a new file in place of the old."""
        draft = self.directory / "draft"
        draft.write_text(json.dumps(fields))
        draft.replace(self.directory / self.control_file)

    def request_window(self, run: str, **fields: Any) -> None:
        """Requests a window by the control file."""
        self.asked = run
        self.write(**{"start_step": "next", "run_id": run, **fields})

    def finished_windows(self, rank: int) -> dict[str, Any]:
        """The windows that a rank has finished, by run id."""
        path = self.directory / f"windows-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        windows = [each for each in map(json.loads, lines) if each["trigger"] != "signal"]
        assert len({each["run"] for each in windows}) == len(windows), f"rank {rank} has recorded something twice"
        for each in windows:
            first, last = each["steps"][0], each["steps"][-1]
            assert each["name"] == f"rank{rank}_start{first}_stop{last}_{each['run']}"
        return {each["run"]: each for each in windows}

    def stages(self, rank: int) -> dict[str, tuple[str, list[int]]]:
        """The stage and the steps of each window of a rank, by run id."""
        return {run: (each["stage"], each["steps"]) for run, each in self.finished_windows(rank).items()}

    def notify(self, what: str, ranks: Sequence[int] = ()) -> None:
        """Lets a stage begin (`go-STAGE`) or end (`end-STAGE`), on these ranks or on all; and waits until it has."""
        ranks = ranks or range(len(self.ranks))
        for rank in ranks:
            (self.directory / f"{what}-{rank}").touch()
        done = f"{'begun' if what.startswith('go-') else 'ended'}-{what.partition('-')[2]}"
        wait(lambda: all((self.directory / f"{done}-{rank}").exists() for rank in ranks), lambda: f"{what}: {ranks}")

    def signalled(self, rank: int) -> list[list[int]]:
        """The steps of the windows that signals asked a rank for."""
        path = self.directory / f"windows-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [each["steps"] for each in map(json.loads, lines) if each["trigger"] == "signal"]

    def all_signalled(self, windows: int) -> bool:
        """True if signals had so many windows recorded on every rank."""
        return all(len(self.signalled(each.rank)) >= windows for each in self.ranks)

    def windows(self, rank: int) -> dict[str, list[int]]:
        """The steps of each."""
        return {run: each["steps"] for run, each in self.finished_windows(rank).items()}

    def steps_of(self, run: str, ranks: Sequence[int] = ()) -> set[tuple[int, ...]]:
        """Waits until these ranks, or all, have a window, and gives its steps: one set of them, if all is well."""
        ranks = ranks or range(len(self.ranks))
        wait(lambda: all(run in self.windows(rank) for rank in ranks), lambda: f"{run} is not on all of {list(ranks)}")
        return {tuple(self.windows(rank)[run]) for rank in ranks}

    def status(self) -> dict[str, Any]:
        """The status file of rank 0."""
        path = self.directory / f"{self.control_file}.status.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def until_window(self, state: str) -> None:
        """Waits until the latest window, on rank 0, is in this state."""
        wanted = self.asked, state
        self.until(
            state, lambda status: wanted in [(each["run_id"], each["state"]) for each in status.get("windows", ())]
        )

    def until_answer(self, text: str) -> None:
        """Waits until rank 0 has answered with this."""
        self.until(text, lambda status: text in status.get("answer", ""))

    def until(self, what: str, condition: Callable[[dict[str, Any]], object]) -> None:
        """Waits for something that rank 0 says."""
        wait(lambda: condition(self.status()), lambda: f"{what}: {self.status()}")

    def kill(self, rank: int, *with_it: int) -> None:
        """SIGKILL for a rank, and for those of its machine; the others go on without them."""
        process = self.processes[rank]
        self.killed.add(rank)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if with_it and children:  # the first process of a machine, which takes all others with it
            os.kill(int(children[0]), signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        for each in (rank, *with_it):
            self.steps.put(each, GONE)


def wait(condition: Callable[[], object], what: Callable[[], str], seconds: float = PATIENCE) -> None:
    """Looks until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


@contextmanager
def job(
    directory: Path,
    ranks: Sequence[RankSettings],
    hosts: Mapping[tuple[int, ...], Sequence[str]] | None = None,
    module: str = "tests.support.control_rank",
    running: Job | None = None,
) -> Generator[Job]:
    """Starts the ranks, and ends them in order.

    Args:
        hosts: by the ranks that are on it, the beginning of the command for each machine; default: one process for each rank,
            here.
        module: that a rank runs.
        running: what is returned, of these ranks; default: a new one.
    """
    running = running or Job(directory, ranks)
    machines = hosts or {(number,): () for number in range(len(ranks))}
    with ExitStack() as stack:
        for numbers, command in machines.items():
            arguments = [msgspec.json.encode(ranks[number]).decode() for number in numbers]
            program = [*command, sys.executable, "-m", module, *arguments]
            running.processes[numbers[0]] = stack.enter_context(launched(program, cwd=ROOT))
        wait(
            lambda: all(each.late or (directory / f"ready-{each.rank}").exists() for each in ranks),
            lambda: "no start",
            STARTING,
        )
        yield running
        (directory / "stop").touch()
        for rank, process in running.processes.items():
            assert process.wait(PATIENCE) == 0 or rank in running.killed, f"rank {rank}"
        running.steps.close()


def rank_settings(directory: Path, count: int = 8, **more: Any) -> list[RankSettings]:
    """Ranks at different speeds; `more` are lists of a value for each."""
    return [
        RankSettings(
            directory=str(directory),
            rank=rank,
            world=count,
            step_ms=SPEEDS[rank],
            **{name: values[rank] for name, values in more.items()},
        )
        for rank in range(count)
    ]
