"""Processes join, record and end while the process that takes their events has no descriptor left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepscope.runtime.journal.reader import JournalReader
from tests.support.basics import ROOT
from tests.support.crashes import names
from tests.support.launch import run_to_end

PROGRAM = """
import os, resource, sys, time
if sys.argv[3] == "asyncio":
    sys.modules["uvloop"] = None
import stepscope as sc
before = sys.argv[2] == "before"
profiler = sc.trace(output_dir=sys.argv[1], options=sc.Options(drain_interval=0.02))
profiler.start()
with sc.span("first"):
    pass
assert profiler.flush(60)  # the journal is open by then: what is missing below is descriptors for processes that join

def worker(number, held):
    child = os.fork()
    if not child:
        sc.join()
        for _ in range(100):
            with sc.span(f"of worker {number}"):
                pass
        os.read(held[0], 1)
        for _ in range(100):
            with sc.span(f"later of worker {number}"):
                pass
        os._exit(0)
    return child

held = os.pipe()
children = [worker(number, held) for number in range(3)] if before else []
if before:
    while len(profiler.statistics().recorder.workers) < 3 or min(w.drained for w in profiler.statistics().recorder.workers) < 100:
        with sc.span("own"):
            time.sleep(0.01)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
reserve = os.open("/dev/null", os.O_RDONLY)
top = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
taken = []
resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
try:
    while True:
        taken.append(os.dup(reserve))
except OSError:
    pass
try:
    if not before:  # a child has descriptors of its own
        def joining(number):
            child = os.fork()
            if not child:
                for each in taken:
                    os.close(each)
                sc.join()
                for _ in range(100):
                    with sc.span(f"of worker {number}"):
                        pass
                os._exit(0)
            return child
        children = [joining(number) for number in range(3)]
    else:
        os.write(held[1], b"123")
    for child in children:
        os.waitpid(child, 0)
    for _ in range(30):
        with sc.span("own"):
            time.sleep(0.01)
finally:
    for each in taken:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
profiler.close()
assert not profiler.audit(), profiler.audit()
assert all(w.waiting == 0 == w.dropped for w in profiler.statistics().recorder.workers), profiler.statistics().recorder.workers
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("joined", ["before", "meanwhile"])
def test_nothing_is_lost(joined: str, loop: str, tmp_path: Path) -> None:
    """What cannot be read for want of descriptors is read when there are some again, also of those that have ended."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), joined, loop]
    done = run_to_end(command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = names(tmp_path / "journal")
    for number in range(3):
        assert found[f"of worker {number}"] == 100
        assert found[f"later of worker {number}"] == (100 if joined == "before" else 0)
    assert found["first"] == 1
    assert found["own"] >= 30
    with JournalReader(tmp_path / "journal") as reader:
        assert list(reader) and not reader.damage
