"""Profilers of one process that follow each other, as the stages of a training do: the ranks agree anew in each."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.basics import require
from tests.support.control_jobs import Job, job, rank_settings

RANKS = 3


def check(running: Job, run: str, stage: str, ranks: tuple[int, ...] = (0, 1, 2)) -> int:
    """Waits for a window that all ranks have of the same stage and steps; returns its last step."""
    (steps,) = running.steps_of(run, ranks)
    assert {running.stages(rank)[run][0] for rank in ranks} == {stage}
    return steps[-1]


@pytest.mark.checklist("A33", "F6", "F10")
@pytest.mark.parametrize("first", [0, 2])
def test_each_stage_agrees_for_itself(tmp_path: Path, first: int) -> None:
    """One rank begins the next stage while the others are in the one before: nothing is recorded again or by it alone."""
    stages = ("fit", "validate", "fit2")
    others = [rank for rank in range(RANKS) if rank != first]
    expected = {"fit"}
    with job(tmp_path, rank_settings(tmp_path, RANKS, stages=[stages] * RANKS)) as running:
        running.ask("fit", steps=2)
        last = check(running, "fit", "fit")
        for before, stage in zip(stages, stages[1:], strict=False):
            running.tell(f"end-{before}", [first])
            running.tell(f"go-{stage}", [first])
            running.tell(f"end-{before}", others)
            running.tell(f"go-{stage}", others)
            asked = [stage]
            running.ask(stage, steps=2)
            while (at := check(running, asked[-1], stage)) <= last:  # past the steps that were recorded before
                asked.append(f"{stage}-{at}")
                running.ask(asked[-1], steps=2)
            last = max(at, last)
            expected.update(asked)
    for rank in range(RANKS):
        assert set(running.windows(rank)) == expected


@pytest.mark.checklist("F6", "F10")
def test_what_is_asked_for_between_stages(tmp_path: Path) -> None:
    """The next stage records it, on all ranks, however late one of them comes; a signal is for nobody, and harms nobody."""
    settings = rank_settings(tmp_path, RANKS, stages=[("fit", "validate")] * RANKS, signal=[True] * RANKS)
    with job(tmp_path, settings) as running:
        running.ask("never", start_step=1_000_000, steps=2)
        running.until_window("queued")
        running.tell("end-fit")
        running.ask("between", steps=2)
        for process in running.processes.values():
            process.send_signal(signal.SIGUSR2)
        running.tell("go-validate", [1, 2])
        running.tell("go-validate", [0])
        check(running, "between", "validate")
        running.ask("after", steps=2)
        check(running, "after", "validate")
    for rank in range(RANKS):
        assert running.signalled(rank) == [] and set(running.windows(rank)) == {"between", "after"}


@pytest.mark.checklist("F6", "F10")
def test_what_is_asked_of_one_stage_waits_for_it(tmp_path: Path) -> None:
    """The file names it: those before refuse, with the reason, and all ranks record it when it has begun."""
    settings = rank_settings(tmp_path, RANKS, stages=[("fit", "validate")] * RANKS)
    with job(tmp_path, settings) as running:
        running.ask("later", steps=2, stage="validate")
        running.until_answer("it is for the stage 'validate', and this is 'fit'")
        running.ask("now", steps=2, stage="fit")
        check(running, "now", "fit")
        running.ask("later", steps=2, stage="validate")
        running.until_answer("it is for the stage 'validate', and this is 'fit'")
        running.tell("end-fit", [1])
        running.tell("go-validate", [1])
        running.tell("end-fit", [0, 2])
        running.tell("go-validate", [0, 2])
        check(running, "later", "validate")
    for rank in range(RANKS):
        assert set(running.windows(rank)) == {"now", "later"}


@pytest.mark.checklist("A34", "F6", "F10")
def test_what_a_stage_did_not_come_to_is_asked_for_in_the_next(tmp_path: Path) -> None:
    """It waits there for the same step, once on each rank, and can be aborted."""
    settings = rank_settings(tmp_path, RANKS, stages=[("fit", "validate")] * RANKS)
    with job(tmp_path, settings) as running:
        running.ask("far", start_step=3000, steps=2)
        running.until_window("queued")
        running.tell("end-fit", [1])
        running.tell("go-validate", [1])
        running.tell("end-fit", [0, 2])
        running.tell("go-validate", [0, 2])
        assert check(running, "far", "validate") == 3001
        running.ask("long", steps=1_000_000)
        running.until_window("running")
        running.write(command="abort")
        check(running, "long", "validate")


@pytest.mark.checklist("F10")
@pytest.mark.parametrize("behind", [True, False])
def test_a_rank_has_one_stage_more(tmp_path: Path, behind: bool) -> None:
    """Its own is over before the others go on, or they have begun what follows."""
    stages = [("fit", "own", "validate"), ("fit", "validate"), ("fit", "validate")]
    others = [1, 2]
    with job(tmp_path, rank_settings(tmp_path, RANKS, stages=stages, patience=[4.0] * RANKS)) as running:
        running.ask("fit", steps=2)
        check(running, "fit", "fit")
        running.tell("end-fit")
        running.tell("go-own", [0])
        if behind:
            running.tell("go-validate", others)
        running.tell("end-own", [0])
        running.tell("go-validate", [0] if behind else ())
        running.ask("all", steps=2)
        check(running, "all", "validate")
        running.ask("again", steps=2)
        check(running, "again", "validate")


@pytest.mark.checklist("B3", "F6", "F10")
def test_the_stages_of_a_callback(tmp_path: Path) -> None:
    """Lightning's own, two trainings among them, one rank always later than the other; each request names its stage."""
    require("lightning")
    stages = ("fit", "validate", "test", "fit2")
    settings = rank_settings(tmp_path, 2, stages=[stages] * 2)
    expected: set[str] = set()
    with job(tmp_path, settings, module="tests.support.lightning_rank") as running:
        for number, stage in enumerate(stages):
            if number:
                running.tell(f"end-{stages[number - 1]}", [number % 2])
                running.tell(f"go-{stage}", [number % 2])
                running.tell(f"end-{stages[number - 1]}", [1 - number % 2])
                running.tell(f"go-{stage}", [1 - number % 2])
            running.ask(f"of-{stage}", steps=2, stage=stage.rstrip("2"))
            check(running, f"of-{stage}", stage, (0, 1))
            expected.add(f"of-{stage}")
    assert [set(running.windows(rank)) for rank in range(2)] == [expected] * 2
