"""Kineto mode with real torch, from the wrong threads and twice at once: refused with the reason, never a crash."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.basics import ROOT
from tests.support.launch import run_to_end
from tests.support.operators import environment

pytestmark = pytest.mark.needs("torch")

PREAMBLE = f"""
import json, logging, sys, threading, time
sys.path.append({str(ROOT)!r})
logging.disable()
import stepscope as sc
import torch
def add():
    torch.add(torch.ones(2), 1)
def new(name, **more):
    memory, backend = sc.exporters.MemoryExporter(), sc.TorchBackend("kineto")
    options = sc.Options(journal=False, close_timeout=3.0, linger=0.5)
    more = {{"schedule": None, **more}}
    profiler = sc.trace(backends=[backend], exporters=[memory], output_dir="/tmp/unused-" + name, options=options, **more)
    return profiler, memory, backend
def elsewhere(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
def print_reports(*profilers):
    result = []
    for profiler, memory, backend in profilers:
        try:
            profiler.raise_errors()
            errors = ""
        except ExceptionGroup as group:
            errors = "; ".join(map(str, group.exceptions))
        result.append([memory.names().count("aten::add"), " ".join(backend.report().notes), errors])
    print(json.dumps(result))
"""


def run(program: str, directory: Path) -> Any:
    """Runs a program in a process of its own, as torch may crash, and returns the values that it printed."""
    source = PREAMBLE.replace("/tmp/unused-", f"{directory}/") + textwrap.dedent(program)
    ended = run_to_end([sys.executable, "-c", source], environment=environment(), server="torch")
    assert ended.returncode == 0, (ended.returncode, ended.stderr)
    return json.loads(ended.stdout)


def test_two_at_once(tmp_path: Path) -> None:
    """Those of one thread share what is recorded; the one on another thread says why it has nothing."""
    first, second, third = run(
        """
        a, b, c = new("a"), new("b"), new("c")
        a[0].start(); b[0].start()
        def other():
            c[0].start(); add(); c[0].stop()
        elsewhere(other)
        add()
        for p in (b, a, c):
            p[0].close()
        print_reports(a, b, c)
        """,
        tmp_path,
    )
    for sharing in (first, second):
        assert sharing == [1, "", ""]
    assert third[0] == 0
    assert "another profiler of this process records with kineto on another thread" in third[1]


def test_start_and_stop_on_a_servers_thread(tmp_path: Path) -> None:
    """The obvious design, which crashes torch: here the thread that steps does both."""
    ((count, notes, errors),) = run(
        """
        a = new("a", start=False)
        stop = threading.Event()
        def serve():
            a[0].start()
            while a[1].names().count("x") == 0 and not stop.is_set():
                time.sleep(0.01)
                if a[0].step_num > 200:
                    break
            a[0].stop()
            stop.set()
        a[0].step()
        server = threading.Thread(target=serve)
        server.start()
        while not stop.is_set():
            add()
            a[0].step()
            time.sleep(0.001)
        server.join()
        a[0].close()
        print_reports(a)
        """,
        tmp_path,
    )
    assert count > 100
    assert (notes, errors) == ("", "")


@pytest.mark.parametrize("again", ["kineto", "nothing"])
def test_the_thread_that_started_has_ended(again: str, tmp_path: Path) -> None:
    """Its recording is lost, which is reported; the process does not crash, and the next profiler records."""
    results = run(
        f"""
        a = new("a")
        elsewhere(lambda: (a[0].start(), add()))
        a[0].stop()
        a[0].close()
        others = []
        if {again == "kineto"}:
            b = new("b")
            b[0].start(); add(); b[0].close()
            others.append(b)
        print_reports(a, *others)
        """,
        tmp_path,
    )
    assert "has ended" in results[0][2]
    if again == "kineto":
        assert results[1] == [1, "", ""]


def test_nothing_of_a_recording_stays_where_there_was_no_time_for_it(tmp_path: Path) -> None:
    """A window that cannot be converted by the deadline of closing: torch's file of it is gone when the process has ended."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (report,) = run(
        f"""
        import tempfile
        tempfile.tempdir = {str(scratch)!r}
        backend, options = sc.TorchBackend("kineto"), sc.Options(close_timeout=0.3)
        profiler = sc.trace(backends=[backend], output_dir="/tmp/unused-large", options=options)
        with profiler:
            ones = torch.ones(2)
            for _ in range(60_000):
                ones.add_(1)
        print(json.dumps([str(profiler.report())]))
        """,
        tmp_path,
    )
    assert (
        "not all of torch's recording had been converted when the profiler was closed; raise Options.close_timeout"
        in report
    )
    assert list(scratch.iterdir()) == []
