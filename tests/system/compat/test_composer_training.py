"""Composer itself, training on the CPU, with the handler: for its profiler, and as a callback."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.support.basics import ROOT, composer_python
from tests.support.launch import run_to_end


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was found in each of them."""
    directory = tmp_path_factory.mktemp("composer")
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "RANK_ID")}
    command = [str(composer_python()), "-m", "tests.support.composer_trainings", str(directory)]
    done = run_to_end(command, timeout=110, cwd=directory, environment={**kept, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict[str, Any], steps: list[list[int]]) -> None:
    """These steps are recorded, each with its two microbatches and torch's operators in it, and all is accounted for."""
    assert (found["errors"], found["audit"], found["stages"]) == ([], [], ["fit"])
    assert found["steps"] == steps and all(found["complete"])
    every = [number for window in steps for number in window]
    assert found["loss"] == [number for number in every for _ in range(2)]
    assert found["spans"]["micro_step"] == 2 * len(every)
    assert found["linear"] == every


@pytest.mark.checklist("B3")
def test_its_profiler(trainings: dict[str, Any]) -> None:
    """Its schedule is followed in each epoch, its markers are told, and the files of torch's profiler are read."""
    found = trainings["with_profiler"]
    check(found, [[3, 4, 5], [11, 12, 13]])
    # Composer tells of no events of the batch that it saves after.
    assert found["spans"]["event/batch"] == 4 and found["spans"]["event/backward"] == 8
    assert found["counters"] == ["load/cpu"] and found["instants"] == ["noted"]
    assert found["journal"]


@pytest.mark.checklist("B3")
def test_as_a_callback(trainings: dict[str, Any]) -> None:
    """By a schedule of ours, with torch's operators; an evaluation falls into a step."""
    found = trainings["as_callback"]
    assert found["spans"].pop("eval") == 2
    found["linear"] = sorted(set(found["linear"]))
    check(found, [[6, 7], [14, 15]])


def test_a_training_that_goes_on(trainings: dict[str, Any]) -> None:
    """From a checkpoint in an epoch: steps are those of the whole training."""
    check(trainings["resumed"], [[12, 13]])


def test_an_exception(trainings: dict[str, Any]) -> None:
    """It reaches the program, and what was recorded until then is there, marked as incomplete."""
    found = trainings["failing"]
    assert found["raised"] == "the training fails"
    assert (found["errors"], found["audit"]) == ([], [])
    assert (found["steps"], found["complete"]) == ([[1, 2, 3]], [False])


def test_an_operator_has_steps_recorded(trainings: dict[str, Any]) -> None:
    """Those that were asked for, and by default no others."""
    found = trainings["armed"]
    check(found, [[10, 11]])
    assert found["armed"] == ["socket"]


def test_its_schedule_and_ours_are_one(trainings: dict[str, Any]) -> None:
    """For every batch of an epoch, whatever the cycle, the length and where the training was resumed."""
    found = trainings["schedules"]
    assert found["differ"] == [] and found["compared"] > 3000
