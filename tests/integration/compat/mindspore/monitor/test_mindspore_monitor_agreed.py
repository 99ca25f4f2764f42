"""`DynamicProfilerMonitor` of several ranks in one process: who records, and what the status file says."""

from __future__ import annotations

import json
import logging
import sys
from types import ModuleType
from typing import Any

import pytest

from stepscope.mindspore import DynamicProfilerMonitor
from tests.support import mindspore_output as output
from tests.support.messages import check_messages
from tests.support.monitors import Job, wait


def test_chosen_ranks(job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One that is not among them records nothing, and that is no error."""
    ranks: list[DynamicProfilerMonitor] = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        ranks.append(job.monitor())
    job.change(start_step=2, stop_step=2, ranks="0,2")
    for monitor in ranks:
        job.callbacks(monitor, 3)
    assert sorted(job.windows()) == ["rank0_start2_stop2", "rank2_start2_stop2"]
    assert not [record for record in caplog.records if record.levelno == logging.ERROR]


def test_a_rank_of_nobody_knows_how_many(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes by its own steps, and says so; not where the number is known."""
    monkeypatch.setenv("MS_NODE_ID", "1")
    assert job.monitor().rank == 1
    check_messages(caplog.records, "rank 1", "RANK_SIZE")
    caplog.clear()
    monkeypatch.setenv("MS_WORKER_NUM", "2")
    job.monitor()
    assert "nobody says" not in caplog.text


@pytest.mark.parametrize("agree", [None, False])
def test_several_ranks_of_a_job(job: Job, monkeypatch: pytest.MonkeyPatch, agree: bool | None) -> None:
    """They follow one file, and write next to each other: each by itself where nobody knows how many there are, or where
    they are not to agree."""
    if agree is not None:
        monkeypatch.setenv("WORLD_SIZE", "3")
    ranks: list[DynamicProfilerMonitor] = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        ranks.append(job.monitor(agree=agree is None))
    job.change(start_step=2, stop_step=2)
    for rank, monitor in enumerate(ranks):
        monkeypatch.setenv("RANK", str(rank))
        job.callbacks(monitor, 3)
    assert sorted(job.windows()) == ["rank0_start2_stop2", "rank1_start2_stop2", "rank2_start2_stop2"]


@pytest.mark.checklist("A28", "F3")
@pytest.mark.parametrize("callback", [True, False])
def test_ranks_that_are_asked_for_the_first_step(
    job: Job, monkeypatch: pytest.MonkeyPatch, callback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Callbacks of MindSpore are called when it begins, so there is time to agree before; otherwise it has begun already."""
    framework: Any = ModuleType("mindspore.train")
    framework.Callback = type("Callback", (), {})
    if callback:
        monkeypatch.setitem(sys.modules, "mindspore.train", framework)
    monkeypatch.setenv("WORLD_SIZE", "2")
    job.write(start_step=1, stop_step=2)
    ranks: list[DynamicProfilerMonitor] = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        ranks.append(job.monitor())
    answer = "recording steps 1-2" if callback else "refused: start_step 1 is past, or too near: rank"
    status = job.config.with_name(f"{job.config.name}.status.json")
    wait(lambda: json.loads(status.read_text()).get("answer", "").startswith(answer))
    for monitor in ranks:
        job.callbacks(monitor, 4)
    expected = ["rank0_start1_stop2", "rank1_start1_stop2"] if callback else []
    assert sorted(job.windows()) == expected
    job.change(start_step=1, stop_step=2, run_id="")
    job.change(start_step=-1, stop_step=-1)
    job.change(start_step=1, stop_step=2)
    again = "another run_id records it again" if callback else "is past, or too near"
    wait(lambda: again in json.loads(status.read_text()).get("answer", ""))
    assert sorted(job.windows()) == expected
    assert callback or "is past, or too near" in caplog.text


@pytest.mark.checklist("A33", "F6", "F10")
def test_monitors_that_follow_each_other(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes with those of the other ranks that came as far; what one before has recorded is not recorded again."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks: list[DynamicProfilerMonitor] = []
    status = job.config.with_name(f"{job.config.name}.status.json")
    for number in range(3):
        for rank in range(2):  # the first of them is in the next training already while the second is in this one
            if number:
                ranks[rank].close()
                job.monitors.remove(ranks[rank])
            monkeypatch.setenv("RANK", str(rank))
            ranks[rank : rank + 1] = [job.monitor()]
        job.change(start_step=3, stop_step=4, run_id=f"run{number}")
        wait(lambda: f"run{number}" == json.loads(status.read_text()).get("run_id"))  # noqa: B023
        wait(lambda: json.loads(status.read_text())["answer"].startswith("recording steps"))
        for monitor in ranks:
            job.callbacks(monitor, 8)
    found: dict[str, list[list[int]]] = {}
    for directory in output.windows_below(job.output):
        about = json.loads((directory / "profiler_metadata.json").read_text())["dynamic_profiler"]
        found.setdefault(about["run_id"], []).append(output.steps_of(directory))
    assert sorted(found) == ["run0", "run1", "run2"]
    assert all(len(steps) == 2 and steps[0] == steps[1] and len(steps[0]) == 2 for steps in found.values()), found
