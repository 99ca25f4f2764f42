"""The directory that the ranks of one launch share, and no others: torchrun and Slurm, without `output_dir`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.runtime.lifecycle.output_directory import Output
from stepscope.runtime.session.job import JOB_VARIABLES, job_from_environment
from stepscope.runtime.session.launch import launch_name
from tests.support.basics import ROOT
from tests.support.collectors import spans

KNOWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK",
         "PMI_RANK", "RANK_ID", "STEPSCOPE_JOB", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID",
         "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT")  # fmt: skip
RANK = """
import os
import stepscope as sc
for run in range(2):
    with sc.trace():
        with sc.span(f"run {run} of rank {os.environ['RANK']}"):
            pass
"""
LAUNCHER = """
import os, subprocess, sys
shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "localhost",
          "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": sys.argv[1]}
ranks = [subprocess.Popen([sys.executable, "rank.py"], env={**os.environ, **shared, "RANK": rank}) for rank in "01"]
sys.exit(max(rank.wait() for rank in ranks))
"""
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job7",
            "MASTER_ADDR": "a", "MASTER_PORT": "1"}  # fmt: skip
SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in, and an environment that no launcher made."""
    for name in KNOWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank.py").write_text(RANK)
    return tmp_path


def test_the_job_of_other_batch_systems(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the job, after what the user or the launcher says, and no launch: there may be several in it."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert job_from_environment() == ""
    monkeypatch.setenv("PBS_JOBID", "12.cluster")
    assert job_from_environment() == "12.cluster"
    assert named(monkeypatch, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}) == ""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert job_from_environment() == "12.cluster"
    monkeypatch.setenv("STEPSCOPE_JOB", "mine")
    assert job_from_environment() == "mine"


def named(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], **changed: str) -> str:
    """The name of the launch for a rank with these variables."""
    with monkeypatch.context() as context:
        for name, value in {**variables, **changed}.items():
            context.setenv(name, value)
        return launch_name()


def runs(place: Path) -> list[Path]:
    """The directories of runs."""
    return sorted((place / "stepscope_runs").iterdir())


def test_ranks_of_one_machine_share_a_directory_and_those_of_others_have_their_own(place: Path) -> None:
    """Two ranks, each with two runs one after the other, launched twice under the same names, once as a restart."""
    for again in "01":
        subprocess.run([sys.executable, "-c", LAUNCHER, again], check=True, timeout=100)
    found = runs(place)
    assert len(found) == 4 and sum("restart1" in path.name for path in found) == 2
    for path in found:
        assert sorted(rank.name for rank in path.iterdir()) == ["rank0", "rank1"]
        assert [sorted(file.name for file in rank.iterdir()) for rank in path.iterdir()] == [["journal"]] * 2
        run = 1 if path.name.endswith("-2") else 0
        for rank in "01":
            assert spans(path / f"rank{rank}" / "journal")[f"run {run} of rank {rank}"] == 1


@pytest.mark.parametrize("launcher", [TORCHRUN, SRUN])
def test_several_machines(launcher: dict[str, str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a launch have one name, with the job's in it; another launch has another."""
    rank = "RANK" if "RANK" in launcher else "SLURM_PROCID"
    name = named(monkeypatch, launcher)
    assert name.endswith("job7" if launcher is TORCHRUN else "4711")
    assert named(monkeypatch, launcher, **{rank: "3"}, TORCHELASTIC_RESTART_COUNT="2") == name
    job = "TORCHELASTIC_RUN_ID" if launcher is TORCHRUN else "SLURM_JOB_ID"
    step = "MASTER_PORT" if launcher is TORCHRUN else "SLURM_STEP_ID"
    for changed in ({job: "8"}, {step: "2"}, {"SLURM_RESTART_COUNT": "1"}):
        assert named(monkeypatch, launcher, **changed) not in ("", name)


@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        ({}, {}),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}),
        (TORCHRUN, {"TORCHELASTIC_RUN_ID": "none"}),
        (TORCHRUN, {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}),
        (SRUN, {"SLURM_STEP_ID": "4294967291"}),
        (SRUN, {"SLURM_STEP_ID": ""}),
        (SRUN, {"SLURM_NTASKS": "1"}),
    ],
)
def test_a_launch_without_a_safe_name_has_a_directory_for_each_process(
    variables: dict[str, str], changed: dict[str, str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is alone, or nothing distinguishes this launch from the next one: each has a directory of its own."""
    assert named(monkeypatch, variables, **changed) == ""
    for name, value in {**variables, **changed}.items():
        monkeypatch.setenv(name, value)
    assert Output.choose(None, "x", None).path.name.endswith(f"-{os.getpid()}")


def test_a_job_that_begins_again_under_its_name_has_the_next_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written into what a rank left there before."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    left = place / "stepscope_runs" / f"x-{launch_name()}" / "fit" / "rank1"
    left.mkdir(parents=True)
    assert Output.choose(None, "x", 1).path == Path("stepscope_runs") / f"x-{launch_name()}-2" / "rank1"
    assert Output.choose(None, "x", 1).path.parent.name.endswith("-3")
