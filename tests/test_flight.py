"""The flight recorder: the last steps are kept at all times, and saved when something happens."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import stepscope as sc
from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime.errors import ProfilerStateError, TriggerError
from stepscope.runtime.events import Flag, Kind
from stepscope.runtime.flight.flight import FlightStatistics
from stepscope.runtime.flight.trigger import Evaluator, Finding, News
from stepscope.runtime.journal.reader import JournalReader
from tests.crashes import windows as read_windows
from tests.recording import run_program

QUIET = sc.Options(drain_interval=0.02, close_timeout=30)


class Profile:
    """A profiler that keeps steps, and what it gave to an exporter."""

    def __init__(self, output_dir: Path, *exporters: Any, **settings: Any) -> None:
        self.memory = sc.MemoryExporter()
        settings = {"steps": 3, "triggers": (), "cooldown": 0.0, **settings}
        self.profiler = sc.trace(
            keep_last=sc.FlightRecorder(**settings),
            exporters=[self.memory, *exporters],
            output_dir=output_dir,
            options=QUIET,
        )

    def steps(self, count: int, each: Callable[[int], object] = lambda _: None) -> None:
        """Runs steps with a span and a counter each."""
        for _ in range(count):
            number = self.profiler.step_num
            with sc.span("work", step=number):
                each(number)
            sc.counter("loss", float(number))
            self.profiler.step()

    @property
    def windows(self) -> list[list[int]]:
        """Numbers of the steps of each window that was saved."""
        assert self.profiler.flush()
        return [[step.number for step in window.steps] for window in self.memory.windows]

    @property
    def flight(self) -> FlightStatistics:
        """What the flight recorder counts."""
        pipeline = self.profiler.statistics().pipeline
        assert pipeline is not None and pipeline.flight is not None
        return pipeline.flight

    def facts(self, window: int = -1) -> Any:
        """Why a window was saved."""
        return self.memory.windows[window].metadata["flight"]

    def check_accounts(self) -> None:
        """After the end: all that was seen was accepted, or is named."""
        pipeline = self.profiler.statistics().pipeline
        assert pipeline is not None
        known = pipeline.windows
        for source, seen in known.seen.items():
            parts = (known.accepted, known.outside, known.late, known.superseded)
            assert seen == sum(part.get(source, 0) for part in parts)
        for outlet in pipeline.exporters:
            assert outlet.ledger.offered == outlet.ledger.exported + sum(outlet.ledger.dropped.values())


class When:
    """A user's trigger: fires after some steps."""

    name = "when"

    def __init__(self, *numbers: int, error: Exception | None = None) -> None:
        self.numbers = numbers
        self.error = error

    def evaluator(self) -> Evaluator:
        return self

    def look(self, news: News) -> Sequence[Finding]:
        if self.error is not None and len(news.steps):
            raise self.error
        return [
            Finding(at=int(end) - 1, value=int(number), text="as it was told")
            for number, end in zip(news.steps.numbers, news.steps.ends, strict=True)
            if number in self.numbers
        ]


def test_nothing_fires_nothing_is_written(output_dir: Path) -> None:
    """The run's directory stays empty, no exporter hears of anything, and the report says why."""
    profile = Profile(output_dir, triggers=(sc.NotFinite(),))
    with profile.profiler:
        profile.steps(20)
    assert not profile.memory.windows and not profile.memory.batches
    assert not list(output_dir.iterdir())
    assert any(note.startswith("nothing saved: of not_finite none fired") for note in profile.profiler.diagnostics())
    assert "flight    keeps" in str(profile.profiler.report())
    profile.check_accounts()


def test_call(output_dir: Path) -> None:
    """`save()` keeps what was recorded up to the call, in a journal of its own."""
    profile = Profile(output_dir)
    with profile.profiler as profiler:
        profile.steps(10)
        with sc.span("before the call"):
            pass
        assert profiler.save("odd loss / ../x")
        profile.steps(5)
        assert profile.windows == [[8, 9, 10]]
    (path,) = (output_dir / "windows").iterdir()
    assert path.name == "000000-step10-odd_loss_x.journal"
    (window,) = read_windows(path)
    assert window.metadata["flight"]["reason"] == "odd loss / ../x"
    assert window.metadata["flight"]["step"] == 10 and window.complete
    assert profile.memory.names(0, Kind.SPAN).count("work") == 2
    assert "before the call" in profile.memory.names(0)
    profile.check_accounts()


def test_an_int_is_enough(output_dir: Path) -> None:
    """`keep_last=2`: an exception that leaves the block is saved."""
    with pytest.raises(RuntimeError), sc.trace(keep_last=2, output_dir=output_dir) as profiler:
        for _ in range(6):
            with sc.span("forward"):
                pass
            profiler.step()
        with sc.span("backward"):
            raise RuntimeError("out of cheese")
    (path,) = (output_dir / "windows").iterdir()
    (window,) = read_windows(path)
    assert path.name == "000000-step6-raised.journal"
    assert [step.number for step in window.steps] == [5, 6]
    assert "saved: raised in step 6: RuntimeError: out of cheese" in window.diagnostics
    with JournalReader(path) as reader:
        spans = [batch.events[batch.events["kind"] == Kind.SPAN] for batch in reader if isinstance(batch, EventBatch)]
    assert any((block["flags"] & int(Flag.ERROR)).any() for block in spans)


async def test_exception_in_a_coroutine(output_dir: Path) -> None:
    """`async with` tells of it as well; a cancellation is no failure."""
    for error in (ValueError("mine"), asyncio.CancelledError()):
        profile = Profile(output_dir, triggers=(sc.Raised(),))
        with pytest.raises(type(error)):
            async with profile.profiler:
                profile.steps(4)
                await anyio.lowlevel.checkpoint()
                raise error
        assert len(profile.memory.windows) == isinstance(error, ValueError)


def test_caught(output_dir: Path) -> None:
    """An exception that was handled is told by `caught`; types that do not count are left."""
    profile = Profile(output_dir, triggers=(sc.Raised(only=(ValueError,)),))
    with profile.profiler as profiler:
        profile.steps(5)
        assert not profiler.caught(KeyError("x"))
        assert profiler.caught(ValueError("handled"))
        assert profile.windows == [[3, 4, 5]]
        assert profile.facts()["value"] == "ValueError"


def test_not_finite(output_dir: Path) -> None:
    """The step in which a counter became NaN is saved to its end, under the counter's name."""
    profile = Profile(output_dir, triggers=(sc.NotFinite(),))
    with profile.profiler:
        profile.steps(12, lambda number: sc.counter("norm", math.nan if number == 7 else 1.0))
        assert profile.windows == [[5, 6, 7]]
    facts = profile.facts()
    assert (facts["reason"], facts["step"], facts["value"]) == ("not_finite", 7, "nan")
    assert "'norm'" in facts["text"]
    assert json.loads(json.dumps(facts))  # for every output
    assert (output_dir / "windows" / "000000-step7-not_finite.journal").exists()


def test_slow_step(output_dir: Path) -> None:
    """A step that sleeps is found among quick ones."""
    profile = Profile(output_dir, triggers=(sc.SlowStep(least=0.3),))
    with profile.profiler:
        profile.steps(60, lambda number: time.sleep(0.6 if number == 40 else 0.001))
        # A loaded machine may make another step slow as well.
        assert 40 in [window[-1] for window in profile.windows]


def test_stalled(output_dir: Path) -> None:
    """Saved while the step hangs, its open spans marked; once, however long it hangs."""
    profile = Profile(output_dir, triggers=(sc.Stalled(factor=1, least=0.3),))
    with profile.profiler:
        profile.steps(10)
        with sc.span("hangs"), sc.span("inside"):
            deadline = time.monotonic() + 30
            while not profile.memory.windows and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.7)
        profile.profiler.step()
        assert profile.windows == [[8, 9, 10]]
    spans = profile.memory.events(0, Kind.SPAN)
    opened = spans[spans["flags"] & int(Flag.OPEN) != 0]
    assert len(opened) == 2
    assert profile.facts()["reason"] == "stalled" and profile.facts()["value"] >= 0.3
    profile.check_accounts()


def test_memory_high(output_dir: Path) -> None:
    """A limit that is exceeded saves at once, and once."""
    profile = Profile(output_dir, triggers=(sc.MemoryHigh(limit=1 << 20, interval=0),))
    with profile.profiler:
        profile.steps(5)
        profile.profiler.flush()
        profile.steps(5)
        assert len(profile.windows) == 1
    assert profile.facts()["reason"] == "memory_high"


def test_a_trigger_of_ones_own(output_dir: Path) -> None:
    """The protocol is two methods; what it found is in the metadata."""
    profile = Profile(output_dir, triggers=(When(4, 9),))
    with profile.profiler:
        profile.steps(12)
        assert profile.windows == [[2, 3, 4], [7, 8, 9]]
    assert profile.facts()["value"] == 9


def test_a_trigger_that_raises_costs_nothing_else(output_dir: Path) -> None:
    """It is counted, named, and raised when asked for; the others go on."""
    profile = Profile(output_dir, triggers=(When(error=ZeroDivisionError("bad trigger")), sc.NotFinite()))
    with profile.profiler as profiler:
        profile.steps(5)
        sc.counter("loss", math.inf)
        profile.steps(2)
        assert profile.windows == [[3, 4, 5]]
        assert any(note.startswith("triggers failed") for note in profiler.diagnostics())
        with pytest.raises(ExceptionGroup) as raised:
            profiler.raise_errors()
    assert raised.group_contains(TriggerError, match="bad trigger")


class Wild:
    """A user's trigger that does what none should."""

    name = "wild"

    def __init__(self) -> None:
        self.looks = 0

    def evaluator(self) -> Evaluator:
        return self

    def look(self, news: News) -> Sequence[Finding]:
        self.looks += 1
        if self.looks == 2:
            raise asyncio.CancelledError
        if self.looks == 3:
            return None  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
        if self.looks == 4:
            return [Finding(at=1 << 80, text="\udc80" * 5000), Finding(at=-5), Finding(at=math.nan)]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return []


def test_a_wild_trigger_disturbs_nobody(output_dir: Path) -> None:
    """Times of never, text that cannot be written, cancellations: the run goes on and ends in time."""
    profile = Profile(output_dir, triggers=(Wild(), When(30)))
    with profile.profiler as profiler:
        for _ in range(8):
            profile.steps(5)
            assert profiler.flush()
        began = time.monotonic()
    assert time.monotonic() - began < 20
    assert [30] in [window[-1:] for window in [[s.number for s in w.steps] for w in profile.memory.windows]]
    assert profile.flight.triggers.errors == 3
    profile.check_accounts()


def test_odd_reasons(output_dir: Path) -> None:
    """Whatever is said, it does not raise, is cut, and never leaves the directory."""
    profile = Profile(output_dir)
    with profile.profiler as profiler:
        for reason in ("", "../../etc/passwd", "x" * 10_000_000, "\udc80\0/\n", 7, None):
            profile.steps(1)
            assert profiler.save(reason)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert profiler.flush()
    names = sorted(path.name.split("-", 2)[2] for path in (output_dir / "windows").iterdir())
    said = ["7", "call", "etc_passwd", "none", "udc80", "x" * 40]
    assert names == [f"{reason}.journal" for reason in said]
    assert sorted(path.name for path in output_dir.iterdir()) == ["windows"]


class Unspeakable(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_without_words(output_dir: Path) -> None:
    """The exception that left the block is the one that the caller gets."""
    with pytest.raises(Unspeakable), Profile(output_dir, triggers=(sc.Raised(),)).profiler as profiler:
        profiler.step()
        raise Unspeakable
    assert len(list((output_dir / "windows").iterdir())) == 1


def test_a_program_that_fails_without_a_block(output_dir: Path) -> None:
    """With `start()` alone, the exception that ends the program is saved at its exit."""
    program = f"""
import stepscope as sc
profiler = sc.trace(keep_last=2, output_dir={str(output_dir)!r})
profiler.start()
for _ in range(5):
    profiler.step()
raise ValueError("the end")
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: the end\n")
    (path,) = (output_dir / "windows").iterdir()
    assert path.name == "000000-step5-raised.journal"


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
        with pytest.raises(ExceptionGroup, match="kept"):
            profiler.raise_errors()
    assert profile.memory.names(0, Kind.INSTANT).count("tick") == 20_000
    (path,) = (output_dir / "windows").glob("*.journal")
    assert path.name == "000001-step8-again.journal" and len(read_windows(path)) == 1


def test_cool_down(output_dir: Path) -> None:
    """The same trigger does not save again so soon; it is counted and said. Another one does."""
    profile = Profile(output_dir, triggers=(When(*range(5, 40)),), cooldown=3600.0)
    with profile.profiler as profiler:
        profile.steps(50)
        assert profile.windows == [[3, 4, 5]]
        assert profile.flight.triggers.suppressed == {"cooldown": {"when": 34}}
        profiler.save("by hand")
        assert profile.windows[1] == [48, 49, 50]
        profiler.save("by hand")
        assert len(profile.windows) == 2
    assert any("when 34 times" in note for note in profile.memory.windows[1].diagnostics)
    assert any(note.startswith("not saved (cooldown)") for note in profile.profiler.diagnostics())


def test_cool_down_in_steps(output_dir: Path) -> None:
    """Ten steps must pass."""
    profile = Profile(output_dir, triggers=(When(*range(5, 40)),), cooldown_steps=10, steps=1)
    with profile.profiler:
        profile.steps(40)
        assert profile.windows == [[5], [15], [25], [35]]


def test_cap_on_windows(output_dir: Path) -> None:
    """No more than so many are saved; the rest is counted."""
    profile = Profile(output_dir, triggers=(When(*range(100)),), max_windows=2, steps=1)
    with profile.profiler:
        profile.steps(20)
        assert len(profile.windows) == 2
    assert profile.flight.triggers.suppressed == {"max_windows": {"when": 18}}


def test_triggers_in_consecutive_steps(output_dir: Path) -> None:
    """Every step is saved once: the windows follow one another."""
    profile = Profile(output_dir, triggers=(When(*range(5, 10)),))
    with profile.profiler:
        profile.steps(15)
        assert profile.windows == [[3, 4, 5], [6], [7], [8], [9]]
    assert profile.memory.names(kind=Kind.SPAN).count("work") == 7
    profile.check_accounts()


def test_a_trigger_while_steps_follow(output_dir: Path) -> None:
    """One during `after` is another reason of the window that is open."""
    profile = Profile(output_dir, triggers=(When(5, 6),), after=3)
    with profile.profiler:
        profile.steps(15)
        assert profile.windows == [[3, 4, 5, 6, 7, 8]]
    assert [cause["value"] for cause in profile.facts()["also"]] == [6]
    assert sum(note.startswith("saved: ") for note in profile.memory.windows[0].diagnostics) == 2
    assert profile.flight.triggers.joined == {"when": 1}


def test_first_step(output_dir: Path) -> None:
    """There is no more to save than there is."""
    profile = Profile(output_dir, triggers=(When(0),))
    with profile.profiler:
        profile.steps(5)
        assert profile.windows == [[0]]


def test_closing_with_a_trigger_pending(output_dir: Path) -> None:
    """What fired is saved before the end, short of the steps that were to follow."""
    profile = Profile(output_dir, triggers=(When(4),), after=100)
    with profile.profiler:
        profile.steps(8)
        profile.profiler.save()
    (window,) = profile.memory.windows
    assert [step.number for step in window.steps] == [2, 3, 4, 5, 6, 7]
    assert not window.complete
    profile.check_accounts()


def test_loops_that_never_step(output_dir: Path) -> None:
    """Bounded by bytes, and said; what is there can be saved."""
    profile = Profile(output_dir, max_bytes=1 << 20)
    with profile.profiler as profiler:
        for number in range(60_000):
            sc.instant("tick", number=number)
        assert profiler.flush()
        assert profile.flight.kept.peak_bytes <= 1 << 20
        profiler.save()
        assert profile.windows == [[0]]
    (window,) = profile.memory.windows
    assert any("max_bytes" in note for note in window.diagnostics)
    numbers = [int(str(given["number"])) for given in profile.memory.arguments(0) if "number" in given]
    # Exactly the last ones, without a hole.
    assert sorted(numbers) == list(range(60_000 - len(numbers), 60_000))
    assert any(note.startswith("kept too short") for note in profiler.diagnostics())
    assert any(note.startswith("never stepped") for note in profiler.diagnostics())
    profile.check_accounts()


def test_thousands_of_steps_in_bounded_memory(output_dir: Path) -> None:
    """What is kept does not grow with the run, and files neither."""
    profile = Profile(output_dir, steps=10, keep_newest=2, keep_slowest=1, max_bytes=1 << 20)
    with profile.profiler as profiler:
        for round_ in range(40):
            profile.steps(250)
            assert profiler.flush()
            profiler.save(f"round {round_}")
        assert len(profile.windows) == 40
        assert profile.flight.kept.peak_bytes <= 1 << 20
        assert profile.flight.kept.bytes < 1 << 19
        assert profile.flight.steps_kept <= 11
        assert len(list((output_dir / "windows").iterdir())) <= 3
    profile.check_accounts()


def test_newest_and_slowest_are_kept(output_dir: Path) -> None:
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
        with pytest.raises(ProfilerStateError, match="no file any more"):
            windows[0].export(output_dir / "late.json")
        assert windows[5].export(output_dir / "newest.json").exists()
    saved = sorted(path.name.partition("-")[0] for path in (output_dir / "windows").iterdir())
    assert saved == ["000001", "000004", "000005"]
    assert sorted(path.name for path in output_dir.glob("w*.json")) == ["w1.json", "w4.json", "w5.json"]
    assert len(list(board.glob("*.pt.trace.json"))) == 3
    for path in output_dir.glob("*.json"):
        json.loads(path.read_text())
    assert profile.flight.windows_deleted == 3


def test_a_files_name_that_is_taken(output_dir: Path) -> None:
    """Another run's window is left alone."""
    for _ in range(2):
        profile = Profile(output_dir, keep_newest=1, keep_slowest=0)
        with profile.profiler as profiler:
            profile.steps(2)
            profiler.save("same")
    names = sorted(path.name for path in (output_dir / "windows").iterdir())
    assert names == ["000000-step2-same-2.journal", "000000-step2-same.journal"]


def test_callbacks_export(output_dir: Path) -> None:
    """`on_trace_ready` gets saved windows as any other, and can export them."""
    ready: list[Path] = []

    def export(window: Window) -> None:
        ready.append(window.export(output_dir / f"{window.index}.json"))

    with sc.trace(
        keep_last=2,
        output_dir=output_dir,
        options=QUIET,
        on_trace_ready=export,
    ) as profiler:
        for _ in range(5):
            with sc.span("work"):
                pass
            profiler.step()
        profiler.save()
        assert profiler.flush()
    (path,) = ready
    assert {event["name"] for event in json.loads(path.read_text())} >= {"work", "ProfilerStep#4"}


def test_pause_and_resume(output_dir: Path) -> None:
    """What happened in a pause is not recorded, the pause is, and no watchdog barks in it."""
    profile = Profile(output_dir, triggers=(sc.Stalled(factor=1, least=0.2),))
    with profile.profiler as profiler:
        profile.steps(5)
        profiler.pause()
        profile.steps(1)
        time.sleep(0.6)
        profiler.resume()
        profile.steps(1)
        profiler.save()
        assert profile.windows == [[5, 6, 7]]
    assert profile.memory.names(0, Kind.SPAN).count("work") == 1
    assert "paused" in profile.memory.names(0, Kind.GAP)


def test_stop_and_start(output_dir: Path) -> None:
    """After stop() nothing is saved; after start() it goes on."""
    profile = Profile(output_dir)
    with profile.profiler as profiler:
        profile.steps(5)
        profiler.stop()
        assert not profiler.save()
        profiler.start()
        profile.steps(5)
        assert profiler.save()
        assert profile.windows == [[8, 9, 10]]
    profile.check_accounts()


def test_without_keep_last(output_dir: Path) -> None:
    """A profiler that keeps nothing has nothing to save; it says so, and does not raise."""
    with sc.trace(output_dir=output_dir) as profiler:
        assert not profiler.save()
        assert not profiler.caught(ValueError())


def test_beside_a_profiler_with_a_schedule(output_dir: Path) -> None:
    """Both get what they asked for, whatever the other does."""
    profile = Profile(output_dir / "flight")
    other = sc.MemoryExporter()
    scheduled = sc.trace(
        schedule=sc.schedule(wait=2, warmup=0, active=2, repeat=2),
        exporters=[other],
        output_dir=output_dir / "other",
        options=QUIET,
    )
    with profile.profiler as profiler, scheduled:
        profile.steps(10, lambda _: scheduled.step())
        profiler.save()
        assert profile.windows == [[8, 9, 10]]
        profile.steps(2, lambda _: scheduled.step())
    assert [[step.number for step in window.steps] for window in other.windows] == [[2, 3], [6, 7]]
    profile.check_accounts()


def test_two_flight_recorders(output_dir: Path) -> None:
    """Each keeps its own steps."""
    one, two = Profile(output_dir / "one"), Profile(output_dir / "two", steps=1)
    with one.profiler, two.profiler:
        one.steps(6, lambda _: two.profiler.step())
        one.profiler.save()
        two.profiler.save()
        assert (one.windows, two.windows) == ([[4, 5, 6]], [[6]])


def test_signal_handler(output_dir: Path) -> None:
    """`save()` in a handler, in the middle of anything."""
    profile = Profile(output_dir)

    def handler(number: int, frame: object) -> None:
        profile.profiler.save("SIGUSR1")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with profile.profiler:
            profile.steps(5, lambda number: os.kill(os.getpid(), signal.SIGUSR1) if number == 4 else None)
            assert profile.windows == [[2, 3, 4]]
    finally:
        signal.signal(signal.SIGUSR1, before)


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
    """It is given out as fast as exporters take it, so that nothing is dropped."""
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
    (ledger,) = [outlet.ledger for outlet in pipeline.exporters if outlet.name == "slow"]
    assert not ledger.dropped and ledger.exported == slow.events >= 90_000


def test_fork(output_dir: Path) -> None:
    """A child keeps nothing of its parent's, saves nothing, and disturbs nothing."""
    (told,) = run_program(
        f"""
        import stepscope as sc
        profiler = sc.trace(keep_last=3, output_dir={str(output_dir)!r})
        profiler.start()
        for _ in range(5):
            with span("work"): pass
            profiler.step()
        profiler.flush()
        child = os.fork()
        if not child:
            files = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd") if
                     os.path.lexists(f"/proc/self/fd/{{fd}}")]
            saved = profiler.save()
            profiler.step()
            os._exit(7 if saved or any("kept-" in name for name in files) else 0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        profiler.save("parent")
        profiler.close()
        tell([code, sorted(os.listdir({str(output_dir / "windows")!r}))])
        """
    )
    assert told == [0, ["000000-step5-parent.journal"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"keep_last": 3, "schedule": sc.schedule(wait=0, warmup=0, active=1)}, "takes no schedule"),
        ({"keep_last": 0}, "FlightRecorder.steps is 0"),
        ({"keep_last": True}, "number of steps"),
        ({"keep_last": 2.5}, "number of steps"),
        ({"keep_last": 3, "backends": [sc.TorchBackend("kineto")]}, "mode='stream'"),
        ({"keep_last": 3, "backends": [sc.TorchBackend(profile_memory=True)]}, "mode='stream'"),
    ],
)
def test_misuse(arguments: dict[str, Any], words: str) -> None:
    """What does not fit together is refused when the profiler is made."""
    with pytest.raises((TypeError, ValueError), match=words):
        sc.trace(**arguments)


def test_full_session_directory(small_disk: Path, output_dir: Path) -> None:
    """Where the rings' file system is full, steps are kept on the heap; it is counted, said, and works."""
    (told,) = run_program(
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
        heap = profiler.statistics().pipeline.flight.kept.heap_bytes
        said = any("not safe from a kill" in note for note in profiler.diagnostics())
        profiler.save("full")
        profiler.close()
        tell([heap > 0, said])
        """,
        options=f"ring_slots=1024, session_dir={str(small_disk)!r}",
    )
    assert told == [True, True]
    (path,) = (output_dir / "windows").iterdir()
    assert [step.number for window in read_windows(path) for step in window.steps] == [18, 19, 20]
