"""`DynamicProfilerMonitor` of several ranks in one process: who records, and what the status file says."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stepscope.mindspore import DynamicProfilerMonitor
from tests.monitors import Job, jobs, wait


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A job whose ranks the test chooses."""
    with jobs(tmp_path, monkeypatch) as made:
        yield made


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


@pytest.mark.parametrize("agree", [None, False])
def test_several_ranks_of_a_job(job: Job, monkeypatch: pytest.MonkeyPatch, agree: bool | None) -> None:
    """They follow one file, and write beside each other: each by itself where nobody knows how many there are, or where
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
    """Callbacks of MindSpore are told when it begins, so there is time to agree before; otherwise it has begun already."""
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
    wait(lambda: "another run_id asks for it again" in json.loads(status.read_text()).get("answer", ""))
    assert bool(expected) or "is past, or too near" in caplog.text
