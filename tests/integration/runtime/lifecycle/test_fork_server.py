"""Workers of a fork server, which is started once and has the environment of that moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.messages import check_messages


def run(directory: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that writes into a directory."""
    path = directory / "program.py"
    path.write_text(program)
    command = [sys.executable, str(path), str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


INHERITED = """
import os, subprocess, sys
import stepscope as sc

place, name_in_use = sys.argv[1], sys.argv[2] == "taken"
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
if name_in_use:
    os.mkdir(first)
memory = sc.exporters.MemoryExporter()
with trace(1, memory):
    assert (os.environ["STEPSCOPE_SESSION"] == first) is not name_in_use
    assert os.stat(os.environ["STEPSCOPE_SESSION"]).st_mode & 0o777 == 0o700
    printed, _ = child.communicate("go\\n")
print(printed.strip(), memory.names().count("child"), sorted(os.listdir(f"{place}/sessions")) == [os.path.basename(first)] * name_in_use)
"""


@pytest.mark.parametrize(("name", "expected"), [("free", "True 1 True"), ("taken", "False 0 True")])
def test_a_program_with_the_environment_of_an_earlier_trace(name: str, expected: str, tmp_path: Path) -> None:
    """It starts between two traces and joins the second. Where another has the name it joins nothing, and says so."""
    (tmp_path / "sessions").mkdir()
    done = run(tmp_path, INHERITED, name)
    assert done.stdout.strip() == expected, done.stderr
    assert ("cannot join the session" in done.stderr) is (name == "taken")


MOVED = """
import multiprocessing, os, sys
import stepscope as sc

def work(number):
    joined = sc.join(f"worker {number}")
    for _ in range(20):
        with sc.span("fetch"):
            pass
    sys.exit(0 if joined else 3)

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    for number, place in enumerate(sys.argv[2:]):
        memory = sc.exporters.MemoryExporter()
        options = sc.Options(session_dir=place or None)
        with sc.trace(output_dir=f"{sys.argv[1]}/run{number}", exporters=[memory], options=options):
            worker = context.Process(target=work, args=(number,))
            worker.start()
            worker.join()
        print(worker.exitcode, memory.names().count("fetch"))
"""


@pytest.mark.parametrize(
    ("places", "expected"),
    [(["", "", ""], ["0 20"] * 3), (["a", ""], ["0 20"] * 2), (["a", "b"], ["0 20", "3 0"])],
    ids=["stays", "moves to the usual place", "moves elsewhere"],
)
def test_workers_find_a_later_session(places: list[str], expected: list[str], tmp_path: Path) -> None:
    """By what the fork server knows of the first, or as that of the process above. Where no worker can know where it is, `join`
    returns False, and the log names the option that has to stay the same."""
    for place in filter(None, places):
        (tmp_path / place).mkdir()
    done = run(tmp_path, MOVED, *(str(tmp_path / place) if place else "" for place in places))
    assert done.stdout.splitlines() == expected, done.stderr
    if expected[-1] == "3 0":
        check_messages(done.stderr, "stepscope.join", "Options.session_dir")
    else:
        assert "cannot join" not in done.stderr


def test_a_process_that_joins_as_the_session_is_removed(tmp_path: Path) -> None:
    """It joins after the owner looked for processes: the session stays for it, and the next trace has its events."""
    done = run(
        tmp_path,
        """
import os, subprocess, sys
import stepscope as sc
from stepscope.runtime.recording.joined_processes import Workers

place = sys.argv[1]
CHILD = "import sys, stepscope as sc; print(sc.join(), flush=True); sys.stdin.readline(); sc.instant('child')"
any_running, children = Workers.any_running, []

def look_then_let_join(workers):
    running = any_running(workers)
    if not children:
        children.append(subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert children[0].stdout.readline() == "True\\n"
    return running

Workers.any_running = look_then_let_join
with sc.trace(output_dir=f"{place}/0"):
    first = os.environ["STEPSCOPE_SESSION"]
memory = sc.exporters.MemoryExporter()
with sc.trace(output_dir=f"{place}/1", exporters=[memory]):
    assert os.environ["STEPSCOPE_SESSION"] == first
    children[0].communicate("go\\n")
print(memory.names().count("child"), os.path.exists(first))
""",
    )
    assert done.stdout.split() == ["1", "False"], done.stderr


def test_a_process_that_fails_to_join_removes_no_session(tmp_path: Path) -> None:
    """Its owner has removed the session meanwhile, and made the directory again: it is empty for a moment."""
    done = run(
        tmp_path,
        """
import os, shutil, sys
from pathlib import Path
import stepscope as sc
from stepscope.runtime.lifecycle import join
from stepscope.runtime.session.directory import write_identity

def remove_and_make_again(part):
    shutil.rmtree(part.parent)
    part.parent.mkdir(0o700)
    write_identity(part)

with sc.trace(output_dir=f"{sys.argv[1]}/0"):
    directory = Path(os.environ["STEPSCOPE_SESSION"])
    join.write_identity = remove_and_make_again
    if os.fork() == 0:
        print(sc.join(), directory.exists(), flush=True)
        os._exit(0)
    os.wait()
""",
    )
    assert done.stdout.split() == ["False", "True"], done.stderr
