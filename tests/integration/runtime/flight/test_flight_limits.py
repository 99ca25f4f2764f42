"""The flight recorder keeps and saves no more than it may, whatever fires and however full the disk is."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import stepscope as sc
from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.flight.trigger_watch import MAX_FINDINGS
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News
from tests.support.flight_recording import Profile, When
from tests.support.killed_programs import windows as read_windows
from tests.support.messages import refused
from tests.support.recording import run_program


def test_cool_down(output_dir: Path) -> None:
    """The same trigger does not save again so soon; it is counted and reported. Another one does."""
    profile = Profile(output_dir, triggers=(When(*range(5, 40)),), cooldown=3600.0)
    with profile.profiler as profiler:
        profile.steps(50)
        assert profile.windows == [[3, 4, 5]]
        assert profile.flight.triggers.suppressed == {"cooldown": {"when": 34}}
        profiler.save("by hand")
        assert profile.windows[1] == [48, 49, 50]
        profiler.save("by hand")
        assert len(profile.windows) == 2
    assert any(note.startswith("not saved (cooldown)") for note in profile.profiler.diagnostics())


def test_a_value_twice_as_bad_does_not_wait_for_the_cool_down(output_dir: Path) -> None:
    """A small thing that fires first does not hide the one that matters."""
    profile = Profile(output_dir, triggers=(sc.triggers.SlowStep(warmup=5, least=0.02),), cooldown=3600.0)
    with profile.profiler as profiler:
        for step in range(30):
            time.sleep({10: 0.2, 15: 0.22, 20: 1.0}.get(step, 0))
            profiler.step()
        profiler.flush()
        assert [window[-1] for window in profile.windows] == [10, 20]


def test_steps_after_the_trigger_are_saved_at_the_end_of_the_run(output_dir: Path) -> None:
    """The marks of the last steps are on their way when the run ends; they are waited for."""
    profile = Profile(output_dir, triggers=(), steps=3, after=3)
    with profile.profiler as profiler:
        for step in range(30):
            profiler.step()
            if step == 20:
                profiler.save()
                profiler.flush()
    (window,) = profile.memory.windows
    assert [step.number for step in window.steps] == [19, 20, 21, 22, 23, 24] and window.complete


@pytest.mark.parametrize(
    ("settings", "saved", "suppressed"),
    [
        ({"cooldown_steps": 10}, [[0], [10], [20], [30]], {"cooldown": {"when": 36}}),
        ({"max_windows": 2}, [[0], [1]], {"max_windows": {"when": 38}}),
    ],
)
def test_no_more_windows_than_may_be(settings: Any, saved: list[list[int]], suppressed: Any, output_dir: Path) -> None:
    """So many steps must pass, or so many windows are saved; the rest is counted."""
    profile = Profile(output_dir, triggers=(When(*range(100)),), steps=1, **settings)
    with profile.profiler:
        profile.steps(40)
        assert profile.windows == saved
    assert profile.flight.triggers.suppressed == suppressed


def test_loops_that_never_step(output_dir: Path) -> None:
    """Bounded by bytes, and reported; what is there can be saved."""
    profile = Profile(output_dir, max_bytes=1 << 20)
    with profile.profiler as profiler:
        for number in range(60_000):
            sc.instant("tick", number=number)
        assert profiler.flush()
        assert profile.flight.retained.peak_bytes <= 1 << 20
        profiler.save()
        assert profile.windows == [[0]]
    (window,) = profile.memory.windows
    assert any("max_bytes" in note for note in window.diagnostics)
    numbers = [int(str(arguments["number"])) for arguments in profile.memory.arguments(0) if "number" in arguments]
    # Exactly the last ones, without a hole.
    assert sorted(numbers) == list(range(60_000 - len(numbers), 60_000))
    assert any(note.startswith("kept too short") for note in profiler.diagnostics())
    assert any(note.startswith("never stepped") for note in profiler.diagnostics())
    profile.check_accounts()


def test_thousands_of_steps_in_bounded_memory(output_dir: Path) -> None:
    """Neither memory nor files grow with the run."""
    profile = Profile(output_dir, steps=10, keep_newest=2, keep_slowest=1, max_bytes=1 << 20)
    with profile.profiler as profiler:
        for round_ in range(40):
            profile.steps(250)
            assert profiler.flush()
            profiler.save(f"round {round_}")
        assert len(profile.windows) == 40
        assert profile.flight.retained.peak_bytes <= 1 << 20
        assert profile.flight.retained.bytes < 1 << 19
        assert profile.flight.steps_retained <= 11
        assert len(list((output_dir / "windows").iterdir())) <= 3
    profile.check_accounts()


def test_newest_and_slowest_stay(output_dir: Path) -> None:
    """Everything else is deleted, in each exporter that has files by window; a file of all windows is left."""
    each, board, all_ = output_dir / "w{window}.json", output_dir / "board", output_dir / "all.json"
    exporters = [sc.ChromeTraceExporter(each), sc.tensorboard_trace_handler(board), sc.ChromeTraceExporter(all_)]
    profile = Profile(output_dir, *exporters, steps=1, keep_newest=2, keep_slowest=1)
    with profile.profiler as profiler:
        for number in range(6):
            profile.steps(1, lambda _: time.sleep(0.05))
            if number == 1:
                time.sleep(1.0)
            profiler.save(f"n{number}")
            assert profiler.flush()
        windows = profile.memory.windows
        with refused(ProfilerStateError, "window 0"):
            windows[0].export(output_dir / "late.json")
        assert windows[5].export(output_dir / "newest.json").exists()
    saved = sorted(path.name.partition("-")[0] for path in (output_dir / "windows").iterdir())
    assert saved == ["000001", "000004", "000005"]
    assert sorted(path.name for path in output_dir.glob("w*.json")) == ["w1.json", "w4.json", "w5.json"]
    assert len(list(board.glob("*.pt.trace.json"))) == 3
    for path in output_dir.glob("*.json"):
        json.loads(path.read_text())
    assert profile.flight.windows_deleted == 3


def test_a_storm_of_calls(output_dir: Path) -> None:
    """From many threads at once: bounded, counted, and no step is saved twice."""
    profile = Profile(output_dir, keep_newest=4, keep_slowest=0)
    with profile.profiler as profiler:
        stop = threading.Event()

        def call(number: int) -> None:
            while not stop.is_set():
                profiler.save(f"thread {number}")
                time.sleep(0.0001)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        profile.steps(200, lambda _: time.sleep(0.001))
        stop.set()
        for thread in threads:
            thread.join()
        assert profiler.flush()
        assert len(list((output_dir / "windows").iterdir())) <= 4
    triggers = profile.flight.triggers
    suppressed = sum(sum(reasons.values()) for reasons in triggers.suppressed.values())
    assert sum(triggers.fired.values()) == triggers.windows + sum(triggers.joined.values()) + suppressed
    ids = profile.memory.events(kind=Kind.SPAN)["id"]
    whole = profile.memory.events(kind=Kind.SPAN)["flags"] & int(Flag.CLIPPED | Flag.OPEN) == 0
    assert len(set(ids[whole & (ids != 0)].tolist())) == int((whole & (ids != 0)).sum())
    profile.check_accounts()


class Endless:
    """A trigger that finds more than anybody can look at, and says too much of each."""

    name = "endless"

    def evaluator(self) -> Any:
        return self

    def look(self, news: News) -> Iterator[Finding]:
        while True:
            yield Finding(at=news.now, at_once=True, value="v" * 100_000, text="t" * 100_000)


class Greedy:
    """The same as a list, so that it can be counted."""

    name = "greedy"

    def evaluator(self) -> Evaluator:
        return self

    def look(self, news: News) -> list[Finding]:
        return [Finding(at=news.now)] * (MAX_FINDINGS + 10)


def test_triggers_that_find_too_much(output_dir: Path) -> None:
    """The loop looks at so many and goes on; the rest is counted, and what is written of one is short."""
    profile = Profile(output_dir, triggers=(Endless(), Greedy()), cooldown=3600.0)
    with profile.profiler as profiler:
        for _ in range(3):
            profile.steps(2)
            assert profiler.flush()
        assert profile.windows
    assert all(len(json.dumps(window.metadata)) < 1_000_000 for window in profile.memory.windows)
    counts = profile.flight.triggers
    assert counts.suppressed["too many"]["greedy"] % 10 == 0 and "endless" not in counts.suppressed["too many"]
    suppressed = sum(sum(reasons.values()) for reasons in counts.suppressed.values())
    assert sum(counts.fired.values()) == counts.windows + sum(counts.joined.values()) + suppressed
    profile.check_accounts()


class Slow:
    """An exporter that takes its time for each batch."""

    name = "slow"

    def __init__(self) -> None:
        self.events = 0

    async def open(self, run: Run) -> None:
        pass

    async def export(self, batch: EventBatch) -> None:
        await anyio.sleep(0.02)
        self.events += len(batch)

    async def close_window(self, window: Window) -> None:
        pass

    async def aclose(self) -> None:
        pass


def test_a_save_is_larger_than_the_queues(output_dir: Path) -> None:
    """It is exported as fast as exporters take it, so that nothing is dropped."""
    slow = Slow()
    profiler = sc.trace(
        keep_last=sc.FlightRecorder(steps=5, triggers=(), max_bytes=16 << 20),
        exporters=[slow],
        output_dir=output_dir,
        options=sc.Options(drain_interval=0.02, close_timeout=30, queue_bytes=2 << 20),
    )
    with profiler:
        for _ in range(3):
            for _ in range(30_000):
                sc.instant("tick")
            profiler.flush()
            profiler.step()
        profiler.save()
        assert profiler.flush(timeout=60)
        pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    (ledger,) = [output.ledger for output in pipeline.exporters if output.name == "slow"]
    assert not ledger.dropped and ledger.exported == slow.events >= 90_000


def test_full_session_directory(small_disk: Path, output_dir: Path) -> None:
    """Where the rings' file system is full, steps are stored on the heap; it is counted, reported, and works."""
    (report,) = run_program(
        f"""
        import stepscope as sc
        place = {str(small_disk)!r}
        profiler = sc.trace(keep_last=3, output_dir={str(output_dir)!r})
        profiler.start()
        with open(place + "/rest", "wb", 0) as rest:
            try:
                while True: rest.write(bytes(4096))
            except OSError: pass
        for _ in range(20):
            for _ in range(500): sc.instant("tick")
            profiler.flush()
            profiler.step()
        profiler.flush()
        heap = profiler.statistics().pipeline.flight.retained.heap_bytes
        warned = any("not safe from a kill" in note for note in profiler.diagnostics())
        profiler.save("full")
        profiler.close()
        print_json([heap > 0, warned])
        """,
        options=f"ring_slots=1024, session_dir={str(small_disk)!r}",
    )
    assert report == [True, True]
    (path,) = (output_dir / "windows").iterdir()
    assert [step.number for window in read_windows(path) for step in window.steps] == [18, 19, 20]


def test_a_full_disk_while_saving(small_disk: Path) -> None:
    """The window's file is cut, counted and not called whole; the other exporter gets everything; the next one fits."""
    output_dir = small_disk / "run"
    profile = Profile(output_dir, steps=2)
    with profile.profiler as profiler:
        profile.steps(3)
        ballast = small_disk / "ballast"
        with ballast.open("wb", 0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        for _ in range(20_000):
            sc.instant("tick")
        profiler.save("full")
        assert profiler.flush()
        ballast.unlink()
        profile.steps(5)
        profiler.save("again")
        assert len(profile.windows) == 2
        with refused(ExceptionGroup, "stepscope", snapshot=False):  # how many errors is the disk's
            profiler.raise_errors()
    assert profile.memory.names(0, Kind.INSTANT).count("tick") == 20_000
    (path,) = (output_dir / "windows").glob("*.journal")
    assert path.name == "000001-step8-again.journal" and len(read_windows(path)) == 1
