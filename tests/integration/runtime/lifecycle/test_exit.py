"""However a process ends, what it recorded is written, and it ends in time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.collecting import wait_until
from tests.support.killed_programs import names, windows
from tests.support.launch import STRICT, Server, run_to_end
from tests.support.messages import check_messages


def run(
    script: str, directory: Path, *, code: int = 0, server: Server | None = "plain"
) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, with warnings as errors."""
    command = [sys.executable, *STRICT, "-c", script]
    done = run_to_end(command, timeout=60, cwd=directory, server=server)
    assert done.returncode == code, done.stderr
    return done


TRACE = """
import stepscope as sc, sys, os, threading
profiler = sc.trace(output_dir="run", exporters=[sc.ChromeTraceExporter("run/trace.json")])
profiler.start()
with sc.span("work"):
    pass
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError('mine')", 1),
        ("threading.Thread(target=lambda: None).start()", 0),
    ],
)
def test_a_trace_left_open_is_closed_at_exit(ending: str, code: int, tmp_path: Path) -> None:
    """Nobody called stop(): the window is delivered all the same, and the files are whole."""
    run(TRACE + ending, tmp_path, code=code)
    assert names(tmp_path / "run" / "journal")["work"] == 1
    assert len(windows(tmp_path / "run" / "journal")) == 1
    events = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert "work" in [event.get("name") for event in events]
    assert not (tmp_path / "run" / "session").exists()


TRAINED = """
import stepscope as sc, sys, threading, time
ended = threading.Event()
profiler = sc.trace(output_dir="run", exporters=[sc.ChromeTraceExporter("run/trace.json")])
profiler.start()
def train():
    threading.main_thread().join()
    for _ in range(20):
        with sc.span("work"):
            pass
        profiler.step()
"""


def test_a_thread_that_still_trains_is_recorded_to_its_end(tmp_path: Path) -> None:
    """The program's main thread has returned, and its exit waits for the other one: so does the profiler."""
    done = run(TRAINED + "threading.Thread(target=train).start()", tmp_path)
    assert names(tmp_path / "run" / "journal")["work"] == 20
    assert len(windows(tmp_path / "run" / "journal")) == 1
    assert not done.stderr
    events = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert [event.get("name") for event in events].count("work") == 20
    assert not (tmp_path / "run" / "session").exists()


def test_the_exit_waits_for_no_thread_of_a_pool(tmp_path: Path) -> None:
    """Those may be idle, and end only after the profiler has closed."""
    script = TRAINED + "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor().submit(int).result()"
    run(script, tmp_path)
    assert len(windows(tmp_path / "run" / "journal")) == 1


def test_a_profiler_that_the_main_thread_steps_is_closed_by_it(tmp_path: Path) -> None:
    """Its backends may be bound to that thread. Another thread may wait for the main one to be over, and go on."""
    script = (
        TRAINED
        + """
def look():
    threading.main_thread().join()
    print(profiler.statistics().pipeline is not None, end=" ")
    sys.stdout.write(str(profiler.flush()))
profiler.step()
threading.Thread(target=look).start()
"""
    )
    done = run(script, tmp_path)
    assert done.stdout == "True False"
    check_messages(done.stderr, "Thread-1 (look)")


def test_an_interrupted_wait_for_a_thread_still_delivers(tmp_path: Path) -> None:
    """Ctrl-C while the interpreter waits for a thread that never ends."""
    script = (
        TRAINED
        + """
import os, signal
def work():
    with sc.span("before"):
        pass
    threading.main_thread().join()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)  # one that comes just before the interpreter begins to wait is not noticed by it, as without us
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)
threading.Thread(target=work).start()
"""
    )
    run(script, tmp_path)
    assert "before" in names(tmp_path / "run" / "journal")


def test_without_uvloop_the_loop_is_asyncios(tmp_path: Path) -> None:
    """The faster loop is used where it can be imported, and not needed."""
    script = """
import sys
if len(sys.argv) > 1:
    sys.modules["uvloop"] = None
import stepscope as sc
with sc.trace(output_dir="run"):
    with sc.span("work"):
        pass
    from stepscope.runtime.loop import drain_loop
    print(type(drain_loop._shared.result()._loop).__bases__[1].__module__.partition(".")[0])
"""
    assert run(script, tmp_path).stdout == "uvloop\n"
    assert run(script.replace("len(sys.argv) > 1", "True"), tmp_path).stdout == "asyncio\n"
    assert "work" in names(tmp_path / "run" / "journal")


HANGING = """
import threading
import stepscope as sc
from stepscope.backends.simulated.scripted import ScriptedBackend


class Hanging(ScriptedBackend):
    def transition(self, before, after, at):
        if not after.records:
            threading.Event().wait()
        super().transition(before, after, at)


profilers = []
for number in range(6):
    backends = [Hanging(thread_bound=True)] if number == 3 else []
    exporters = [sc.ChromeTraceExporter(f"run{number}/trace.json")]
    profiler = sc.trace(output_dir=f"run{number}", name=f"run{number}", exporters=exporters, backends=backends)
    profiler.start()
    profilers.append(profiler)
with sc.span("work"):
    pass
"""


def test_a_bound_backend_that_hangs_keeps_no_other_profiler_from_its_end(tmp_path: Path) -> None:
    """Nobody can end what hangs on the thread that exits; the files of the others are whole all the same."""

    def ended(number: int) -> bool:
        try:
            json.loads((tmp_path / f"run{number}" / "trace.json").read_text())
        except (OSError, ValueError):
            return False
        return True

    process = subprocess.Popen([sys.executable, "-c", HANGING], cwd=tmp_path)
    try:
        others = [number for number in range(6) if number != 3]
        wait_until(lambda: all(map(ended, others)))
        for number in others:
            journal = tmp_path / f"run{number}" / "journal"
            wait_until(lambda: len(windows(journal)) == 1)  # noqa: B023
            assert "work" in names(journal)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("before", [TRACE + "profiler.close()", "import stepscope"], ids=["traced before", "first"])
def test_a_profiler_that_starts_when_all_is_over(before: str, tmp_path: Path) -> None:
    """By a function that atexit calls after ours: it is refused, and no file is left."""
    script = (
        "import atexit\n"
        "def late():\n"
        "    import stepscope as sc\n"
        "    try:\n"
        "        sc.trace(output_dir='late', options=sc.Options(session_dir='.')).start()\n"
        "    except RuntimeError as error:\n"
        "        print(error)\n"
        "atexit.register(late)\n" + before
    )
    done = run(script, tmp_path, server=None)  # the server has used them
    # Python itself refuses where nothing had used threads before.
    refusals = "start() of profiler 'stepscope': the process is ending", "can't register atexit after shutdown"
    assert done.stdout.strip().startswith(refusals) and not done.stderr
    assert not (tmp_path / "late").exists() and not list(tmp_path.glob("stepscope-*"))
