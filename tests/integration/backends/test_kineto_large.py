"""Recordings of kineto that take longer to convert than there is time for: waited for, or counted and said."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import stepscope as sc
from stepscope.backends.torch.kineto.worker import FinishedTrace, Keeper
from stepscope.runtime.schedule.schedule import schedule
from tests.support.operators import torch

ADDS = 30_000


def record(
    directory: Path, windows: int, keeper: Keeper | None = None, *, adds: int = ADDS, **options: Any
) -> tuple[sc.Profiler, Any]:
    """Records windows of many operators, and closes at once."""
    memory = sc.exporters.MemoryExporter()
    ones = torch.ones(2)
    with sc.trace(
        schedule=schedule(wait=0, warmup=0, active=1, repeat=windows),
        backends=[sc.TorchBackend("kineto", record_shapes=True, keeper=keeper)],
        exporters=[memory],
        output_dir=directory,
        options=sc.Options(journal=False, **options),
    ) as profiler:
        for _ in range(windows):
            for _ in range(adds):
                torch.add(ones, ones)
            profiler.step()
    return profiler, memory


def test_what_is_not_converted_in_time_is_missing(tmp_path: Path) -> None:
    """The time for closing is too short: windows are incomplete, and the report does not say that nothing was dropped."""
    closed = threading.Event()

    def keep(trace: FinishedTrace) -> None:
        closed.wait(30)
        trace.result.release()

    profiler, memory = record(tmp_path, 2, keep, close_timeout=4.0)
    closed.set()
    assert [window.complete for window in memory.windows] == [False, False]
    report = str(profiler.report())
    assert "missing   torch: " in report
    assert "dropped   nothing\n" not in report and "accounts  balanced\n" not in report, report
    why = [line for line in report.splitlines() if line.startswith("  why ") and "window" in line]
    assert any("incomplete: 'torch' has nothing of" in line and "raise Options.close_timeout" in line for line in why)
    assert not any("were spans, operators or a backend active" in line for line in why)


def test_a_window_waits_while_the_work_advances(tmp_path: Path) -> None:
    """Converting takes longer than a window lingers: it is whole all the same."""
    profiler, memory = record(tmp_path, 1, adds=4 * ADDS, linger=0.6, close_timeout=60.0)
    (window,) = memory.windows
    assert window.complete, window.diagnostics
    assert window.ledger.sources["torch"].accepted >= 4 * ADDS
    assert "dropped   nothing\n" in str(profiler.report())
