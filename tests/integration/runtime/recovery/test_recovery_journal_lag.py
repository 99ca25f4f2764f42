"""Journals that are behind when a process is killed: the rings have it, or the recovery says how much may be missing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from stepscope.runtime.recovery.recover import Recovery
from tests.support.disks import small_disk
from tests.support.killed_programs import Crash, names, windows

SLOW = """
import asyncio
class Slow(sc.exporters.JournalExporter):
    async def export(self, batch):
        await asyncio.sleep(SECONDS)
        await super().export(batch)
profiler = sc.trace(output_dir=sys.argv[1], exporters=[Slow()], options=sc.Options(session_dir=sys.argv[2],
                    queue_bytes=QUEUE, drain_interval=0.005, ring_slots=2048))
profiler.start()
made = 0
"""
LOOP = """
for step in range(40):
    for number in range(1000):
        with sc.span("x", text="some text"):
            pass
    made += 1000
    profiler.step()
    time.sleep(0.02)
"""
DIE = """
open(sys.argv[1] + "/made", "w").write(str(made))
die()
"""


def program(loop: str, *, seconds: float, queue: int) -> str:
    """A run whose journal takes so many seconds for a batch, with queues of so many bytes."""
    return "import time\n" + SLOW.replace("SECONDS", str(seconds)).replace("QUEUE", str(queue)) + loop + DIE


def at_most(recovery: Recovery) -> int:
    """Events that the journal may lack, as recovery says."""
    matches = [re.match(r"at most ([\d,]+) event", what) for what in recovery.missing]
    return sum(int(match[1].replace(",", "")) for match in matches if match)


def check(crash: Crash) -> Recovery:
    """Recovers, and compares with what was made: found + counted <= made <= found + counted + at most missing."""
    recovery = crash.recover()
    made = int((crash.run / "made").read_text())
    (window,) = windows(recovery.journal)
    counted = window.ledger.dropped()
    found = names(recovery.journal)["x"]
    assert counted == recovery.dropped
    assert found + counted <= made <= found + counted + at_most(recovery), recovery.text()
    assert all(source.balanced() for source in window.ledger.sources.values())
    return recovery


def test_a_journal_that_hangs(crash: Crash) -> None:
    """The rings are freed before it has their events, and the recovery says how many it may lack."""
    crash.execute(program(LOOP, seconds=1000.0, queue=1 << 16))
    recovery = check(crash)
    assert at_most(recovery) > 0


def test_a_journal_that_keeps_up_has_nothing_missing(crash: Crash) -> None:
    """After a time in which it did not, too: events that it has by then are not reported as missing any more."""
    late = "Slow.export = sc.exporters.JournalExporter.export\n" + LOOP + "time.sleep(1.5)\nprofiler.flush()\n"
    crash.execute(program(LOOP + late, seconds=0.05, queue=1 << 18))
    recovery = check(crash)
    assert not recovery.missing


@pytest.mark.parametrize("with_other", [True, False])
def test_killed_while_it_closes(crash: Crash, with_other: bool) -> None:
    """With much that the journal has yet to write; while other profilers, or none, go on."""
    other = """
other_profiler = sc.trace(output_dir=sys.argv[1] + "/other", exporters=[sc.exporters.MemoryExporter()], options=sc.Options(
    session_dir=sys.argv[2], drain_interval=0.005, journal=False))
other_profiler.start()
"""
    loop = """
import threading
for _ in range(10):
    for _ in range(300):
        with sc.span("x"):
            pass
    made += 300
    time.sleep(0.04)
threading.Thread(target=profiler.close, daemon=True).start()
deadline = time.monotonic() + 30
while profiler._steps.pipeline in profiler._life.opened.loop._pipelines and time.monotonic() < deadline:
    time.sleep(0.01)
for _ in range(20):
    profiler._life.opened.loop.wake()
    time.sleep(0.01)
"""
    crash.execute(program((other if with_other else "") + loop, seconds=1000.0, queue=1 << 20))
    check(crash)


def test_a_session_whose_disk_is_full(tmp_path: Path) -> None:
    """Events of rings in private memory are counted as well."""
    crash = Crash(tmp_path)
    crash.session = tmp_path / "disk" / "session"
    with small_disk(tmp_path / "disk", 4 << 20):
        crash.session.mkdir()
        fill = """
with open(os.path.dirname(sys.argv[2]) + "/filler", "wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)) == 4096: pass
    except OSError: pass
"""
        crash.execute(
            program(
                "profiler.flush()\n" + LOOP.replace("range(40)", "range(2)") + fill + LOOP,
                seconds=1000.0,
                queue=64 << 20,
            )
        )
        recovery = check(crash)
    assert at_most(recovery) > 0


def test_a_joined_process_whose_owner_is_killed_while_the_journal_is_behind(crash: Crash) -> None:
    """Drained events stay in their rings until the journal has them."""
    loop = """
pid = os.fork()
if pid == 0:
    sc.join("worker")
    for number in range(20000):
        with sc.span("x"):
            pass
        if number % 500 == 0: time.sleep(0.01)
    os._exit(0)
os.waitpid(pid, 0)
made = 20000
time.sleep(0.3)
"""
    text = program(loop, seconds=1000.0, queue=64 << 20).replace(
        "drain_interval=0.005", "drain_interval=0.005, worker_ring_bytes=1 << 16"
    )
    crash.execute(text)
    recovery = check(crash)
    assert not at_most(recovery) and recovery.processes == 1
    assert names(recovery.journal)["x"] + recovery.dropped == 20000


def test_counters_that_make_no_sense(crash: Crash) -> None:
    """They are not believed."""
    crash.execute(program(LOOP, seconds=0.0, queue=64 << 20))
    control = crash.directory() / "control"
    with control.open("r+b") as file:
        file.seek(24 + 2048)
        file.write(os.urandom(1) + b"\xff" * 23)
    assert not check(crash).missing
    control.unlink()
    recovery = crash.recover()
    assert not recovery.missing
