"""Times of starts, changes and stops are measured separately, and a run that is too short is not judged."""

from __future__ import annotations

from pathlib import Path

import msgspec

import stepscope as sc
from stepscope.runtime.overhead.budget import MIN_RECORDED_NS, OverheadStatistics
from stepscope.runtime.steps.transition_costs import TransitionStatistics


def test_starts_changes_and_stops_are_distinguished(output_dir: Path) -> None:
    """Each has its time, and the report a line of them."""
    with sc.trace(schedule=sc.schedule(wait=1, warmup=0, active=1, repeat=3), output_dir=output_dir) as profiler:
        before = profiler.statistics().transitions
        assert before.starts == 1 and before.start_ns > 0 == before.change_ns == before.stop_ns == before.wait_ns
        for _ in range(8):
            profiler.step()
        stepped = profiler.statistics().transitions
        assert stepped.start_ns == before.start_ns
        assert stepped.change_ns >= stepped.longest_change_ns > 0 == stepped.stop_ns
        profiler.stop()
        profiler.start()
    after = profiler.statistics().transitions
    assert after.starts == 2 and after.start_ns > before.start_ns and after.stop_ns > 0 and after.wait_ns > 0
    assert f"cost      the program's threads: {after}" in profiler.report().text(verbose=True)


def test_the_words() -> None:
    """In ms, the longest change apart; how often it was started only if that was not once."""
    took = TransitionStatistics(
        starts=1, start_ns=121_000_000, opening_ns=120_000_000, stop_ns=300_000, wait_ns=50_000_000
    )
    took.changed(100_000)
    took.changed(80_000)
    text = "changes 0.18 ms, the longest 0.10 ms; stop 0.30 ms, then 50.00 ms of waiting for exporters"
    assert str(took) == f"start 121.00 ms; {text}"
    assert took.recording_ns == 1_000_000 + 180_000 + 300_000
    again = msgspec.structs.replace(took, starts=2, start_ns=122_000_000)
    assert str(again) == f"start 122.00 ms (2 times); {text}"


def test_a_short_run_is_not_judged() -> None:
    """No number per step: most of it would be the first start."""
    short = OverheadStatistics(
        recorded_ns=MIN_RECORDED_NS - 1,
        steps=10,
        events=100,
        operators=0,
        training_ns=10**8,
        background_ns=10**8,
        detail="full",
    )
    assert str(short) == "less than 1 s was recorded: too short to measure"
    assert str(msgspec.structs.replace(short, budget=0.01)).endswith(
        "; budget 1.00%, detail now 'full', lowered in 0% of it"
    )
    long = str(msgspec.structs.replace(short, recorded_ns=2 * MIN_RECORDED_NS))
    assert long.startswith(
        "10.00% of the time recorded: a step has 10.0ms of recording on the program's threads (estimated, 10 events)"
    )
