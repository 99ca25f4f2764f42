"""Journals that are behind when a process is killed: the rings have it, or it is said how much may be missing."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from stepscope.runtime.events.intervals import clip
from stepscope.runtime.events.record import Flag, Kind, empty_block
from stepscope.runtime.recovery.recover import Recovery, recover
from tests.support.crashes import Crash, batches, names, windows
from tests.support.disks import small_disk

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
    said = [re.match(r"at most ([\d,]+) event", what) for what in recovery.missing]
    return sum(int(match[1].replace(",", "")) for match in said if match)


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
    """The rings are freed before it has their events, and it is said how many it may lack."""
    crash.of(program(LOOP, seconds=1000.0, queue=1 << 16))
    recovery = check(crash)
    assert at_most(recovery) > 0


def test_a_journal_that_keeps_up_has_nothing_missing(crash: Crash) -> None:
    """After a time in which it did not, too: what it has by then is not said to be missing any more."""
    late = "Slow.export = sc.exporters.JournalExporter.export\n" + LOOP + "time.sleep(1.5)\nprofiler.flush()\n"
    crash.of(program(LOOP + late, seconds=0.05, queue=1 << 18))
    recovery = check(crash)
    assert not recovery.missing


@pytest.mark.parametrize("beside", [True, False])
def test_killed_while_it_closes(crash: Crash, beside: bool) -> None:
    """With much that the journal has yet to write; while other profilers, or none, go on."""
    other = """
profiler_beside = sc.trace(output_dir=sys.argv[1] + "/beside", exporters=[sc.exporters.MemoryExporter()], options=sc.Options(
    session_dir=sys.argv[2], drain_interval=0.005, journal=False))
profiler_beside.start()
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
    crash.of(program((other if beside else "") + loop, seconds=1000.0, queue=1 << 20))
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
        crash.of(
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
    crash.of(text)
    recovery = check(crash)
    assert not at_most(recovery) and recovery.processes == 1
    assert names(recovery.journal)["x"] + recovery.dropped == 20000


def test_counters_that_make_no_sense(crash: Crash) -> None:
    """They are not believed."""
    crash.of(program(LOOP, seconds=0.0, queue=64 << 20))
    control = crash.directory() / "control"
    with control.open("r+b") as file:
        file.seek(24 + 2048)
        file.write(os.urandom(1) + b"\xff" * 23)
    assert not check(crash).missing
    control.unlink()
    recovery = crash.recover()
    assert not recovery.missing


CONSUMER = slice(128, 160)
"""Where a ring's header has what its consumer wrote: `Header` in core/rings/ring.h."""

OVERFLOW = """
from pathlib import Path
profiler = sc.trace(output_dir=sys.argv[1], options=sc.Options(session_dir=sys.argv[2], ring_slots=64,
                    ring_bytes=4096, drain_interval=1000.0, overflow=POLICY))
profiler.start()
profiler.flush()
drain, _core.drain = _core.drain, lambda *_: (b"", b"", False)
for number in range(500):
    with sc.span("x"):
        pass
for ring in Path(sys.argv[2]).glob("*/ring-*"):
    Path(sys.argv[1], "before-" + ring.name).write_bytes(ring.read_bytes()[:4096])
"""
DRAINED = {"nowhere else": "drain(1 << 18, 1 << 62), die()", "journal": "_core.drain = drain; profiler.flush(), die()"}


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
@pytest.mark.parametrize("where", DRAINED)
def test_a_drain_that_was_not_given_free(where: str, policy: str, crash: Crash) -> None:
    """A process that dies between the journal's write and the release of the rings leaves both."""
    crash.of(OVERFLOW.replace("POLICY", repr(policy)) + DRAINED[where], drain_interval=1000.0)
    for ring in crash.directory().glob("ring-*"):
        before = (crash.run / f"before-{ring.name}").read_bytes()
        with ring.open("r+b") as file:
            file.seek(CONSUMER.start)
            file.write(before[CONSUMER])
    recovery = crash.recover()
    kept = names(recovery.journal)["x"]
    (window,) = windows(recovery.journal)
    gaps = sum(lost(recovery.journal).values())
    assert 0 < kept < 500
    assert kept + gaps == 500
    assert window.ledger.sources["recorder"].dropped.keys() <= {"overflow"}
    assert window.ledger.dropped() == gaps


def test_a_joined_process_that_is_one_drain_behind(crash: Crash) -> None:
    """Its slots are free only when the journal has them, so that may have what its rings still say was lost."""
    crash.of(
        """
        from pathlib import Path
        import time
        profiler = sc.trace(output_dir=sys.argv[1], options=sc.Options(session_dir=sys.argv[2], ring_slots=64,
                            ring_bytes=1 << 20, worker_ring_bytes=4096, drain_interval=1000.0))
        profiler.start()
        profiler.flush()
        profiler._life.opened.recorder.workers.drain, drain = lambda until: [], profiler._life.opened.recorder.workers.drain
        pid = os.fork()
        if pid == 0:
            sc.join("worker")
            for number in range(500):
                with sc.span("x"):
                    pass
            os._exit(0)
        os.waitpid(pid, 0)
        for ring in Path(sys.argv[2]).glob("*/*-*/ring-*"):
            Path(sys.argv[1], "before-" + ring.name).write_bytes(ring.read_bytes()[:4096])
        profiler._life.opened.recorder.workers.drain = drain
        profiler.flush(), die()
        """,
        drain_interval=1000.0,
    )
    (ring,) = crash.directory().glob("*-*/ring-*")
    with ring.open("r+b") as file:
        file.seek(CONSUMER.start)
        file.write((crash.run / f"before-{ring.name}").read_bytes()[CONSUMER])
    recovery = crash.recover()
    kept = names(recovery.journal)["x"]
    assert recovery.processes == 1
    assert 0 < kept < 500
    assert kept + windows(recovery.journal)[0].ledger.dropped() == 500


def test_a_gap_across_windows(crash: Crash) -> None:
    """It counts in the window in which it begins, in the journal and in what is recovered of the rings."""
    crash.of(
        """
        profiler = sc.trace(output_dir=sys.argv[1], schedule=sc.schedule(wait=0, warmup=0, active=1, repeat=0),
                            options=sc.Options(session_dir=sys.argv[2], ring_slots=64, ring_bytes=4096,
                                               drain_interval=1000.0))
        go, done = threading.Event(), threading.Event()
        def other():
            for number in range(100):
                with sc.span("x"):
                    pass
            go.set(), done.wait()
            with sc.span("x"):
                die()
        profiler.start()
        profiler.flush()
        drain, _core.drain = _core.drain, lambda *_: (b"", b"", False)
        thread = threading.Thread(target=other)
        thread.start()
        go.wait()
        profiler.step()
        _core.drain = drain
        profiler.flush()
        done.set(), thread.join()
        """,
        drain_interval=1000.0,
    )
    recovery = crash.recover()
    first, second = windows(recovery.journal)
    kept = names(recovery.journal)["x"] - 1
    assert 0 < kept < 100
    assert (first.ledger.dropped(), second.ledger.dropped()) == (100 - kept, 0)
    assert lost(recovery.journal) == {0: 100 - kept, 1: 0}
    assert recover(crash.run).dropped == recovery.dropped


def lost(journal: Path) -> dict[int, int]:
    """What the gaps of each window count."""
    counts: Counter[int] = Counter()
    for batch in batches(journal):
        counts[batch.window] += int(batch.events["id"][batch.events["kind"] == int(Kind.GAP)].sum())
    return dict(counts)


@pytest.mark.parametrize("end", ["profiler.step(), profiler.flush(), die()", "profiler.flush(), die()", "die()"])
def test_a_gap_that_begins_in_a_closed_window(end: str, crash: Crash) -> None:
    """Nothing was recorded since: what is lost then counts in the window in which it was."""
    crash.of(
        """
        profiler = sc.trace(output_dir=sys.argv[1], schedule=sc.schedule(wait=1, warmup=0, active=1, repeat=0),
                            options=sc.Options(session_dir=sys.argv[2], ring_slots=64, ring_bytes=4096,
                                               drain_interval=1000.0))
        profiler.start()
        profiler.step()
        with sc.span("x"):
            pass
        profiler.step()
        profiler.flush()
        profiler.step()
        profiler.flush()
        drain, _core.drain = _core.drain, lambda *_: (b"", b"", False)
        for number in range(500):
            with sc.span("x"):
                pass
        _core.drain = drain
        """
        + end,
        drain_interval=1000.0,
    )
    recovery = crash.recover()
    first, second = windows(recovery.journal)
    kept = names(recovery.journal)["x"] - 1
    assert 0 < kept < 500
    assert (first.ledger.dropped(), second.ledger.dropped()) == (0, 500 - kept)
    assert lost(recovery.journal) == {0: 0, 1: 500 - kept}


def test_the_parts_of_a_gap() -> None:
    """What it counts stays with the first part."""
    gap = empty_block(1)
    gap["ts"], gap["dur"], gap["id"], gap["kind"] = 10, 30, 7, int(Kind.GAP)
    parts = clip(gap, [(0, 20), (25, 30), (35, 50)])
    assert parts["id"].tolist() == [7, 0, 0]
    assert np.all(parts["flags"] & int(Flag.CLIPPED) != 0)
    assert clip(gap, [(15, 50)])["id"].tolist() == [7]
