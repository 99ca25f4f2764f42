"""Several profilers at once: each gets exactly what its own calls ask for, whatever the others do."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepscope as sc
from stepscope.runtime.events.record import Kind
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import Schedule

SCHEDULES: tuple[Callable[[], Schedule | None], ...] = (
    lambda: None,
    lambda: sc.schedule(wait=1, warmup=0, active=2),
    lambda: sc.schedule(wait=1, warmup=1, active=1, repeat=2),
    lambda: sc.schedule(wait=0, warmup=0, active=1),
)
CALLS = ("start", "step", "step", "step", "pause", "resume", "flush", "stop", "close")


class Model:
    """The events of a profiler that runs alone: every tick while it runs, is not paused, and its step records."""

    def __init__(self, schedule: Schedule | None) -> None:
        self.schedule = schedule
        self.state = "new"
        self.step_number = self.pauses = 0
        self.ticks: list[str] = []

    def call(self, name: str) -> bool:
        """Follows a call; False if it would raise."""
        if name == "start":
            if self.state in ("running", "closed"):
                return False
            self.state = "running"
        elif name == "close":
            self.state, self.pauses = "closed", 0
        elif name == "stop":
            if self.state == "new":
                return False
            self.state = "stopped" if self.state == "running" else self.state
            self.pauses = 0
        elif self.state == "running":
            if name == "step":
                self.step_number += 1
            elif name == "pause":
                self.pauses += 1
            elif name == "resume" and self.pauses:
                self.pauses -= 1
        return True

    def tick(self, name: str) -> None:
        """Something happens."""
        action = ProfilerAction.RECORD if self.schedule is None else self.schedule(self.step_number)
        if self.state == "running" and not self.pauses and action.records:
            self.ticks.append(name)


Call = tuple[int, int, str]
"""Number of the profiler, number of the thread, and what it calls."""


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    chosen=st.lists(st.sampled_from(range(len(SCHEDULES))), min_size=1, max_size=4),
    calls=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from(CALLS)), max_size=40),
)
def test_interleaved_profilers_record_as_each_would_alone(chosen: list[int], calls: list[Call]) -> None:
    """Up to four profilers, three threads: starts, steps, pauses, stops and closings in any order, against a model."""
    actors = [ThreadPoolExecutor(1) for _ in range(3)]
    with tempfile.TemporaryDirectory() as directory:
        memories = [sc.exporters.MemoryExporter() for _ in chosen]
        models = [Model(SCHEDULES[number]()) for number in chosen]
        profilers = [
            sc.trace(
                schedule=SCHEDULES[number](),
                exporters=[memory],
                output_dir=Path(directory) / str(place),
                options=sc.Options(journal=False),
            )
            for place, (number, memory) in enumerate(zip(chosen, memories, strict=True))
        ]
        try:
            for place, (which, thread, name) in enumerate(calls):
                number = which % len(profilers)
                if models[number].call(name):
                    actors[thread].submit(getattr(profilers[number], name)).result()
                tick = f"tick {place}"
                actors[(thread + 1) % 3].submit(sc.instant, tick).result()
                for model in models:
                    model.tick(tick)
        finally:
            for profiler in profilers:
                profiler.close()
            for actor in actors:
                actor.shutdown()
    for profiler, model, memory in zip(profilers, models, memories, strict=True):
        profiler.raise_errors()
        names = memory.names(kind=Kind.INSTANT)
        assert sorted(names) == sorted(model.ticks)
        for window in memory.windows:
            assert all(source.balanced() for source in window.ledger.sources.values())
            assert all(output.in_flight == 0 for output in window.ledger.outputs.values())
        pipeline = profiler.statistics().pipeline
        if pipeline is not None:
            windows = pipeline.windows
            for source, seen in windows.seen.items():
                accounts = windows.accepted, windows.outside, windows.late, windows.superseded
                assert seen == sum(account.get(source, 0) for account in accounts)
            assert not any(windows.dropped.values())


def test_events_of_others_in_a_pause_that_does_not_end(tmp_path: Path) -> None:
    """A profiler that is paused when it closes, or whose events are sorted in the pause, has nothing of the other's."""
    memories = [sc.exporters.MemoryExporter() for _ in range(2)]
    one, other = (
        sc.trace(exporters=[memory], output_dir=tmp_path / str(number), options=sc.Options(journal=False))
        for number, memory in enumerate(memories)
    )
    with one, other:
        sc.instant("both")
        other.pause()
        for number in range(20):
            sc.instant(f"one {number}")
            one.flush()
    assert memories[0].names(kind=Kind.INSTANT) == ["both", *(f"one {number}" for number in range(20))]
    assert memories[1].names(kind=Kind.INSTANT) == ["both"]


def test_events_of_others_while_exporters_close(tmp_path: Path) -> None:
    """The accounts of a profiler end with the last events that were drained for it."""

    def work(name: str) -> sc.Profiler:
        with sc.trace(
            name=name, on_trace_ready=ready if name == "one" else None, output_dir=tmp_path / name
        ) as profiler:
            for _ in range(9):
                sc.instant(name)
            profiler.step()
        return profiler

    others: list[sc.Profiler] = []

    def ready(_: sc.Window) -> None:
        time.sleep(0.2)  # so that the last drain for the first profiler is over
        others.append(work("other"))

    for profiler in (work("one"), *others):
        assert profiler.audit() == ()


def test_options_of_rings_that_have_no_effect(tmp_path: Path) -> None:
    """The first profiler of the process decides on rings: what another asks for is named, with what there is."""
    first = sc.trace(name="first", output_dir=tmp_path / "first")
    first.start()
    options = sc.Options(
        memory_bytes=1 << 27, ring_bytes=1 << 20, block_seconds=0.25, session_dir=str(tmp_path), queue_bytes=1 << 20
    )
    with sc.trace(name="second", output_dir=tmp_path / "second", options=options) as second:
        sc.instant("work")
        second.step()
    first.close()
    (note,) = [note for note in second.diagnostics() if note.startswith("without effect")]
    for text in (
        f"Options.memory_bytes={1 << 27} (it is ",
        f"Options.ring_bytes={1 << 20} (it is ",
        "block_seconds=0.25 (it is ",
        f"session_dir={str(tmp_path)!r}",
    ):
        assert text in note
    assert "queue_bytes" not in note and "overflow" not in note and note in str(second.report())
    assert not any("without effect" in note for note in first.diagnostics())
