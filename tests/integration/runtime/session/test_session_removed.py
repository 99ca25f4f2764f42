"""A process that has closed its profilers leaves no session behind, however it ends; and it may record again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stepscope.runtime.events.record import Kind
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.recovery.sweep import sweep
from tests.support.killed_programs import names
from tests.support.launch import run_to_end

START = """
import atexit, multiprocessing, os, signal, subprocess, sys, threading, time
import stepscope as sc
place = sys.argv[1]
def trace(name, *exporters, **more):
    options = sc.Options(session_dir=f"{place}/sessions", **more)
    return sc.trace(output_dir=f"{place}/{name}", exporters=exporters, options=options)
def left():
    return os.listdir(f"{place}/sessions")
"""
CLOSED = """
before = dict(os.environ)
with trace("run") as profiler:
    assert os.environ["STEPSCOPE_SESSION"].startswith(place) and len(left()) == 1
    with sc.span("work"):
        pass
assert not left() and dict(os.environ) == before
"""


def run(place: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    (place / "sessions").mkdir(exist_ok=True)
    command = [sys.executable, "-c", START + textwrap.dedent(program), str(place)]
    return run_to_end(command, timeout=60)


def sessions(place: Path) -> list[str]:
    """The session directories that are left."""
    return os.listdir(place / "sessions")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(3)", 3),
        ("os.abort()", -signal.SIGABRT),
    ],
    ids=["SIGTERM", "SIGKILL", "_exit", "abort"],
)
def test_however_the_process_ends(end: str, code: int, tmp_path: Path) -> None:
    """After an orderly close the interpreter has nothing left to clean up."""
    done = run(tmp_path, CLOSED + end)
    assert done.returncode == code, done.stderr
    assert not sessions(tmp_path)
    assert names(tmp_path / "run" / "journal")["work"] == 1


AGAIN = """
go, recorded = threading.Semaphore(0), threading.Semaphore(0)
def helper():  # has a ring from before, and an open span
    with sc.span("helper"):
        for turn in range(3):
            go.acquire()
            sc.instant(f"helper {turn}")
            recorded.release()
thread = threading.Thread(target=helper, name="helper", daemon=True)
def turn():
    go.release(), recorded.acquire()
for number in range(3):
    profiler = trace(f"run{number}", drain_interval=1000.0)
    profiler.start()
    if number == 0:
        thread.start()
    for _ in range(1000):
        with sc.span(f"work {number}", number=number):
            pass
    turn()
    if number < 2:
        profiler.close()
        assert not left()
with sc.span("open"), sc.span("open too"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_recording_again_after_a_close_is_safe_from_a_kill(tmp_path: Path) -> None:
    """In rings that threads have from before, in new files: nothing of the third run is lost."""
    done = run(tmp_path, AGAIN)
    assert done.returncode == -signal.SIGKILL, done.stderr
    for number in range(2):
        found = names(tmp_path / f"run{number}" / "journal")
        assert found[f"work {number}"] == 1000
    recovery = recover(tmp_path / "run2")
    found = names(tmp_path / "run2" / "journal")
    assert found["work 2"] == 1000 and not found["work 1"], recovery
    # Spans that were open when the first profiler closed are recorded in the new files as well.
    assert found["helper"] == found["open"] == found["open too"] == 1


def test_recording_again_loses_nothing(tmp_path: Path) -> None:
    """Many times, with threads that come and go, and with threads that stay."""
    done = run(
        tmp_path,
        """
        def work():
            for number in range(50):
                with sc.span("thread", number=number):
                    pass
        asked, done = threading.Semaphore(0), threading.Semaphore(0)
        def stays():
            while asked.acquire():
                work(), done.release()
        threading.Thread(target=stays, daemon=True).start()
        for number in range(10):
            memory = sc.exporters.MemoryExporter()
            with trace(number, memory) as profiler:
                thread = threading.Thread(target=work)
                thread.start(), asked.release(), work()
                thread.join(), done.acquire()
            assert memory.names(kind=sc.exporters.Kind.SPAN).count("thread") == 150
            assert not profiler.audit() and not profiler.diagnostics(), profiler.diagnostics()
            assert not left()
        """,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_has_joined_and_lives(method: str, tmp_path: Path) -> None:
    """The session stays for it: it records for the next profiler, too. Once both have ended nobody needs it, and it goes after a day."""
    program = tmp_path / "program.py"
    program.write_text(
        START
        + textwrap.dedent(
            f"""
            def child(pipe):
                assert sc.join()
                while (text := pipe.recv()):
                    sc.instant(text)
                    pipe.send(1)
                pipe.recv()
            if __name__ == "__main__":
                here, there = multiprocessing.Pipe()
                process = multiprocessing.get_context("{method}").Process(target=child, args=(there,), daemon=True)
                for number in range(2):
                    memory = sc.exporters.MemoryExporter()
                    with trace(number, memory):
                        number or process.start()
                        here.send(f"child {{number}}"), here.recv()
                    assert memory.names(kind=sc.exporters.Kind.INSTANT) == [f"child {{number}}"]
                    assert len(left()) == 1
                process.kill(), process.join()
                os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    (tmp_path / "sessions").mkdir()
    done = run_to_end([sys.executable, program, str(tmp_path)], timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (session,) = (tmp_path / "sessions").iterdir()
    for path in (*session.iterdir(), session):
        os.utime(path, (0, 0))
    sweep(tmp_path / "sessions")  # as the next process does that starts
    assert not sessions(tmp_path)


def test_joined_processes_that_have_ended_keep_nothing(tmp_path: Path) -> None:
    """Nor does one that was forked and has not joined."""
    done = run(
        tmp_path,
        """
        def child():
            sc.join(), sc.instant("child")
        context = multiprocessing.get_context("fork")
        memory = sc.exporters.MemoryExporter()
        with trace("run", memory):
            process = context.Process(target=child)
            process.start(), process.join()
            other = context.Process(target=time.sleep, args=(60,), daemon=True)
            other.start()
        assert memory.names(kind=sc.exporters.Kind.INSTANT) == ["child"] and not left()
        assert other.is_alive()
        other.kill()
        child = os.fork()
        if child == 0:
            with trace("forked"):
                sc.instant("forked")
            os._exit(len(left()))
        assert os.waitpid(child, 0)[1] == 0
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not sessions(tmp_path)
    assert names(tmp_path / "forked" / "journal", kind=Kind.INSTANT)["forked"] == 1


def test_a_process_that_leaves_while_the_session_is_removed(tmp_path: Path) -> None:
    """Its files vanish after they were listed. The session is removed all the same, and its name can be used again."""
    done = run(
        tmp_path,
        """
        list_directory, names = os.listdir, []
        def list_and_leave(path="."):
            found = list_directory(path)
            if isinstance(path, int) and "1-1" in found and os.path.isdir(part):
                os.rmdir(part)
            return found
        for number in range(2):
            with trace(f"run{number}"):
                names.append(os.environ["STEPSCOPE_SESSION"])
                part = f"{names[0]}/1-1"
                if number == 0:
                    os.mkdir(part, 0o700)
                    os.listdir = list_and_leave
            assert not os.path.exists(part) and not list_directory(f"{place}/sessions")
        assert names[0] == names[1]
        """,
    )
    assert done.returncode == 0, done.stderr
