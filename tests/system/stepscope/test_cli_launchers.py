"""`stepscope run` of a program whose work is done by other processes: it says so, and how these are traced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.programs.child_processes import command_for_ranks
from tests.support import commands
from tests.support.basics import require
from tests.support.launch import launched
from tests.support.messages import check_messages

PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
RANK = "import stepscope\nwith stepscope.span('work'): pass\n"
SPAWNS = """
import multiprocessing
import subprocess
import sys

def work():
    import stepscope
    with stepscope.span("work in a child"):
        pass

if __name__ == "__main__":
    processes = [multiprocessing.get_context(way).Process(target=work) for way in ("spawn", "spawn", "fork")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
"""


def test_ranks_that_a_script_spawns(tmp_path: Path) -> None:
    """They are counted, and the remedy is reported; with STEPSCOPE_JOIN those that import stepscope are in the trace."""
    (tmp_path / "spawns.py").write_text(SPAWNS)
    ended = commands.stepscope("run", "--no-torch", "spawns.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "Children  4 processes" in ended.stderr and "STEPSCOPE_JOIN=1" in ended.stderr
    ended = commands.stepscope("run", "--report", "--no-torch", "spawns.py", cwd=tmp_path, env={"STEPSCOPE_JOIN": "1"})
    assert "Children  1 process " in ended.stderr and "work in a child" in ended.stderr


def test_torchrun(tmp_path: Path) -> None:
    """The form of the command that traces all ranks is reported, and traces both."""
    require("torch.distributed.run")
    (tmp_path / "train.py").write_text(RANK)
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    ended = commands.stepscope("run", "--no-torch", "--quiet", "--out", "launcher", *launcher, "train.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "to trace each: torchrun --no-python ... stepscope run [options] train.py" in ended.stderr
    own = (sys.executable, "-m", "stepscope", "run", "--no-torch", "--quiet", "--out", "ranks", "train.py")
    ended = commands.python(*launcher, "--no-python", *own, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert all(b"work" in (tmp_path / "ranks" / f"rank{rank}" / "trace.json").read_bytes() for rank in range(2))


WAITS = """
import os, pathlib, time, stepscope
with stepscope.span("work"): pass
if os.environ["RANK"] == "1":
    print("waits", flush=True)
    while not pathlib.Path("end").exists(): time.sleep(0.05)
"""


def test_ranks_that_do_not_end(tmp_path: Path) -> None:
    """The first one waits for them a short time, and says which are missing; the others say nothing."""
    (tmp_path / "p.py").write_text(WAITS)
    command = [sys.executable, "-m", "stepscope", "run", "--no-torch", "--out", "run", "p.py"]
    environment = {**os.environ, "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"}
    with launched(command, cwd=tmp_path, env={**environment, "RANK": "1"}, text=True, **PIPES) as other:
        assert other.stdout is not None and other.stderr is not None
        assert other.stdout.readline() == "waits\n"
        ended = commands.python(
            *command[1:], cwd=tmp_path, env={"RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"}
        )
        (tmp_path / "end").touch()
        assert other.wait(60) == 0 and other.stderr.read() == ""
    words = " ".join(ended.stderr.split())
    assert "rank 2: nothing of it is in run; rank 1: not ended 5 s after this one" in words, ended.stderr
    assert "1 rank did not end in order" in words


TRACES_MORE = """
import os, pathlib, stepscope
with stepscope.span("work"): pass
if os.environ["RANK"] == "0":
    with stepscope.trace(output_dir="run/evaluation"):
        with stepscope.span("evaluation"): pass
"""


def test_a_further_trace_below_the_directory_of_the_job(tmp_path: Path) -> None:
    """It is no rank: all are there, though it is newer than they are."""
    (tmp_path / "p.py").write_text(TRACES_MORE)
    command = ("-m", "stepscope", "run", "--no-torch", "--out", "run", "p.py")
    for rank in ("1", "0"):
        environment = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        ended = commands.python(*command, cwd=tmp_path, env=environment)
        assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run" / "evaluation").is_dir()
    assert "Missing" not in ended.stderr and "No answer" not in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    ("program", "rest", "launcher"),
    [
        ("torch.distributed.run", "--nnodes 2 train.py", "torchrun --no-python"),
        ("/usr/bin/torchrun", "", "torchrun --no-python"),
        ("/opt/slurm/srun", "-N 2 python train.py", "srun"),
        ("orterun", "-n 2 python train.py", "orterun"),
        ("accelerate", "launch --cpu train.py", "accelerate launch --no_python"),
        ("accelerate.commands.accelerate_cli", "launch --cpu train.py", "accelerate launch --no_python"),
        ("accelerate", "config", ""),
        ("accelerate.commands.accelerate_cli", "env", ""),
        ("accelerate-launch", "train.py", "accelerate launch --no_python"),
        ("train.py", "torchrun", ""),
    ],
)
def test_commands_for_launchers(program: str, rest: str, launcher: str) -> None:
    """A launcher is known by the name of its program or module, and its command where it has several."""
    command = f"{launcher} ... stepscope run [options] train.py" if launcher else ""
    assert command_for_ranks(program, rest.split()) == command


STARTS = """
import os, stat, subprocess
with open("mpirun", "w") as file:
    file.write("#!/bin/sh\\nexit 0\\n")
os.chmod("mpirun", stat.S_IRWXU)
{start}
"""


@pytest.mark.parametrize(
    ("start", "options"),
    [
        ("subprocess.run(['./mpirun', '-n', '2', 'python', 'train.py'], check=True)", ()),
        ("subprocess.run([b'./mpirun', b'-n', b'2', b'python', b'train.py'], check=True)", ("--quiet",)),
        ("os.system('./mpirun -n 2 python train.py')", ()),
    ],
)
def test_a_script_that_starts_a_launcher(start: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """It recorded nothing itself: the right form of what it started is reported, also if it is to be quiet."""
    (tmp_path / "submit.py").write_text(STARTS.format(start=start))
    ended = commands.stepscope("run", "--no-torch", *options, "-o", "run", "submit.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "to trace each: mpirun ... stepscope run [options] train.py" in " ".join(ended.stderr.split())


def test_a_launcher_that_is_no_script(tmp_path: Path) -> None:
    """Its name is no file: the right form is reported with the error."""
    ended = commands.stepscope("run", "mpirun", "-n", "2", "python", "train.py", cwd=tmp_path)
    assert ended.returncode == 2
    check_messages(ended.stderr.splitlines()[-1], "mpirun ... stepscope run [options] train.py")


def test_ranks_of_which_nobody_asked_for_a_window(tmp_path: Path) -> None:
    """Rank 0 says so, instead of advice on what could be recorded."""
    (tmp_path / "train.py").write_text(RANK)
    environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    ended = commands.stepscope("run", "--no-torch", "--control", "train.py", cwd=tmp_path, env=environment)
    assert ended.returncode == 0
    assert "Nothing was recorded: no window was asked for: stepscope arm" in ended.stderr
