"""Triggers: what fires, when, once; settings that cannot be followed are refused by name."""

from __future__ import annotations

import math
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope import FlightRecorder
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Kind, empty_block
from stepscope.runtime.flight.triggers.memory_high import ProcessMemory
from stepscope.runtime.flight.triggers.slow_step import RunningQuantile
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News, StepTimes, Trigger
from stepscope.triggers import MemoryHigh, NotFinite, Raised, SlowStep, Stalled
from tests.support.messages import refused
from tests.support.recording import run_program

MS = 1_000_000
SECOND = 1000 * MS


def steps(*durations: int, first: int = 0, start: int = 0) -> StepTimes:
    """Steps that follow one another."""
    borders = start + np.cumsum([0, *durations])
    return StepTimes(first + np.arange(len(durations)), borders[:-1], borders[1:])


def look(evaluator: Evaluator, *durations: int, **news: Any) -> list[Finding]:
    """Shows steps to an evaluator."""
    return list(evaluator.look(News(now=news.pop("now", 0), steps=steps(*durations), **news)))


def counters(*values: tuple[str, float]) -> Block:
    """Counter events, a ns apart."""
    block = empty_block(len(values))
    for at, (row, (name, value)) in enumerate(zip(block, values, strict=True)):
        row["ts"], row["kind"], row["name"], row["value"] = at, Kind.COUNTER, strings.intern(name), value
    return block


# the running quantile


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_running_quantile_is_exact(times: list[int], quantile: float) -> None:
    """The value of that rank."""
    usual = RunningQuantile()
    usual.add(np.array(times, np.int64))
    found, rank = usual.at(quantile), quantile * len(times)
    assert sum(time < found for time in times) < rank <= sum(time <= found for time in times)


def test_running_quantile_follows() -> None:
    """Steps that have become twice as long are usual after some hundred; nothing known is 0."""
    usual = RunningQuantile()
    assert usual.at(0.5) == 0
    usual.add(np.full(100_000, 10 * MS))
    usual.add(np.full(600, 20 * MS))
    assert usual.at(0.5) == 20 * MS


# slow steps


def test_slow_step_fires_for_the_step_that_was_slow() -> None:
    """Not while it learns, not for a little more, nor for what is short anyway; with the step, its time, and what is usual."""
    evaluator = SlowStep(factor=2, warmup=10).evaluator()
    assert not look(evaluator, 500 * MS, *[10 * MS] * 9)  # the first steps are slow, and only learned from
    assert not look(evaluator, *[10 * MS] * 30, 15 * MS)
    (found,) = look(evaluator, *[10 * MS] * 3, 50 * MS, 10 * MS)
    assert found.value == pytest.approx(0.05)
    assert found.at == 80 * MS - 1
    assert "step 3 took 50 ms" in found.text and "p95" in found.text
    assert not found.at_once
    short = SlowStep(warmup=5, least=0.001).evaluator()
    assert not look(short, *[10_000] * 50, 100_000)
    (found,) = look(short, 5052 * MS)
    assert "step 0 took 5,052 ms" in found.text and "e+" not in found.text  # however far it is from what is usual


def test_slow_step_in_a_burst() -> None:
    """A hundred thousand steps at a time cost no more than arrays; every slow one is found."""
    durations = np.full(100_000, 10 * MS)
    durations[[50_000, 99_999]] = 100 * MS
    found = look(SlowStep().evaluator(), *durations.tolist())
    assert [round(f.value, 3) for f in found if isinstance(f.value, float)] == [0.1, 0.1]


# stalls


def test_stalled_fires_once_for_each_stall() -> None:
    """While the step lasts; a step that ends and another one that hangs is another stall. Nothing stalls in a pause, nor before some
    steps have shown how long they take."""
    evaluator = Stalled(factor=5, least=1, warmup=3).evaluator()
    assert not look(evaluator, now=1000 * SECOND, step=0, step_began=0)
    hangs = {"step": 7, "step_began": 10 * SECOND}
    assert not look(evaluator, *[SECOND] * 3, now=11 * SECOND, **hangs)
    assert not look(evaluator, now=14 * SECOND, **hangs)
    (found,) = look(evaluator, now=16 * SECOND, **hangs)
    assert found.at_once and found.at == 16 * SECOND and "step 7" in found.text
    assert not look(evaluator, now=60 * SECOND, **hangs)
    assert look(evaluator, now=90 * SECOND, step=8, step_began=70 * SECOND)
    assert not look(evaluator, now=1000 * SECOND, step=9, step_began=None)


# counters


def test_not_finite_watches_named_counters_only() -> None:
    """Other counters, and other kinds of events, do not count."""
    evaluator = NotFinite(counters=("loss",)).evaluator()
    block = counters(("norm", math.nan), ("loss", math.nan))
    instant = counters(("loss", math.nan))
    instant["kind"] = Kind.INSTANT
    assert not evaluator.look(News(now=0, blocks=[("recorder", instant)]))
    (found,) = evaluator.look(News(now=0, blocks=[("recorder", block)]))
    assert (found.at, found.value, found.text) == (1, "nan", "counter 'loss' is nan")
    (found,) = evaluator.look(News(now=0, blocks=[("recorder", counters(("loss", 1.0), ("loss", -math.inf)))]))
    assert found.text == "counter 'loss' is -inf"


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=8), max_size=8))
def test_not_finite_finds_every_change(blocks: list[list[tuple[str, bool]]]) -> None:
    """As often as a counter was finite, or new, in the block before and is not in this one."""
    evaluator = NotFinite().evaluator()
    bad: set[str] = set()
    for values in blocks:
        expected: set[str] = set()
        for name, finite in values:
            if not finite and name not in bad:
                expected.add(name)
            (bad.discard if finite else bad.add)(name)
        block = counters(*((name, 1.0 if finite else math.nan) for name, finite in values))
        found = evaluator.look(News(now=0, blocks=[("recorder", block)]))
        assert {finding.text.split("'")[1] for finding in found} == expected
        assert len(found) == len(expected)


# memory


STEP = "0::/job/step"
SYSTEMS: dict[str, tuple[dict[str, str], list[tuple[int, int]]]] = {
    "of its own": (
        {"cgroup": STEP, "job/step/memory.current": "1000", "job/step/memory.max": "2000",
         "job/step/memory.stat": "anon 1\ninactive_file 400"},
        [(600, 2000)],
    ),
    "without a limit": ({"cgroup": STEP, "job/step/memory.current": "1000", "job/step/memory.max": "max"}, []),
    "above": (
        {"cgroup": STEP, "job/memory.current": "900", "job/memory.max": "1000", "job/step/memory.current": "100",
         "job/step/memory.max": "max"},
        [(900, 1000)],
    ),
    "of v1": (
        {"cgroup": "5:cpu:/x\n4:memory,hugetlb:/job", "memory/job/memory.usage_in_bytes": "500",
         "memory/job/memory.limit_in_bytes": "1000", "memory/job/memory.stat": "cache 3\ntotal_inactive_file 100"},
        [(400, 1000)],
    ),
    "of v1 without a limit": (
        {"cgroup": "4:memory:/job", "memory/job/memory.usage_in_bytes": "500",
         "memory/job/memory.limit_in_bytes": str(0x7FFFFFFFFFFFF000)},
        [],
    ),
    "outside the mount": ({"cgroup": "0::/../../etc", "../../etc/memory.current": "1", "../../etc/memory.max": "2"}, []),
    "that shows nothing": ({}, []),
}  # fmt: skip
"""Files below the mount of cgroups, and that of the process: what the kernel shows, use and limit of what is found."""


@pytest.mark.parametrize("which", SYSTEMS)
def test_memory_of_a_cgroup(which: str, tmp_path: Path) -> None:
    """Use without the pages that the system frees anyway, against the nearest limit; a path cannot lead out of the mount."""
    files, expected = SYSTEMS[which]
    (tmp_path / "proc/self").mkdir(parents=True)
    if files:
        (tmp_path / "proc/self/statm").write_text("5000 1000 500 1 0 900 0\n")
    for name, content in files.items():
        path = tmp_path / ("proc/self/cgroup" if name == "cgroup" else f"sys/fs/cgroup/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    assert [(usage.used, usage.limit) for usage in ProcessMemory(root=tmp_path).read()] == expected
    assert files or not ProcessMemory(limit=1, root=tmp_path).read()


def test_memory_of_this_process() -> None:
    """The resident set against a limit of the user's; it is what the system says of us."""
    (usage,) = [usage for usage in ProcessMemory(limit=1 << 40).read() if usage.limit == 1 << 40]
    assert 10 << 20 < usage.used <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (64 << 20)


def test_memory_of_the_address_space() -> None:
    """RLIMIT_AS counts where it is set."""
    (report,) = run_program(
        """
        import resource
        from stepscope.runtime.flight.triggers.memory_high import ProcessMemory
        resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
        print_json([usage.what for usage in ProcessMemory().read() if usage.limit == 1 << 40])
        """
    )
    assert report == ["address space (RLIMIT_AS)"]


def test_memory_high_fires_when_it_is_reached() -> None:
    """Once, until it has fallen clearly below; it looks no more often than its interval says."""
    used = [0.5]
    evaluator = MemoryHigh(share=0.9, device=lambda: used[0], interval=1).evaluator()

    def fired(now: float, value: float) -> int:
        used[0] = value
        return len(evaluator.look(News(now=round(now * SECOND))))

    assert [fired(1, 0.5), fired(2, 0.95), fired(3, 0.99), fired(4, 0.89), fired(5, 0.95)] == [0, 1, 0, 0, 0]
    assert [fired(6, 0.5), fired(6.5, 0.99), fired(7, 0.99)] == [0, 0, 1]
    (found,) = MemoryHigh(limit=1 << 20, interval=0).evaluator().look(News(now=SECOND))
    assert found.at_once and isinstance(found.value, float) and found.value > 1 and "of 1 MiB are used" in found.text


# settings


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: MemoryHigh(device=3), ["MemoryHigh.device"]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        (lambda: NotFinite(counters="loss"), ["NotFinite.counters"]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        (lambda: Raised(only=(3,)), ["Raised.only"]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        (lambda: FlightRecorder(steps=1, keep_newest=0, keep_slowest=0), ["keep_newest", "keep_slowest"]),
        (lambda: FlightRecorder(steps=1, triggers=(SlowStep(), SlowStep(factor=2))), ["slow_step"]),
        (lambda: FlightRecorder(steps=1, triggers=(SlowStep,)), ["SlowStep"]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        (lambda: FlightRecorder(steps=1, triggers=3), ["triggers", "3"]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ],
)
def test_settings_are_checked(make: Any, facts: list[str]) -> None:
    """Settings that contradict each other are refused when they are made, by the name of the field."""
    with refused((TypeError, ValueError), *facts):
        make()


def test_ours_are_triggers() -> None:
    """Each is one by the protocol that users follow, and a new evaluator knows nothing of the last one."""
    for trigger in FlightRecorder(steps=1).triggers:
        assert isinstance(trigger, Trigger)
        assert trigger.evaluator() is not trigger.evaluator()
