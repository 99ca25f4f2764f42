"""A directory with several runs: those of one job are explained together, of others the newest is, and it is said which."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import stepscope as sc
from tests.support.commands import stepscope


def record(place: Path, name: str, steps: int = 25) -> Path:
    """A run whose steps have one span."""
    with sc.trace(output_dir=place) as profiler:
        for _ in range(steps):
            with sc.span(name):
                time.sleep(0.001)
            profiler.step()
    return place


def ranks(place: Path, monkeypatch: pytest.MonkeyPatch, steps: int = 25) -> Path:
    """Two ranks of one job, in the directory that they share."""
    for rank in "01":
        with monkeypatch.context() as context:
            context.setenv("RANK", rank)
            context.setenv("WORLD_SIZE", "2")
            record(place, f"rank {rank}", steps)
    return place


def test_of_unrelated_runs_the_newest_is_read(tmp_path: Path) -> None:
    """The others are not mixed into it; each can be named."""
    record(tmp_path / "runs" / "b", "first", 30)
    record(tmp_path / "runs" / "a", "second")
    recording = sc.load(tmp_path / "runs")
    assert recording.path == tmp_path / "runs" / "a" and [len(rank.steps) for rank in recording.ranks] == [25]
    assert recording.notes == [
        f"{tmp_path / 'runs'} has 2 runs, of which this is the newest: name another one to read it"
    ]
    assert [len(rank.steps) for rank in sc.load(tmp_path / "runs" / "b").ranks] == [30]
    done = stepscope("explain", "runs", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "reading the newest run in runs: runs/a\n"
    assert done.stdout.startswith("runs/a   25 steps")


def test_ranks_of_one_job_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other runs as well, of which one has the same ranks."""
    ranks(tmp_path / "runs" / "first", monkeypatch, 30)
    record(tmp_path / "runs" / "alone", "one")
    place = ranks(tmp_path / "runs" / "second", monkeypatch)
    for asked in (place, tmp_path / "runs"):
        recording = sc.load(asked)
        assert recording.path == place and [rank.rank for rank in recording.ranks] == [0, 1]
        assert [len(rank.steps) for rank in recording.ranks] == [25, 25]
    assert not sc.load(place).notes and "3 runs" in sc.load(tmp_path / "runs").notes[0]


def test_without_a_path(tmp_path: Path) -> None:
    """It is the newest run of the working directory; where there is none, that is said."""
    done = stepscope("explain", cwd=tmp_path)
    assert done.returncode == 2 and "there is no ./stepscope_runs" in done.stderr
    record(tmp_path / "stepscope_runs" / "one", "work", 30)
    record(tmp_path / "stepscope_runs" / "two", "work")
    done = stepscope("explain", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "reading the newest run in stepscope_runs: stepscope_runs/two\n"
    assert done.stdout.startswith("stepscope_runs/two   25 steps")


def test_windows_of_a_flight_recorder_are_one_run_and_nothing_to_remark(tmp_path: Path) -> None:
    """They lie in files of their own, and do not overlap."""
    with sc.trace(output_dir=tmp_path / "run", keep_last=sc.FlightRecorder(steps=20, triggers=())) as profiler:
        for step in range(90):
            with sc.span("work"):
                time.sleep(0.001)
            profiler.step()
            if step in (30, 80):
                assert profiler.save(f"step {step}")
                profiler.flush()
    assert len(profiler.saved()) == 2
    recording = sc.load(tmp_path / "run")
    (rank,) = recording.ranks
    assert len(rank.windows) == 2 and not recording.notes
