"""The wall clock is set while a run goes on: absolute times follow it, time lines of files do not break."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.runtime.events import clock
from stepscope.runtime.events.clock import ClockAnchor, WallClock, set_between
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window
from tests.support import pftrace
from tests.support.basics import ROOT, missing, require
from tests.support.launch import run_to_end

SECOND, HOUR = 1_000_000_000, 3_600_000_000_000
PROGRAM = ROOT / "tests" / "support" / "programs" / "clock_step.py"


def anchor(monotonic: int, ahead: int) -> ClockAnchor:
    """A reading: the wall clock is ahead of the monotonic one by so much."""
    return ClockAnchor(monotonic, monotonic + ahead, 100)


def test_times_before_and_after_a_step() -> None:
    """Forwards, backwards, and what drift explains; what began since the last look before counts as after it."""
    wall = WallClock()
    assert wall.change(0, 10 * SECOND) == 0
    for at, ahead in ((1, 0), (2, 1000), (3, HOUR), (4, HOUR + 1000), (5, -HOUR)):
        wall.look(anchor(at * SECOND, ahead))
    assert wall.change(SECOND, 2 * SECOND) == 0
    assert wall.change(SECOND, 2 * SECOND + 1) == HOUR
    assert wall.change(SECOND, 3 * SECOND) == HOUR
    assert wall.change(3 * SECOND, 4 * SECOND) == 0
    assert wall.change(SECOND, 9 * SECOND) == -HOUR
    assert wall.change(3 * SECOND, 9 * SECOND) == -2 * HOUR
    assert set_between(anchor(1, 0), anchor(2, 5)) == 0
    assert set_between(anchor(1, 0), anchor(2, -HOUR)) == -HOUR


def test_a_clock_that_is_set_for_ever_takes_no_memory() -> None:
    """The time since the first look stays known."""
    wall = WallClock()
    for number in range(5000):
        wall.look(anchor(number * SECOND, number * HOUR))
    assert wall.change(0, 5000 * SECOND) == 4999 * HOUR
    assert len(wall._changes) <= 1025  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def one_hour(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    """The clock of this process, to be set by hand."""
    wall = WallClock()
    monkeypatch.setattr("stepscope.runtime.export.run.wall_clock", wall)
    return wall


def run_here(directory: Path, pid: int | None = None) -> Run:
    """A run whose wall clock is ahead by nothing at its begin, one second after the monotonic clock's."""
    return Run(
        name="demo", output_dir=directory, pid=pid or os.getpid(), host="here", rank=None, world_size=None,
        anchor=anchor(SECOND, 0), metadata=dict,
    )  # fmt: skip


def window_at(index: int, start: int) -> Window:
    """A window of a second without steps."""
    return Window(index=index, profiler="demo", start_ns=start, end_ns=start + SECOND, steps=(), complete=True)


async def test_snapshots_of_a_native_trace(tmp_path: Path, one_hour: WallClock) -> None:
    """The time line goes on; a snapshot has the new wall time, and only then."""
    for at, ahead in ((1, 0), (3, HOUR)):
        one_hour.look(anchor(at * SECOND, ahead))
    exporter = PerfettoExporter(tmp_path / "t.pftrace")
    await exporter.open(run_here(tmp_path))
    for number, start in enumerate((0, SECOND, 4 * SECOND, 6 * SECOND)):
        await exporter.close_window(window_at(number, start))
    await exporter.aclose()
    found = pftrace.load(tmp_path / "t.pftrace")
    assert [event.name for event in found.sorted()] == ["run", *(f"window {n}" for n in range(4)), "stepscope"]
    proto: Any = require("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = proto.Trace.FromString((tmp_path / "t.pftrace").read_bytes())
    snapshots = [
        {one.clock_id: one.timestamp for one in packet.clock_snapshot.clocks}
        for packet in trace.packet
        if packet.HasField("clock_snapshot")
    ]
    assert [one[1] - one[3] for one in snapshots] == [0, HOUR]


def test_runs_of_other_processes_keep_their_clock(tmp_path: Path, one_hour: WallClock) -> None:
    """Changes of this process's clock do not change the times of a recording that it reads."""
    for at, ahead in ((1, 0), (3, HOUR)):
        one_hour.look(anchor(at * SECOND, ahead))
    assert run_here(tmp_path).wall(9 * SECOND) == 9 * SECOND + HOUR
    assert run_here(tmp_path, pid=1).wall(9 * SECOND) == 9 * SECOND


def test_windows_report_the_new_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `wall_start_ns`, in the base of a file of one window, and in a sentence where the clock was set in the window."""
    wall = WallClock()
    monkeypatch.setattr(clock, "wall_clock", wall)
    monkeypatch.setattr("stepscope.runtime.export.run.wall_clock", wall)
    look, ahead = wall.look, [0]

    def moved(found: ClockAnchor | None = None) -> None:
        found = found or ClockAnchor.read()
        look(ClockAnchor(found.monotonic_ns, found.wall_ns + ahead[0], found.error_ns))

    monkeypatch.setattr(wall, "look", moved)
    windows: list[Window] = []
    cycle = sc.schedule(wait=0, warmup=0, active=1)
    with sc.trace(
        output_dir=tmp_path / "run",
        schedule=cycle,
        exporters=[sc.ChromeTraceExporter(tmp_path / "t-{window}.json", form="object")],
        on_trace_ready=windows.append,
    ) as profiler:
        for number in range(3):
            with sc.span("x"):
                if number == 1:
                    ahead[0] = HOUR
                    wall.look()
            profiler.step()
            assert profiler.flush()
    anchored = [window.wall_start_ns - window.start_ns for window in windows]
    bases = [json.loads((tmp_path / f"t-{window.index}.json").read_text())["baseTimeNanoseconds"] for window in windows]
    assert abs(anchored[2] - anchored[0] - HOUR) < SECOND
    assert abs(bases[2] - bases[0] - HOUR) < SECOND
    assert any("the wall clock was set by +3,600.0 s" in note for note in windows[1].diagnostics)
    assert not any("wall clock" in note for window in (windows[0], windows[2]) for note in window.diagnostics)


def test_spans_of_otlp() -> None:
    """A service whose clock is set back by an hour: each span has the time that the clock showed when it began."""
    require("aiohttp")
    require("opentelemetry.proto.trace.v1.trace_pb2")
    if shutil.which("cc") is None:
        missing("a C compiler", "Install it (on Debian: apt-get install build-essential).")
    done = run_to_end([sys.executable, PROGRAM], timeout=60, environment={**os.environ, "STEP_S": "-3600"})
    assert done.returncode == 0, done.stdout + done.stderr
