"""A loop that begins windows, or pauses, faster than they can be sorted: memory stays bounded, what is left out is counted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.control import WindowRequest
from stepscope.runtime.loop.pipeline import MAX_WAITING
from tests.support.blocking import BlockingBackend
from tests.support.logged_backends import LoggedBackend

STEPS = 4 * MAX_WAITING


def test_windows_are_left_out_whole_and_counted(output_dir: Path) -> None:
    backend, exporter = BlockingBackend(), sc.exporters.MemoryExporter()
    profiler = sc.trace(
        schedule=sc.schedule(wait=1, warmup=0, active=2), backends=[backend], exporters=[exporter],
        output_dir=output_dir, options=sc.Options(journal=False),
    )  # fmt: skip
    with profiler:
        profiler.step()
        backend.block()
        waiting = 0
        for _ in range(STEPS):
            with sc.span("work"):
                profiler.step()
            stats = profiler.statistics()
            assert stats.pipeline is not None
            waiting = max(waiting, stats.pipeline.inbox.waiting)
        backend.free.set()
        profiler.flush()
        left_out = profiler.statistics().windows_left_out
        for _ in range(6):
            with sc.span("work"):
                profiler.step()
    profiler.raise_errors()
    assert MAX_WAITING <= waiting <= MAX_WAITING + 10
    assert left_out > STEPS // 3 - MAX_WAITING
    assert profiler.statistics().windows_left_out == left_out
    assert len(exporter.windows) == profiler.statistics().windows
    # Each window is whole: none begins in the middle of one that was left out.
    assert [len(window.steps) for window in exporter.windows[:-1]] == [2] * (len(exporter.windows) - 1)
    assert f"{left_out:,} windows: windows began faster" in str(profiler.report())
    assert exporter.run is not None and exporter.run.ledger().windows_left_out == left_out
    assert profiler.audit() == ()


def test_a_requested_window_behind_one_that_was_left_out(output_dir: Path) -> None:
    """It begins if the loop has caught up by then, and both say what became of them."""
    backend, exporter = BlockingBackend(), sc.exporters.MemoryExporter()
    profiler = sc.trace(
        schedule=sc.schedule(wait=1, warmup=0, active=1, repeat=1), backends=[backend], exporters=[exporter],
        output_dir=output_dir, options=sc.Options(journal=False),
    )  # fmt: skip
    with profiler:
        profiler.step()
        backend.block()
        for _ in range(MAX_WAITING):
            profiler.pause()
            profiler.resume()
        profiler.step()
        assert profiler.arm(WindowRequest(start_step=3, stop_step=4))
        assert profiler.arm(WindowRequest(start_step=5, stop_step=6))
        profiler.step()
        profiler.step()
        backend.free.set()
        assert profiler.flush(30)
        for _ in range(3):
            profiler.step()
    profiler.raise_errors()
    assert [status.state for status in profiler.armed()] == ["missed", "recorded"]
    assert "too far behind" in profiler.armed()[0].reason
    assert [[step.number for step in window.steps] for window in exporter.windows] == [[1], [5, 6]]
    assert profiler.statistics().windows_left_out == 1
    assert profiler.audit() == ()


class BlockingTransition(LoggedBackend):
    """Blocks its thread when a window begins, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.free = threading.Event(), threading.Event()

    def transition(self, before: sc.ProfilerAction, after: sc.ProfilerAction, at: int) -> None:
        super().transition(before, after, at)
        self.blocks.set()
        assert self.free.wait(60)


def test_no_more_calls_than_so_many_wait_for_a_backend(output_dir: Path) -> None:
    """Its profiler leaves windows out, and counts them; when the backend goes on, so do the windows."""
    backend, exporter = BlockingTransition(), sc.exporters.MemoryExporter()
    options = sc.Options(journal=False, linger=0.0)  # no window waits for the backend
    with sc.trace(
        schedule=sc.schedule(wait=1, warmup=0, active=1), backends=[backend], exporters=[exporter],
        output_dir=output_dir, options=options,
    ) as profiler:  # fmt: skip
        profiler.step()
        assert backend.blocks.wait(30)
        while not profiler.statistics().windows_left_out:
            for _ in range(20):
                profiler.step()
            assert profiler.flush(30)
        begun = profiler.statistics().windows
        assert 2 * begun - 20 <= MAX_WAITING <= 2 * begun + 20  # a call for each begin and each end
        backend.free.set()
        while len(backend.calls) < 2 * begun:
            time.sleep(0.001)
        left_out = profiler.statistics().windows_left_out
        for _ in range(4):
            profiler.step()
    profiler.raise_errors()
    assert profiler.statistics().windows > begun and profiler.statistics().windows_left_out == left_out
    assert profiler.audit() == ()


@pytest.mark.parametrize("journal", [True, False])
def test_pauses_that_nobody_could_note_are_counted(journal: bool, output_dir: Path) -> None:
    backend, exporter = BlockingBackend(), sc.exporters.MemoryExporter()
    with sc.trace(
        backends=[backend], exporters=[exporter], output_dir=output_dir, options=sc.Options(journal=journal)
    ) as profiler:
        backend.block()
        for _ in range(STEPS):
            profiler.pause()
            with sc.span("not seen"):
                pass
            profiler.resume()
        backend.free.set()
        profiler.flush()
        profiler.pause()
        profiler.resume()
        with sc.span("seen"):
            pass
    profiler.raise_errors()
    stats = profiler.statistics()
    names = Counter(exporter.names())
    assert stats.pauses_not_drawn > STEPS - MAX_WAITING
    assert names["paused"] + stats.pauses_not_drawn == STEPS + 1
    assert (names["not seen"], names["seen"]) == (0, 1)
    assert f"{stats.pauses_not_drawn:,} pauses not drawn" in str(profiler.report())
    assert profiler.audit() == ()
