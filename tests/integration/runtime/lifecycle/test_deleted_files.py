"""A file that is deleted while it is written: its events are counted as lost and reported, and it is not created again."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.exporter_accounts import ExporterStatistics
from tests.support.flight_recording import Profile
from tests.support.killed_programs import names
from tests.support.launch import run_to_end

EXPORTERS: dict[str, Callable[[Path], Exporter]] = {
    "t.json": sc.ChromeTraceExporter,
    "t.json.gz": sc.ChromeTraceExporter,
    "t.kineto.json": lambda path: sc.ChromeTraceExporter(path, form="object"),
    "closed.json": lambda path: sc.ChromeTraceExporter(path, closed=True),
    "t{window}.json": sc.ChromeTraceExporter,
    "tb": lambda path: sc.tensorboard_trace_handler(str(path)),
    "t.pftrace": sc.PerfettoExporter,
    "t.journal": sc.exporters.JournalExporter,
}


def files_below(place: Path) -> list[Path]:
    """The files of a directory, with all below it."""
    return sorted(path for path in place.rglob("*") if path.is_file())


def exporter_statistics(profiler: sc.Profiler, number: int = 0) -> ExporterStatistics:
    """The accounts of one exporter; the journal of the run is the first, if there is one."""
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    return pipeline.exporters[number]


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_deleted_file_is_lost_and_counted(tmp_path: Path, name: str, what: str) -> None:
    """Its events are dropped as `deleted`, what follows is not written, and the report names the file."""
    place = tmp_path / "outputs"
    schedule = sc.schedule(wait=0, warmup=0, active=4, repeat=1)
    options = sc.Options(drain_interval=0.02, close_timeout=30, journal=False)
    with sc.trace(
        output_dir=tmp_path / "run", schedule=schedule, exporters=[EXPORTERS[name](place / name)], options=options
    ) as profiler:
        for _ in range(50):
            with sc.span("before"):
                pass
        profiler.step()
        assert profiler.flush()
        assert exporter_statistics(profiler).ledger.exported >= 50
        for path in files_below(place):
            path.unlink()
        if what == "directory":
            shutil.rmtree(place)
        for _ in range(3):
            with sc.span("after"):
                pass
            profiler.step()
        assert profiler.flush()
    statistics = exporter_statistics(profiler)
    assert statistics.ledger.exported == statistics.ledger.in_flight == 0
    assert statistics.ledger.dropped["deleted"] >= 50
    assert statistics.ledger.offered == sum(statistics.ledger.dropped.values())
    report = str(profiler.report())
    assert "deleted while it was written" in report and "dropped   nothing" not in report
    assert profiler.audit() == ()
    assert files_below(place) == [] and place.exists() is (what == "file")
    with pytest.raises(ExceptionGroup) as caught:
        profiler.raise_errors()
    assert any("events are lost" in str(error.__cause__ or error) for error in caught.value.exceptions)


def test_a_moved_file_is_written_on(tmp_path: Path) -> None:
    """The file under its new name has all events."""
    exporter = sc.exporters.JournalExporter(tmp_path / "t.journal")
    options = sc.Options(journal=False)
    with sc.trace(output_dir=tmp_path / "run", exporters=[exporter], options=options) as profiler:
        with sc.span("before"):
            pass
        assert profiler.flush()
        (tmp_path / "t.journal").rename(tmp_path / "moved.journal")
        with sc.span("after"):
            pass
    assert not exporter_statistics(profiler).ledger.dropped
    found = names(tmp_path / "moved.journal")
    assert found["before"] == found["after"] == 1 and not (tmp_path / "t.journal").exists()
    profiler.raise_errors()


def test_a_deleted_window_of_the_flight_recorder(tmp_path: Path) -> None:
    """The window that is being saved is lost, is counted, and the next one is saved."""
    profile = Profile(tmp_path / "run", sc.ChromeTraceExporter(tmp_path / "t.json"))
    with profile.profiler as profiler:
        profile.steps(4)
        profiler.save("first")
        profile.steps(4)
        assert profiler.flush()
        shutil.rmtree(tmp_path / "run" / "windows")
        profile.steps(4)
        profiler.save("second")
        profile.steps(4)
        assert profiler.flush()
    profile.check_accounts()
    assert [path.name for path in (tmp_path / "run" / "windows").iterdir()]


REMOVED_SESSION = """
import pathlib, shutil, sys
import stepscope as sc
from stepscope.runtime.recording import recorder
memory = sc.exporters.MemoryExporter()
options = sc.Options(session_dir=sys.argv[2], drain_interval=0.02, close_timeout=30)
with sc.trace(output_dir=sys.argv[1], keep_last=sc.FlightRecorder(steps=400, triggers=()), exporters=[memory], options=options) as profiler:
    current = recorder.current()
    for step in range(300):
        with sc.span("work"):
            pass
        profiler.step()
        if step == 100:
            assert profiler.flush()
            shutil.rmtree(current.directory)
        if step % 50 == 0:
            assert profiler.flush()
    # Longer than between two checks whether a file was deleted.
    import time
    time.sleep(1.2)
    with sc.span("last"):
        pass
    profiler.step()
    assert profiler.flush()
    assert not current.directory.exists() and current.statistics().removed
    profiler.save("afterwards")
    profiler.step()
    assert profiler.flush()
    assert not current.directory.exists() and current.statistics().removed
flight = profiler.statistics().pipeline.flight
assert flight.retained.unreadable == 0, flight
assert sum(len(window.steps) for window in memory.windows) >= 300
assert any("session directory removed" in note for note in profiler.diagnostics())
print(list(pathlib.Path(sys.argv[2]).iterdir()))
"""


def test_a_removed_session_directory_stays_removed(tmp_path: Path) -> None:
    """The flight recorder goes on in memory; all its steps can still be saved, and no file is left."""
    session = tmp_path / "session"
    session.mkdir()
    command = [sys.executable, "-c", REMOVED_SESSION, str(tmp_path / "run"), str(session)]
    done = run_to_end(command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]" and list(session.iterdir()) == []
