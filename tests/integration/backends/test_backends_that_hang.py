"""A backend that does not return costs neither other backends their closing nor other profilers a word."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.runtime.schedule.action import ProfilerAction

HANGS_S = 60.0


class Closing:
    """Waits in `aclose` for so many seconds."""

    thread_bound = False

    def __init__(self, name: str, seconds: float = 0.0, *, blocks_start: float = 0.0, stubborn: bool = False) -> None:
        self.name = name
        self.closed = self.called = False
        self._seconds, self._blocks_start, self._stubborn = seconds, blocks_start, stubborn

    def open(self, sink: sc.backends.Sink) -> None:
        """Nothing."""

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """Blocks the loop where recording ends."""
        if before.records and not after.records:
            time.sleep(self._blocks_start)

    async def aclose(self) -> None:
        """Waits."""
        self.called = True
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            if not self._stubborn:
                raise
            await asyncio.sleep(self._seconds)
        self.closed = True

    def report(self) -> sc.backends.BackendReport:
        """Nothing."""
        return sc.backends.BackendReport()


class BlockingTransition(Closing):
    """Blocks the runtime's loop when recording begins, until it is freed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.blocks, self.free = threading.Event(), threading.Event()

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """Blocks."""
        if after.records:
            self.blocks.set()
            self.free.wait(HANGS_S)


@pytest.mark.parametrize("stubborn", [False, True])
def test_one_that_hangs_in_aclose_keeps_no_other_open(stubborn: bool, tmp_path: Path) -> None:
    """All others are closed, and each that hangs is named by the report, `diagnostics()` and `raise_errors()`."""
    hang = [Closing(f"hang {number}", HANGS_S, stubborn=stubborn) for number in range(2)]
    good = [Closing(f"good {number}", 0.1) for number in range(3)]
    backends = [hang[0], *good[:2], hang[1], good[2]]
    with sc.trace(output_dir=tmp_path, backends=backends, options=sc.Options(close_timeout=2.0)) as profiler:
        with sc.span("work"):
            pass
        profiler.step()
    assert all(backend.closed for backend in good)
    assert all(backend.called and not backend.closed for backend in hang)
    with pytest.raises(ExceptionGroup) as caught:
        profiler.raise_errors()
    assert len(caught.value.exceptions) == 2
    assert all(isinstance(error.__cause__, TimeoutError) for error in caught.value.exceptions)
    for backend in hang:
        assert any(backend.name in note and "did not end within" in note for note in profiler.diagnostics())
        assert f"{backend.name}" in str(profiler.report())
    assert not profiler.statistics().given_up and not profiler.audit()


def test_backends_are_closed_although_the_time_for_it_was_over(tmp_path: Path) -> None:
    """One blocks the loop at the end of recording for longer than half of the deadline: both are closed afterwards."""
    late, good = Closing("late", blocks_start=0.8), Closing("good")
    with sc.trace(output_dir=tmp_path, backends=[late, good], options=sc.Options(close_timeout=1.0)) as profiler:
        profiler.step()
    profiler.flush()
    assert late.closed and good.closed
    assert any("blocked the runtime's loop for" in note for note in profiler.diagnostics())
    assert "'late' blocked the runtime's loop" in str(profiler.report())


def test_who_blocks_the_loop_is_named_to_other_profilers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The flush of another profiler says where the loop is, and so does its closing that was given up."""
    blocking = BlockingTransition("blocking")
    good = sc.trace(name="good", output_dir=tmp_path / "good", options=sc.Options(close_timeout=0.3))
    bad = sc.trace(name="bad", output_dir=tmp_path / "bad", backends=[blocking], options=sc.Options(close_timeout=5.0))
    good.start()
    bad.start()
    try:
        assert blocking.blocks.wait(30)
        with caplog.at_level(logging.WARNING, logger="stepscope"):
            assert not good.flush(0.2)
        assert any("'good' gave up" in text and "transition() at" in text for text in caplog.messages), caplog.messages
        good.close()
        assert any("blocked in transition() at" in note for note in good.diagnostics()), good.diagnostics()
    finally:
        blocking.free.set()
        bad.close()


def test_a_blocking_aclose_is_named(tmp_path: Path) -> None:
    """It blocks the loop at the deadline for closing: that is given up, and the note says where the loop is."""
    free = threading.Event()

    class Blocking(Closing):
        async def aclose(self) -> None:
            """Blocks, where it should wait."""
            free.wait(HANGS_S)

    with sc.trace(
        output_dir=tmp_path, backends=[Blocking("blocking")], options=sc.Options(close_timeout=0.3)
    ) as profiler:
        profiler.step()
    try:
        assert any("blocked in aclose() at" in note for note in profiler.diagnostics()), profiler.diagnostics()
    finally:
        free.set()
    while any(thread.name == "stepscope" for thread in threading.enumerate()):
        time.sleep(0.01)
    assert not profiler.statistics().given_up
