"""Processes that are started as root and then change their user, as servers do: they are recorded, or a message says why not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import run_to_end
from tests.support.messages import check_messages

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")

WORKER = """
import json, os, sys, threading, time
import stepscope as sc

def record(name, count):
    for _ in range(count):
        with sc.span(name):
            pass

def work():
    assert sc.join("worker")
    record("before", 10)
    os.setuid(65534)
    for _ in range(20):
        record("after", 1000)
        time.sleep(0.05)
    thread = threading.Thread(target=record, args=("thread", 100))
    thread.start()
    thread.join()
    record("after", 1)

options = sc.Options(close_timeout=30, drain_interval=0.02)
with sc.trace(output_dir=sys.argv[1], options=options) as profiler:
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.3)
    profiler.step()
    profiler.flush()
worker, = profiler.statistics().recorder.workers
print(json.dumps({"drained": worker.drained, "dropped": worker.dropped, "without_ring": worker.without_ring,
                  "produced": worker.produced, "report": str(profiler.report()), "audit": list(profiler.audit())}))
"""


def test_a_worker_that_changes_its_user(tmp_path: Path) -> None:
    """The thread that goes on is recorded whole; a thread that begins later is not, which the report says."""
    done = run_to_end([sys.executable, "-c", WORKER, str(tmp_path / "run")])
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["drained"] == 20_011
    assert answer["dropped"] == answer["without_ring"] == 100 and answer["produced"] == 20_111
    assert "100 of them by threads without a ring" in answer["report"]
    assert answer["audit"] == []


SERVER = """
import json, os, sys, threading, time
import stepscope as sc
from stepscope.runtime.recording import recorder

def record(name, count):
    for _ in range(count):
        with sc.span(name):
            pass

options = sc.Options(close_timeout=30, drain_interval=0.02, session_dir=sys.argv[2])
profiler = sc.trace(output_dir=sys.argv[1], options=options)
with profiler:
    record("before", 10)
    profiler.flush()  # exporters open their files in the background
    os.setuid(65534)
    record("after", 100_000)
    thread = threading.Thread(target=record, args=("thread", 100))
    thread.start()
    thread.join()
    profiler.step()
    profiler.flush()
journal = profiler.statistics().pipeline.exporters[0].ledger
print(json.dumps({"exported": journal.exported, "dropped": journal.dropped, "audit": list(profiler.audit()),
                  "report": str(profiler.report())}))
"""


def test_a_process_that_changes_its_user(tmp_path: Path) -> None:
    """Later events are in its journal, from new threads as well; files that it cannot clean up are reported."""
    (tmp_path / "session").mkdir()
    done = run_to_end([sys.executable, "-c", SERVER, str(tmp_path / "run"), str(tmp_path / "session")])
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["exported"] >= 100_110 and not answer["dropped"] and answer["audit"] == []
    (left,) = (tmp_path / "session").iterdir()
    check_messages(done.stderr, left, "Permission denied")
    assert "could not be closed" not in done.stderr
