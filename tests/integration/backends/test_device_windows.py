"""Windows over a device that delivers late, out of order and on its own clock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import Deliver, ScriptedBackend, Span
from stepscope.backends.simulated.simulated import SimulatedDevice
from stepscope.exporters.memory import MemoryExporter
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind
from tests.support.commands import stepscope


def train(profiler: sc.Profiler, steps: int, seconds: float = 0.02) -> None:
    for _ in range(steps):
        with sc.span("work"):
            time.sleep(seconds)
        profiler.step()


def kernels_per_window(memory: MemoryExporter) -> dict[int, set[int]]:
    kernel = strings.category("kernel")
    windows: dict[int, set[int]] = {}
    for window in memory.windows:
        spans = memory.events(window.index, Kind.SPAN)
        windows[window.index] = {int(number) for number in spans["id"][spans["category"] == kernel]}
    return windows


def test_late_events_are_in_the_window_of_their_time(output_dir: Path) -> None:
    """A window stays open until the device has delivered past its end, and holds what truly ran in it."""
    device = SimulatedDevice(
        streams=3, kernels_per_second=20_000, flush_delay=0.05, clock_skew=3_000_000_000, clock_drift=50.0
    )
    memory = MemoryExporter()
    schedule = sc.schedule(wait=1, warmup=0, active=2, repeat=2)
    with sc.trace(schedule=schedule, backends=[device], exporters=[memory], output_dir=output_dir) as profiler:
        train(profiler, 7)
        profiler.flush()
    profiler.raise_errors()
    assert [window.complete for window in memory.windows] == [True, True]
    seen = kernels_per_window(memory)
    assert all(len(kernels) > 500 for kernels in seen.values())
    for window in memory.windows:
        ledger = window.ledger.sources["simulated"]
        assert ledger.balanced()
        spans = memory.events(window.index, Kind.SPAN)
        assert ((spans["ts"] >= window.start_ns) & (spans["ts"] + spans["dur"] <= window.end_ns)).all()
    stats = profiler.statistics().pipeline
    assert stats is not None
    windows = stats.windows
    assert windows.late.get("simulated", 0) == 0
    delivered = device.statistics().delivered
    assert delivered == windows.accepted["simulated"] + windows.outside.get("simulated", 0)
    assert "error <=" in str(profiler.report())


def test_losses_of_the_device_are_in_the_ledger(output_dir: Path) -> None:
    """Produced = accepted + dropped, with the device's own count."""
    device = SimulatedDevice(kernels_per_second=50_000, flush_delay=0.02, drop=0.3, seed=3)
    with sc.trace(backends=[device], output_dir=output_dir) as profiler:
        train(profiler, 5)
    stats = profiler.statistics().pipeline
    assert stats is not None
    counts = device.statistics()
    assert counts.lost > 0
    dropped = sum(stats.windows.dropped["simulated"].values())
    assert dropped == counts.lost + counts.refused
    assert counts.produced == stats.windows.seen["simulated"] + dropped


def test_a_device_too_slow_for_the_linger_time_is_named(output_dir: Path) -> None:
    """The window closes without it, says so, and its events count as late."""
    device = SimulatedDevice(kernels_per_second=20_000, flush_delay=0.6)
    memory = MemoryExporter()
    options = sc.Options(linger=0.05)
    schedule = sc.schedule(wait=0, warmup=0, active=2, repeat=1)
    with sc.trace(
        schedule=schedule, backends=[device], exporters=[memory], output_dir=output_dir, options=options
    ) as profiler:
        train(profiler, 3)
        assert profiler.flush()
    (window,) = memory.windows
    assert any("simulated" in note for note in window.diagnostics)
    stats = profiler.statistics().pipeline
    assert stats is not None
    assert stats.windows.late["simulated"] > 0


def test_events_after_the_end_of_a_complete_window_are_reported(output_dir: Path) -> None:
    """Of a source that has said that it had delivered all: by the report, `explain`, and the list of windows."""
    source = ScriptedBackend([Deliver([Span("late", 0, 1)], on="aclose")], name="source")
    memory = MemoryExporter()
    schedule = sc.schedule(wait=0, warmup=0, active=2, repeat=1)
    with sc.trace(schedule=schedule, backends=[source], exporters=[memory], output_dir=output_dir) as profiler:
        train(profiler, 3)
        assert profiler.flush()
    assert [window.complete for window in memory.windows] == [True]
    assert "late: 1 event of 'source' came after the window was closed" in str(profiler.report())
    assert "1 dropped (late 1)" in profiler.explain().trust
    assert "1 event came after the window was closed" in stepscope("windows", output_dir, cwd=output_dir).stdout


@pytest.mark.parametrize("inbox_bytes", [64 << 10])
def test_a_device_faster_than_the_inbox_loses_with_a_count(inbox_bytes: int, output_dir: Path) -> None:
    """Memory is bounded by the inbox; what did not fit is dropped by reason."""
    device = SimulatedDevice(kernels_per_second=1_000_000, flush_delay=0.01)
    options = sc.Options(inbox_bytes=inbox_bytes)
    with sc.trace(backends=[device], output_dir=output_dir, options=options) as profiler:
        train(profiler, 3)
    stats = profiler.statistics().pipeline
    assert stats is not None
    assert stats.inbox.peak_bytes <= inbox_bytes
    counts = device.statistics()
    assert stats.windows.dropped["simulated"]["inbox"] == counts.refused > 0
    seen = stats.windows.seen.get("simulated", 0)
    assert counts.produced == seen + sum(stats.windows.dropped["simulated"].values())
