"""Lost events are counted once, though ring and journal may both report them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stepscope.runtime.events.record import Kind
from stepscope.runtime.recovery.recover import recover
from tests.support.killed_programs import Crash, batches, names, windows

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
def test_a_drain_that_was_not_released(where: str, policy: str, crash: Crash) -> None:
    """A process that dies between the journal's write and the release of the rings leaves both."""
    crash.execute(OVERFLOW.replace("POLICY", repr(policy)) + DRAINED[where], drain_interval=1000.0)
    for ring in crash.directory().glob("ring-*"):
        before = (crash.run / f"before-{ring.name}").read_bytes()
        with ring.open("r+b") as file:
            file.seek(CONSUMER.start)
            file.write(before[CONSUMER])
    recovery = crash.recover()
    recovered = names(recovery.journal)["x"]
    (window,) = windows(recovery.journal)
    gaps = sum(lost(recovery.journal).values())
    assert 0 < recovered < 500
    assert recovered + gaps == 500
    assert window.ledger.sources["recorder"].dropped.keys() <= {"overflow"}
    assert window.ledger.dropped() == gaps


def test_a_joined_process_that_is_one_drain_behind(crash: Crash) -> None:
    """Its slots are free only when the journal has them, so that may have what its rings still say was lost."""
    crash.execute(
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
    recovered = names(recovery.journal)["x"]
    assert recovery.processes == 1
    assert 0 < recovered < 500
    assert recovered + windows(recovery.journal)[0].ledger.dropped() == 500


def test_a_gap_across_windows(crash: Crash) -> None:
    """It counts in the window in which it begins, in the journal and in what is recovered of the rings."""
    crash.execute(
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
    recovered = names(recovery.journal)["x"] - 1
    assert 0 < recovered < 100
    assert (first.ledger.dropped(), second.ledger.dropped()) == (100 - recovered, 0)
    assert lost(recovery.journal) == {0: 100 - recovered, 1: 0}
    assert recover(crash.run).dropped == recovery.dropped


def lost(journal: Path) -> dict[int, int]:
    """The number of events that the gaps of each window count."""
    counts: Counter[int] = Counter()
    for batch in batches(journal):
        counts[batch.window] += int(batch.events["id"][batch.events["kind"] == int(Kind.GAP)].sum())
    return dict(counts)


@pytest.mark.parametrize("end", ["profiler.step(), profiler.flush(), die()", "profiler.flush(), die()", "die()"])
def test_a_gap_that_begins_in_a_closed_window(end: str, crash: Crash) -> None:
    """Nothing was recorded since: what is lost then counts in the window in which it was."""
    crash.execute(
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
    recovered = names(recovery.journal)["x"] - 1
    assert 0 < recovered < 500
    assert (first.ledger.dropped(), second.ledger.dropped()) == (0, 500 - recovered)
    assert lost(recovery.journal) == {0: 0, 1: 500 - recovered}
