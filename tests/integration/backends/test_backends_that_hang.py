"""A backend that does not return costs neither other backends their closing nor other profilers a word; like one that fails, it
has what it did not deliver counted as missing."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.analysis.page.render import report_html
from stepscope.control import WindowDetail, WindowRequest
from stepscope.runtime.schedule.action import ProfilerAction
from tests.support.basics import poll
from tests.support.commands import stepscope

HANGS_S = 60.0
HUNG = TimeoutError("never raised")


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


class Failing(Closing):
    """Fails in one of its methods, or hangs in `aclose`. It has delivered everything up to the first stop, if that is `known`."""

    def __init__(self, how: str, error: BaseException, *, known: bool = False) -> None:
        super().__init__("failing", HANGS_S if how == "hang" else 0.0)
        self.how, self._error, self._known = how, error, known
        self.failed = threading.Event()
        """Set when a transition has failed."""

    def open(self, sink: sc.backends.Sink) -> None:
        """Keeps the sink, or has a coroutine run that fails."""
        self._sink = sink
        if self.how == "run_soon":
            sink.run_soon(self._fail)

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """Fails where recording begins, or where it ends."""
        if self._known and not after.records:
            self._sink.watermark(at)
        if self.how == ("begin" if after.records else "end"):
            self.failed.set()
            raise self._error

    async def aclose(self) -> None:
        """Hangs, or fails."""
        await super().aclose()
        if self.how == "aclose":
            raise self._error

    async def _fail(self) -> None:
        await asyncio.sleep(0.05)  # until it records
        raise self._error


def answers(profiler: sc.Profiler, run: Path) -> tuple[str, str, str]:
    """The report, the line on trust, which the page has too, and the state of the only window."""
    assert not profiler.audit() and not profiler.statistics().timed_out
    (window,) = json.loads(stepscope("windows", run, "--json", cwd=run).stdout)
    answer = profiler.explain()
    assert set(answer.missing) == ({"failing"} if "missing" in answer.trust else set())
    assert answer.trust in report_html(run)
    return str(profiler.report()), answer.trust, window["state"]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("hang", HUNG),
        ("aclose", RuntimeError("mine")),
        ("aclose", SystemExit(3)),
        ("begin", ValueError("mine")),
        ("end", ValueError("mine")),
        ("run_soon", ValueError("mine")),
    ],
)
def test_undelivered_events_of_one_that_fails_are_missing(how: str, error: BaseException, tmp_path: Path) -> None:
    """The report, the answer and the window agree on it."""
    backend, options = Failing(how, error), sc.Options(close_timeout=0.5 if how == "hang" else 30.0)
    with sc.trace(output_dir=tmp_path, backends=[backend], options=options) as profiler:
        time.sleep(0.1)
        profiler.step()
    report, trust, state = answers(profiler, tmp_path)
    call = {"hang": "aclose", "begin": "transition", "end": "transition"}.get(how, how)
    assert report.count("missing   failing: ") == 1 and f"not all of it, as {call}() failed" in report
    assert "dropped   nothing\n" not in report and "accounts  balanced\n" not in report
    assert "none dropped, " in trust and "s of failing missing" in trust
    assert state == "incomplete"


def test_a_backend_that_fails_after_its_last_event_lacks_nothing(tmp_path: Path) -> None:
    """Its watermark is at the end."""
    with sc.trace(output_dir=tmp_path, backends=[Failing("aclose", OSError("mine"), known=True)]) as profiler:
        profiler.step()
    report, trust, state = answers(profiler, tmp_path)
    assert "OSError: mine" in report and "dropped   nothing\n" in report and "accounts  balanced\n" in report
    assert trust.endswith("none dropped.") and state == ""


def test_a_begin_that_failed_leaves_the_next_recording_complete(tmp_path: Path) -> None:
    """A failure counts until the next change: a recording that begins well is whole."""
    memory, backend = sc.exporters.MemoryExporter(), Failing("begin", OSError("mine"), known=True)
    schedule = sc.schedule(wait=1, warmup=0, active=1, repeat=2)
    with sc.trace(output_dir=tmp_path, schedule=schedule, backends=[backend], exporters=[memory]) as profiler:
        for step in range(4):
            with sc.span("work"):
                time.sleep(0.001)
            if step == 1:
                assert backend.failed.wait(60)
                backend.how = ""
            profiler.step()
    first, second = memory.windows
    assert not first.complete and first.ledger.sources["failing"].missing
    assert second.complete and "failing" not in second.ledger.sources, second


class Blocking(Closing):
    """Blocks its thread in one of its methods, until it is freed."""

    def __init__(self, method: str) -> None:
        super().__init__(f"blocking in {method}")
        self.blocks, self.free = threading.Event(), threading.Event()
        self._method = method

    def open(self, sink: sc.backends.Sink) -> None:
        """Blocks, or has a coroutine run that does."""
        self._block("open")
        sink.run_soon(self._work)

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """Blocks."""
        self._block("transition")

    def set_detail(self, detail: object) -> None:
        """Blocks."""
        self._block("set_detail")

    async def aclose(self) -> None:
        """Blocks, where it should wait."""
        self._block("aclose")
        self.closed = True

    async def _work(self) -> None:
        self._block("run_soon")

    def _block(self, method: str) -> None:
        if method == self._method:
            self.blocks.set()
            assert self.free.wait(HANGS_S)


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_backend_that_hangs_in_aclose_leaves_no_other_open(stubborn: bool, tmp_path: Path) -> None:
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
    assert not profiler.statistics().timed_out and not profiler.audit()


async def test_backends_are_closed_although_the_time_for_it_was_over(tmp_path: Path) -> None:
    """One blocks its thread at the end of recording for longer than it has for closing: it is closed afterwards."""
    late, good = Closing("late", blocks_start=0.8), Closing("good")
    with sc.trace(output_dir=tmp_path, backends=[late, good], options=sc.Options(close_timeout=1.0)) as profiler:
        profiler.step()
    assert good.closed and not profiler.statistics().timed_out
    assert any("'late'" in note and "blocks its thread in transition() at" in note for note in profiler.diagnostics())
    await poll(lambda: late.closed)
    await poll(lambda: not any(thread.name == "stepscope late" for thread in threading.enumerate()))


@pytest.mark.parametrize("method", ["open", "transition", "set_detail", "run_soon", "aclose"])
async def test_a_blocking_backend_delays_no_other_profiler(method: str, tmp_path: Path) -> None:
    """Meanwhile another profiler opens, delivers its windows, answers and closes; the first one closes in time."""
    blocking = Blocking(method)
    memory = sc.exporters.MemoryExporter()
    options = sc.Options(close_timeout=0.3, start_timeout=0.3)
    bad = sc.trace(
        name="bad",
        output_dir=tmp_path / "bad",
        backends=[blocking],
        control=sc.control.Control(),
        options=options,
    )
    good = sc.trace(
        name="good",
        schedule=sc.schedule(wait=0, warmup=0, active=1),
        output_dir=tmp_path / "good",
        exporters=[memory],
    )
    try:
        if method == "open":
            with pytest.raises(sc.errors.BackendError, match="backend 'blocking in open' has not returned"):
                bad.start()
        else:
            bad.start()
        if method in ("transition", "set_detail"):
            assert bad.arm(WindowRequest(start_step=1, steps=1, detail=WindowDetail(every=0)))
            bad.step()
        if method == "aclose":
            bad.close()
        assert blocking.blocks.wait(30)
        with good:
            for _ in range(3):
                with sc.span("work"):
                    pass
                good.step()
            assert good.flush(10)
            assert [memory.names(number).count("work") for number in range(3)] == [1, 1, 1]
        bad.close()
        assert not blocking.free.is_set() and not blocking.closed
        assert not bad.statistics().timed_out and not good.statistics().timed_out
        called = "_work" if method == "run_soon" else method
        assert any(f"blocks its thread in {called}() at" in note for note in bad.diagnostics()), bad.diagnostics()
    finally:
        blocking.free.set()
        bad.close()
    await poll(lambda: not any(thread.name.startswith("stepscope") for thread in threading.enumerate()))
    good.raise_errors()
