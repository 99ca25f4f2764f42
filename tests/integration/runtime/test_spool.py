"""The spool: what was drained is kept in the session until the journal has it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import stepscope
from stepscope.exporters.specimens import every_kind
from stepscope.runtime import _core
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.session.spool import FILES, Spool
from tests.stress.fuzz.seeds import spool_frame
from tests.support.crashes import Crash, names
from tests.support.recording import run_program


class Journal:
    """An outlet, as far as a spool looks at it."""

    def __init__(self) -> None:
        self.given = 0
        self.handled = 0
        self.unreported_drops = 0


def sizes(directory: Path) -> list[int]:
    """Bytes in each file."""
    return [(directory / name).stat().st_size for name in FILES]


def test_what_the_journal_lacks_is_recovered(tmp_path: Path) -> None:
    """A journal that hangs while rings are drained and overwritten many times: a kill loses none of it."""
    crash = Crash(tmp_path).of("""
        import anyio, time
        class Hanging(sc.exporters.JournalExporter):
            async def export(self, batch):
                await anyio.sleep_forever()
        profiler = sc.trace(output_dir=sys.argv[1], exporters=[Hanging()], options=sc.Options(
            session_dir=sys.argv[2], ring_slots=64, ring_bytes=4096, drain_interval=0.001))
        profiler.start()
        for number in range(100):
            for _ in range(10):
                with sc.span("x", text="some text"):
                    pass
            while profiler.statistics().recorder.waiting:
                time.sleep(0.0005)
        die()
    """)
    recovery = crash.recover()
    assert recovery.dropped == 0
    assert names(recovery.journal)["x"] == 1000


def test_the_files_are_emptied_by_turns(tmp_path: Path) -> None:
    """A file is emptied when its events were routed and the journal has handled what it was given by then."""
    spool, journal = Spool(tmp_path, 1 << 20), Journal()
    spool.begin()
    (tmp_path / FILES[0]).write_bytes(b"x" * 100)
    spool.turn(_core.now(), [journal])
    assert sizes(tmp_path) == [100, 0]  # left at this moment, and not routed yet
    (tmp_path / FILES[1]).write_bytes(b"y" * 50)
    journal.given = 3
    spool.turn(_core.now(), [journal])
    journal.given, journal.handled = 9, 2
    spool.turn(_core.now(), [journal])
    assert sizes(tmp_path) == [100, 50]
    journal.handled = 3
    spool.turn(_core.now(), [journal])
    assert sizes(tmp_path) == [0, 50]
    journal.handled = 9
    spool.turn(_core.now(), [journal])
    assert sizes(tmp_path) == [0, 0]
    spool.close()


def test_without_a_journal_nothing_is_kept(tmp_path: Path) -> None:
    """Who switched the journal off gave up crash safety, and pays nothing for it."""
    spool = Spool(tmp_path, 1 << 20)
    spool.begin()
    (tmp_path / FILES[0]).write_bytes(b"x" * 100)
    spool.turn(_core.now(), [])
    assert sizes(tmp_path) == [0, 0]
    spool.close()


def test_a_stalled_journal_does_not_fill_the_memory(tmp_path: Path) -> None:
    """At its limit a file grows no more, and that is counted."""
    spool, journal = Spool(tmp_path, 99), Journal()
    spool.begin()
    (tmp_path / FILES[0]).write_bytes(b"x" * 100)
    journal.given = 1
    spool.turn(_core.now(), [journal])
    (tmp_path / FILES[1]).write_bytes(b"x" * 100)
    assert spool.stalled == 0
    spool.turn(_core.now(), [journal])
    spool.turn(_core.now(), [journal])
    assert spool.stalled == 2
    journal.handled = 1
    spool.turn(_core.now(), [journal])
    assert spool.stalled == 2
    spool.close()


def test_a_run_leaves_the_spool_empty(session_dir: Path, output_dir: Path) -> None:
    """While it goes on, no more than the last drains are in it."""
    options = stepscope.Options(session_dir=str(session_dir), drain_interval=0.001)
    with stepscope.trace(output_dir=output_dir, options=options) as profiler:
        for _ in range(200):
            with stepscope.span("x"):
                pass
        profiler.flush()
        recorder = profiler._recorder  # pyright: ignore[reportPrivateUsage]
        assert recorder is not None
        deadline = time.monotonic() + 30
        while any(sizes(recorder.directory)) and time.monotonic() < deadline:
            profiler.step()
            profiler.flush()
        assert sum(sizes(recorder.directory)) < 100_000


def test_a_full_disk_costs_crash_safety_only(small_disk: Path) -> None:
    """Frames that do not fit are counted, half of one is taken back, and events go on to the loop."""
    (counts, spooled, drained) = run_program(
        """
        recorder.spool.begin()
        for number in range(100):
            for _ in range(200):
                instant("x", text="y" * 50)
            log.take()
        spooled = [(recorder.directory / name).stat().st_size for name in ("spool-0", "spool-1")]
        tell(_core.counts()["spool_failed"]), tell(sum(spooled)), tell(len(log.rows))
        """,
        options=f"session_dir={str(small_disk)!r}, ring_slots=1024",
    )
    assert counts > 0
    assert 0 < spooled < 1 << 20
    assert drained == 20_000


@pytest.mark.parametrize("cut", [1, 15, 16, 100])
def test_a_torn_frame_is_passed_over(cut: int, tmp_path: Path) -> None:
    """What was being written when the process died is in the rings; the frames before it count."""
    spool = Spool(tmp_path, 1 << 20)
    spool.close()
    frame = b"SSSPOOL\0" + spool_frame(every_kind())
    (tmp_path / FILES[0]).write_bytes(frame + frame[:-cut])
    files = SessionFiles(tmp_path)
    assert [len(piece.events) for piece in files.spooled()] == [2]
    files.close()
