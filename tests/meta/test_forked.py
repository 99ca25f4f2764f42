"""Programs that start as forks do what they would do in a Python of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked import Forked
from tests.support.launch import launched, run_to_end

FILE = """
import atexit, sys, threading, time
atexit.register(print, "exit")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print(__file__, __name__, sys.argv, sys.orig_argv, sys.path[0])
def fails(): raise ValueError("in a file")
fails()
"""
LOOKS = """
import os, signal, sys, threading, warnings
print(sys.argv, sys.orig_argv, sys.path, sys.warnoptions, os.getcwd(), sorted(os.environ.items()))
print(sys.stdin, sys.stdout, sys.stderr, sys.stdout.buffer, sys.flags)
print(sorted(globals()), __builtins__, __spec__, __loader__, [kind for kind, *_ in warnings.filters][-5:])
print(threading.enumerate() == [threading.main_thread()], threading.main_thread().native_id == os.getpid(), signal.pthread_sigmask(0, []), os.getsid(0) == os.getpid())
print([(number, signal.getsignal(number)) for number in signal.valid_signals()])
print([stream.line_buffering for stream in (sys.stdin, sys.stdout, sys.stderr)], sorted(os.listdir("/proc/self/fd")))
print(len(os.listdir("/proc/self/task")), threading.stack_size())
"""
PROGRAMS = {
    "looks": ["-c", LOOKS, "a", "b"],
    "safe path": ["-P", "-c", "import sys; print(sys.path)"],
    "warned": ["-W", "error", "-c", LOOKS + "warnings.warn('x')"],
    "exception": ["-c", "def f(): 1 / 0\nf()"],
    "syntax": ["-c", "def f(:"],
    "status": ["-c", "import sys; sys.exit(3)"],
    "text": ["-c", "import sys; sys.exit('wrong')"],
    "interrupted": ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"],
    "killed": ["-c", "import os; os.kill(os.getpid(), 9)"],
    "module": ["-m", "json.tool", "--help"],
    "no module": ["-m", "json.nothing"],
    "file": ["./program.py", "a"],
}


@pytest.mark.parametrize("arguments", PROGRAMS.values(), ids=list(PROGRAMS))
def test_a_fork_is_as_a_new_python(arguments: list[str], tmp_path: Path) -> None:
    """Status, output and tracebacks; command line, environment, descriptors, threads, signals and filters of warnings."""
    (tmp_path / "program.py").write_text(FILE)
    environment = {**os.environ, "PYTHONPATH": "/nowhere:/else", "NAME": "välue"}
    command = [sys.executable, *arguments]
    forked, fresh = (
        run_to_end(command, cwd=tmp_path, environment=environment, server=server) for server in ("plain", None)
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_random_numbers_differ() -> None:
    """Python's and NumPy's."""
    program = "import random, numpy.random; print(random.random(), numpy.random.rand())"
    one, two = (run_to_end([sys.executable, "-c", program], check=True).stdout.split() for _ in range(2))
    assert one[0] != two[0] and one[1] != two[1]


@pytest.mark.needs("torch")
def test_operators_can_arrive_live() -> None:
    """Of torch that the server has imported, as stepscope was imported before."""
    program = """
import stepscope as sc, torch
memory = sc.exporters.MemoryExporter()
with sc.trace(backends=[sc.TorchBackend("stream")], exporters=[memory], options=sc.Options(journal=False)) as profiler:
    torch.ones(2).tanh()
print(*memory.names())
"""
    done = run_to_end([sys.executable, "-c", program], server="torch", check=True)
    assert "aten::tanh" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-I", "-c", "pass"],
        [sys.executable, "nothing.py"],
        [sys.executable],
        ["sh", "-c", "true"],
    ],
)
def test_commands_that_a_fork_cannot_run_start_anew(command: list[str]) -> None:
    """Those that a fork could not run."""
    with launched(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert not isinstance(process, Forked)
        process.wait(60)
