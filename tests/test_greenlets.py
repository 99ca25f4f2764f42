"""Greenlets have open spans and rows of their own; where they replaced the threads, a profiler refuses to start."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stepscope.runtime import greenlets, tasks
from stepscope.runtime._core import span
from stepscope.runtime.events import Flag, Kind
from tests.launch import run_to_end
from tests.recording import check_self_times, recording
from tests.support import ROOT, missing, require

PROGRAM = ROOT / "tests" / "field" / "greenlet_service.py"


def installed(library: str) -> None:
    """Skips where the library is not there; it is not imported here, as it changes the process."""
    if find_spec(library) is None:
        missing(f"the module {library}", "`make test` installs it.")


def serve(directory: Path, library: str, order: str, **patching: bool) -> tuple[dict[str, Any] | None, str]:
    """Runs the service; what it printed, if it came to its end, and what it said on standard error."""
    installed(library)
    command = [sys.executable, "-W", "ignore", str(PROGRAM), str(directory), library, order, json.dumps(patching)]
    result = run_to_end(command, timeout=60, cwd=ROOT)
    return json.loads(result.stdout) if result.returncode == 0 else None, result.stderr


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


@pytest.mark.parametrize("order", ["before", "imported", "started"])
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_patched_without_threads(library: str, order: str, tmp_path: Path) -> None:
    """All is recorded and written, each request on a row of its own; the report says how many greenlets there were."""
    said, errors = serve(tmp_path, library, order, thread=False)
    assert said is not None, errors
    assert (said["requests"], said["parts"], said["slices"]) == (6, 6, True) and said["rows"] >= 3
    (note,) = said["diagnostics"]
    assert note.startswith("6 greenlets recorded") and "Error" not in errors


@pytest.mark.parametrize("order", ["before", "imported"])
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_patched_threads_are_refused(library: str, order: str, tmp_path: Path) -> None:
    """At once, with the library's name and what to do."""
    said, errors = serve(tmp_path, library, order)
    assert said is None
    last = errors.strip().splitlines()[-1]
    assert f"ProfilerStateError: start() of profiler 'stepscope': {library} has replaced the threads" in last
    assert "thread=False" in last and "stepscope.join()" in last


def test_threads_that_are_patched_under_an_open_profiler(tmp_path: Path) -> None:
    """It closes by its deadline, and says who is to blame."""
    _, errors = serve(tmp_path, "gevent", "started")
    assert "gevent has replaced the threads of the standard library" in errors and "stepscope recover" in errors


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
