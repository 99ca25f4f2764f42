"""Programs that are ended by signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from stepscope.runtime.journal.reader import JournalReader
from tests.support.killed_programs import names, windows
from tests.support.launch import STRICT, launched

START = """
import asyncio, os, signal, sys, threading, time
import stepscope as sc
def term(who=0): os.kill(who or os.getpid(), signal.SIGTERM)
profiler = sc.trace(output_dir="run", name="asked to stop")
"""
WORK = """
profiler.start()
with sc.span("work"):
    pass
"""
BOUND = """
class Bound:
    name, thread_bound = "bound", True
    def open(self, sink):
        self.sink = sink
    def transition(self, before, after, at):
        changing(after)
        self.sink.watermark(at)
    async def aclose(self):
        self.sink.watermark((1 << 63) - 1)
    def report(self):
        return sc.backends.BackendReport()
"""
"""A backend that changes on the thread of the program, which says in `changing` what happens then."""
DEAF = """
import ctypes, subprocess
def deaf(library):
    lock = library(None).pthread_mutex_lock
    mutex = ctypes.create_string_buffer(64)
    subprocess.Popen(["sh", "-c", "sleep 0.5; kill $PPID"])
    lock(mutex), lock(mutex)  # as a collective waits for a peer that is gone
"""
"""Terminated while the main thread is in native code, to stay there."""
HOLDER = """
import ctypes
def holder():
    action = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).sigaction(int(signal.SIGTERM), None, action)
    return action.raw[:8]
def until(condition):
    while not condition():
        time.sleep(0.01)
DEFAULT = bytes(8)
"""
"""The function that the system calls at SIGTERM, whatever Python says."""


def run(script: str, place: Path, *, code: int, number: int | None = None) -> str:
    """Runs a script; with `number`, that signal is sent when it has printed a line. Returns what it printed."""
    command = [sys.executable, *STRICT, "-c", START + script]
    with launched(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        if number is not None:
            text = process.stdout.readline()
            process.send_signal(number)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == code, f"{process.returncode}: {errors}"
    return f"{text}{out}"


def ends(
    script: str, place: Path, *, code: int = -signal.SIGTERM, number: int | None = None, printed: str | None = None
) -> None:
    """Runs a script like `run`, and fails unless its work is delivered, and it has printed `printed`."""
    found = run(script, place, code=code, number=number)
    assert printed is None or found == printed
    assert delivered(place)


def delivered(place: Path) -> bool:
    """True if the journal is whole and has the work, in a window that was closed."""
    journal = place / "run" / "journal"
    with JournalReader(journal) as reader:
        list(reader)
        assert reader.end is not None
    return names(journal)["work"] == 1 and len(windows(journal)) == 1 and not (place / "run" / "session").exists()
