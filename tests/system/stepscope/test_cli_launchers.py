"""`stepscope run` of a program whose work is done by other processes: it says so, and how these are traced."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from stepscope.cli.child_processes import command_for_ranks
from tests.support import commands
from tests.support.basics import require

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
    """They are counted, and what to do is said; with STEPSCOPE_JOIN those that import stepscope are in the trace."""
    (tmp_path / "spawns.py").write_text(SPAWNS)
    ended = commands.stepscope("run", "--no-torch", "spawns.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "Children 4 processes" in ended.stderr and "STEPSCOPE_JOIN=1" in ended.stderr
    ended = commands.stepscope("run", "--report", "--no-torch", "spawns.py", cwd=tmp_path, env={"STEPSCOPE_JOIN": "1"})
    assert "Children 1 process " in ended.stderr and "work in a child" in ended.stderr


def test_torchrun(tmp_path: Path) -> None:
    """The command that is printed traces both ranks."""
    require("torch.distributed.run")
    (tmp_path / "train.py").write_text(RANK)
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", "--lr", "3")
    ended = commands.stepscope("run", "--no-torch", "--quiet", "--out", "launcher", *launcher, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    command = next(line for line in ended.stderr.splitlines() if line.startswith("  torchrun "))
    wanted = "torchrun --no-python --nproc-per-node 2 stepscope run --no-torch --quiet --out launcher train.py --lr 3"
    assert command.strip() == wanted
    words = shlex.split(wanted.replace("--out launcher", "--out ranks"))
    at = words.index("stepscope")
    ranks = [*words[1:at], sys.executable, "-m", *words[at:]]
    ended = commands.python("-m", "torch.distributed.run", *ranks, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert all(b"work" in (tmp_path / "ranks" / f"rank{rank}" / "trace.json").read_bytes() for rank in range(2))


@pytest.mark.parametrize(
    ("program", "rest", "command"),
    [
        (
            "torch.distributed.run",
            "--nnodes 2 -m pkg.train a",
            "torchrun --no-python --nnodes 2 stepscope run -q -m pkg.train a",
        ),
        ("/usr/bin/torchrun", "", "torchrun --no-python stepscope run -q train.py"),
        ("accelerate", "launch --cpu -m x", "accelerate launch --no_python --cpu stepscope run -q -m x"),
        ("accelerate", "config", ""),
        ("train.py", "torchrun", ""),
    ],
)
def test_commands_for_launchers(program: str, rest: str, command: str) -> None:
    """By what a launcher's arguments look like."""
    assert command_for_ranks(["-q"], program, rest.split()) == command
