"""Workers of a fork server, which is started once and has the environment of that moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing, sys
import stepscope as sc

def work(number):
    assert sc.join(f"worker {number}")
    for _ in range(20):
        with sc.span("fetch"):
            pass

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    for run in range(3):
        memory = sc.exporters.MemoryExporter()
        with sc.trace(output_dir=f"{sys.argv[1]}/{run}", exporters=[memory]):
            workers = [context.Process(target=work, args=(number,)) for number in range(2)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
                assert worker.exitcode == 0
        print(memory.names().count("fetch"))
"""


def test_workers_join_each_trace_of_a_process(tmp_path: Path) -> None:
    """A later trace is found by what the fork server knows of the first."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["40", "40", "40"], done.stderr


INHERITED = """
import os, subprocess, sys
import stepscope as sc

place, taken = sys.argv[1], sys.argv[2] == "taken"
CHILD = (
    "import sys, stepscope as sc; print('ready', flush=True); sys.stdin.readline(); "
    "joined = sc.join(); sc.instant('child'); print(joined)"
)

def trace(run, memory):
    return sc.trace(output_dir=f"{place}/{run}", exporters=[memory], options=sc.Options(session_dir=f"{place}/sessions"))

with trace(0, sc.exporters.MemoryExporter()):
    environment = dict(os.environ)
first = environment["STEPSCOPE_SESSION"]
assert not os.path.exists(first)
child = subprocess.Popen([sys.executable, "-c", CHILD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "ready\\n"
if taken:
    os.mkdir(first)
memory = sc.exporters.MemoryExporter()
with trace(1, memory):
    assert (os.environ["STEPSCOPE_SESSION"] == first) is not taken
    assert os.stat(os.environ["STEPSCOPE_SESSION"]).st_mode & 0o777 == 0o700
    said, _ = child.communicate("go\\n")
print(said.strip(), memory.names().count("child"), sorted(os.listdir(f"{place}/sessions")) == [os.path.basename(first)] * taken)
"""


@pytest.mark.parametrize(("name", "expected"), [("free", "True 1 True"), ("taken", "False 0 True")])
def test_a_program_with_the_environment_of_an_earlier_trace(name: str, expected: str, tmp_path: Path) -> None:
    """It starts between two traces and joins the second. Where another has taken the name it joins nothing, and says so."""
    (tmp_path / "sessions").mkdir()
    command = [sys.executable, "-c", INHERITED, str(tmp_path), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == expected, done.stderr
    assert ("cannot join the session" in done.stderr) is (name == "taken")
