"""Greenlets have open spans and rows of their own; the runtime keeps its threads where a library replaces those of Python."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stepscope.runtime._core import span
from stepscope.runtime.annotations import tasks
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.threads import greenlets
from tests.support.basics import ROOT, missing, require
from tests.support.launch import launched, run_to_end
from tests.support.recording import check_self_times, recording

PROGRAM = ROOT / "tests" / "support" / "programs" / "greenlet_service.py"
SCRIPT = ROOT / "tests" / "support" / "programs" / "patches_itself.py"


def installed(library: str) -> None:
    """Skips where the library is not there; it is not imported here, as it changes the process."""
    if find_spec(library) is None:
        missing(f"the module {library}", "`make test` installs it.")


def serve(
    directory: Path, library: str, order: str, *parts: str, **patching: object
) -> tuple[dict[str, Any] | None, subprocess.CompletedProcess[str]]:
    """Runs the service; what it printed, if it came to its end, and how it ended."""
    installed(library)
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(PROGRAM),
        str(directory),
        library,
        order,
        json.dumps(patching),
        *parts,
    ]
    result = run_to_end(command, timeout=60, cwd=ROOT, server=None)  # it patches what the server has imported
    return json.loads(result.stdout) if result.returncode == 0 else None, result


def check_served(report: dict[str, Any] | None, errors: str) -> None:
    """All was recorded and written, each request on a row of its own, and the report says how many greenlets there were."""
    assert report is not None, errors
    assert (report["requests"], report["parts"], report["slices"]) == (18, 18, True) and report["rows"] >= 3
    assert report["windows"] >= 3 and report["copied"]
    assert "Error" not in errors and "Traceback" not in errors and not report["audit"]
    assert sum(" greenlets recorded" in note for note in report["diagnostics"]) == 1
    assert not any("has replaced the threads" in note for note in report["diagnostics"])
    assert "dropped   nothing\n" in report["report"] and "accounts  balanced\n" in report["report"]


def test_each_greenlet_has_its_own_open_spans() -> None:
    """Two take turns inside of their spans: parents are those of the same greenlet, and nothing is crossed."""
    greenlet: Any = require("greenlet")

    def work(name: str) -> None:
        with span(f"outer {name}"):
            greenlet.getcurrent().parent.switch()
            with span(f"inner {name}"):
                greenlet.getcurrent().parent.switch()

    before = greenlets.recorded
    with recording() as log, span("main"):
        both = [greenlet.greenlet(work), greenlet.greenlet(work)]
        for one, name in zip(both, "ab", strict=True):
            one.switch(name)
        with span("between"):
            pass
        while not all(one.dead for one in both):
            for one in both:
                one.switch()
    for name in "ab":
        outer, inner = log.span(f"outer {name}"), log.span(f"inner {name}")
        assert inner.parent == outer.id and inner.track == outer.track and outer.parent == 0
    assert log.span("between").parent == log.span("main").id
    assert len({log.span(name).track for name in ("outer a", "outer b", "main")}) == 3
    assert not any(row.flags & Flag.ASYNC for row in log.spans)
    check_self_times(log.spans)
    assert greenlets.recorded == before + 2


async def test_a_greenlet_that_waits_for_a_task_is_part_of_it() -> None:
    """As those of SQLAlchemy, which share the context of the task that runs them: the spans are on the task's row."""
    greenlet: Any = require("greenlet")

    async def run_in_greenlet() -> None:
        def body() -> None:
            with span("query"):
                greenlet.getcurrent().parent.switch(asyncio.sleep(0.001))

        inner = greenlet.greenlet(body)
        inner.gr_context = greenlet.getcurrent().gr_context
        with span("task"):
            waiting = inner.switch()
            while not inner.dead:
                waiting = inner.switch(await waiting)

    tasks.watch()
    try:
        with recording() as log:
            await asyncio.gather(run_in_greenlet(), run_in_greenlet())
    finally:
        tasks.release()
    rows = {row.id: row for row in log.spans}
    queries = [row for row in log.spans if row.name == "query"]
    assert len(queries) == 2 and len({row.track for row in queries}) == 2
    assert all(rows[row.parent].name == "task" and rows[row.parent].track == row.track for row in queries)
    check_self_times(log.of(Kind.SPAN))


LIBRARIES = pytest.mark.parametrize("library", ["gevent", "eventlet"])
SERVED: list[tuple[str, tuple[str, ...], dict[str, object]]] = [
    ("before", (), {"thread": False}),
    ("imported", (), {}),
    ("started", (), {}),
    ("window", ("asyncio", "restart"), {}),  # loops that are made then are of sockets and selectors
    ("started", (), {"only": "thread"}),
]
"""When a program is patched, what it does besides, and what is patched."""


@LIBRARIES
@pytest.mark.parametrize(("order", "parts", "patching"), SERVED)
def test_a_patched_service(
    library: str, order: str, parts: tuple[str, ...], patching: dict[str, object], tmp_path: Path
) -> None:
    """The runtime's threads stay what they were, unless they were patched before it was imported: all is recorded and written."""
    if "only" in patching and library != "gevent":
        pytest.skip("gevent alone has a function for it")
    report, result = serve(tmp_path, library, order, *parts, **patching)
    check_served(report, result.stderr)


@LIBRARIES
def test_a_patched_program_that_exits_with_a_profiler_open(library: str, tmp_path: Path) -> None:
    """It is closed at the exit, and the status is the program's."""
    _, result = serve(tmp_path, library, "started", "open")
    assert result.returncode == 3 and "Error" not in result.stderr and "stepscope recover" not in result.stderr
    events = json.loads((tmp_path / "trace.json").read_text())
    assert sum(event["name"].startswith("request") for event in events if event["ph"] == "X") == 18


def test_an_exporter_whose_threads_are_greenlets(tmp_path: Path) -> None:
    """It hangs until the deadline. The others have everything, and the report says what was lost."""
    served, result = serve(tmp_path, "gevent", "started", "starts_threads")
    assert served is not None and served["requests"] == 18, result.stderr
    report = served["report"]
    assert re.search(r"dropped   \d+ at starts_threads \(closed\)", report)
    assert "dropped   nothing" not in report and "accounts  balanced\n" not in report


@LIBRARIES
def test_threads_that_were_patched_before_the_import_are_refused(library: str, tmp_path: Path) -> None:
    """At once, with the library's name and what to do."""
    report, result = serve(tmp_path, library, "before")
    assert report is None
    last = result.stderr.strip().splitlines()[-1]
    assert f"ProfilerStateError: start() of profiler 'stepscope': {library} has replaced the threads" in last
    assert "thread=False" in last and "import stepscope first" in last and "stepscope.join()" in last


def run_command(directory: Path, *program: str) -> list[str]:
    """`stepscope run` of a program, with the files in a directory."""
    stepscope = [sys.executable, "-W", "ignore", "-m", "stepscope"]
    return [*stepscope, "run", "--report", "--no-torch", "--out", str(directory), *program]


def check_traced(directory: Path, errors: str) -> None:
    """The trace has everything that the script recorded."""
    assert "Traceback" not in errors.replace('Traceback (most recent call last):\n  File "' + str(SCRIPT), ""), errors
    events = json.loads((directory / "trace.json").read_text())
    assert [event["name"] for event in events if event["ph"] == "X"].count("request") == 3


@pytest.mark.parametrize(("library", "before"), [("gevent", ()), ("eventlet", ()), ("gevent", ("-m", "gevent.monkey"))])
def test_a_script_that_patches_itself_under_stepscope_run(
    library: str, before: tuple[str, ...], tmp_path: Path
) -> None:
    """Very common: it is written in the ordinary time, and ends with the program's own status."""
    installed(library)
    result = run_to_end(run_command(tmp_path, *before, str(SCRIPT), library, "exit"), timeout=60)
    assert result.returncode == 3, result.stderr
    check_traced(tmp_path, result.stderr)
    text = result.stdout + result.stderr
    assert "dropped   nothing\n" in text and "accounts  balanced\n" in text and "has replaced the threads" not in text


@pytest.mark.parametrize(("library", "sent"), [("gevent", signal.SIGINT), ("eventlet", signal.SIGTERM)])
def test_a_signal_ends_a_script_that_patches_itself(library: str, sent: signal.Signals, tmp_path: Path) -> None:
    """In whatever greenlet its handler is called."""
    installed(library)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with launched(run_command(tmp_path, str(SCRIPT), library, "wait"), **streams) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if sent == signal.SIGINT else -sent), errors
    check_traced(tmp_path, errors)


def test_a_patched_process_that_joined(tmp_path: Path) -> None:
    """It records into the session of its parent, which has its threads."""
    installed("gevent")
    child = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import gevent, stepscope\n"
        "stepscope.join('patched')\n"
        "def request():\n"
        "    with stepscope.span('request'): gevent.sleep(0.01)\n"
        "gevent.joinall([gevent.spawn(request) for _ in range(3)])\n"
    )
    program = (
        "import subprocess, sys, stepscope\n"
        "memory = stepscope.exporters.MemoryExporter()\n"
        f"with stepscope.trace(output_dir={str(tmp_path)!r}, exporters=[memory]) as profiler:\n"
        f"    subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
        "    profiler.step()\n"
        "print(memory.names().count('request'), profiler.audit())\n"
    )
    result = run_to_end([sys.executable, "-W", "ignore", "-c", program], timeout=60, cwd=ROOT)
    assert result.stdout == "3 ()\n", result.stderr
