"""Clocks: offsets are true within their bound, always."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.clocks.timeline import Fitted, Readings, Timeline
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.journal.records import ClockSync
from tests.support.clocks import START, UNIX, Network, TrueClock, every, round_trips

ANCHOR = ClockAnchor(START, UNIX, 0)

networks = st.builds(
    Network,
    out_ns=st.integers(0, 5_000_000),
    back_ns=st.integers(0, 5_000_000),
    jitter_ns=st.integers(0, 2_000_000),
    tail=st.floats(0.6, 3.0),
)
clocks = st.builds(
    TrueClock,
    ahead_ns=st.integers(-3_600_000_000_000, 3_600_000_000_000),
    drift_ppm=st.floats(-400, 400),
)


def looked_at(syncs: Sequence[ClockSync]) -> tuple[Timeline, Fitted]:
    """The time line of one rank."""
    timeline = Timeline({"rank": Readings(syncs, ANCHOR)})
    return timeline, timeline["rank"]


def check(fitted: Fitted, clock: TrueClock, times: Sequence[int]) -> float:
    """Compares with the truth; the largest bound."""
    at = np.array(times, np.int64)
    truth = np.array([clock.at(time) for time in times], np.int64)
    errors = np.abs(fitted.model.to_reference(at) - truth)
    bounds = fitted.model.error(at)
    assert (errors <= bounds).all(), (errors - bounds).max()
    return float(bounds.max())


@given(networks, clocks, st.floats(0.3, 2000), st.floats(0.1, 30), st.integers(0, 2**32), st.data())
def test_the_bound_holds(
    network: Network, clock: TrueClock, seconds: float, interval: float, seed: int, data: st.DataObject
) -> None:
    """For any skew, drift and delays: jittery, one-sided, with heavy tails; between the samples, before and after them."""
    chance = random.Random(seed)
    times = every(interval, seconds)[:300]
    _, fitted = looked_at(round_trips(clock, network, times, chance))
    assert fitted.unsteady == fitted.refused == 0
    outside = [START - data.draw(st.integers(0, 10**12)), START + data.draw(st.integers(0, 4 * 10**12))]
    check(fitted, clock, [*times, *outside, *(START + chance.randrange(int(seconds * 1e9)) for _ in range(100))])


@pytest.mark.parametrize("drift", [200.0, -200.0])
@pytest.mark.parametrize("ahead", [0, 49_000_000_000, -11_560_000_000])
def test_skew_and_drift_are_recovered(ahead: int, drift: float) -> None:
    """Seconds of skew and 200 ppm of drift come out to less than the shortest round trip; the rate to a part per million."""
    network = Network(out_ns=150_000, back_ns=50_000, jitter_ns=200_000, tail=1.1)
    clock = TrueClock(ahead_ns=ahead, drift_ppm=drift)
    syncs = round_trips(clock, network, [*every(0.25, 2), *every(5, 600, first=5)], random.Random(7))
    _, fitted = looked_at(syncs)
    assert check(fitted, clock, every(1, 600)) < 300_000
    found, bound = fitted.model.drift_ppm(START + 300_000_000_000)
    assert abs(found - drift) <= bound < 2


def test_long_round_trips_do_not_harm() -> None:
    """Under load most round trips take a second. They only say little; those that were lucky count."""
    clock = TrueClock(ahead_ns=5_000_000_000, drift_ppm=30)
    quick = round_trips(clock, Network(jitter_ns=1000), every(20, 200), random.Random(1))
    slow = round_trips(clock, Network(out_ns=900_000_000), every(1, 200, first=0.5), random.Random(2))
    _, alone = looked_at(quick)
    _, both = looked_at(sorted([*quick, *slow], key=lambda sync: sync.sent))
    times = every(1, 200)
    assert check(both, clock, times) <= check(alone, clock, times) + 2


def test_bounds_grow_outside_the_samples() -> None:
    """Before the first round trip and after the last one less is known, the further the less."""
    clock = TrueClock(drift_ppm=10)
    _, fitted = looked_at(round_trips(clock, Network(), every(5, 100), random.Random(3)))
    at = np.array([START + int(seconds * 1e9) for seconds in (50, 100, 200, 400, 800, 10_000)], np.int64)
    bounds = fitted.model.error(at)
    assert (np.diff(bounds) > 0).all()
    back = np.array([START - int(seconds * 1e9) for seconds in (0, 100, 1000)], np.int64)
    assert (np.diff(fitted.model.error(back)) > 0).all()
    # No clock is further off than its limit.
    assert bounds[-1] < bounds[1] + 9_900e9 * (500 + 10) * 1e-6


def test_a_single_round_trip() -> None:
    """One is enough for a bound; the rate is unknown then but for its limit."""
    clock = TrueClock(ahead_ns=-7_000_000_000, drift_ppm=200)
    _, fitted = looked_at(round_trips(clock, Network(), [START], random.Random(4)))
    check(fitted, clock, [START, START + 1_000_000_000, START - 60_000_000_000])
    assert fitted.model.drift_ppm(START)[1] == pytest.approx(500, rel=0.01)


def test_times_never_run_backwards() -> None:
    """Events that nest on the rank's clock nest on the reference's, for any samples."""
    chance = random.Random(5)
    syncs = [
        ClockSync(sent=START + i * 10**9, arrived=UNIX + chance.randrange(10**12), answered=UNIX + 10**12 + i,
                  returned=START + i * 10**9 + 10**6, clock="liar")
        for i in range(50)
    ]  # fmt: skip
    _, fitted = looked_at(syncs)
    assert fitted.refused
    at = np.arange(START - 10**9, START + 60 * 10**9, 10**7, dtype=np.int64)
    assert (np.diff(fitted.model.to_reference(at)) >= 0).all()


@given(st.integers(-(10**15), 10**15), networks, st.integers(0, 2**32))
def test_a_collector_that_was_started_again(step: int, network: Network, seed: int) -> None:
    """Its wall clock was set in between, by anything: all ranks stay on one time line, with a bound that holds."""
    chance = random.Random(seed)
    before = TrueClock(ahead_ns=0, drift_ppm=50, name="a")
    after = TrueClock(ahead_ns=step, drift_ppm=50, name="b")
    both = [
        *round_trips(before, network, every(1, 60), chance),
        *round_trips(after, network, every(1, 100, first=90), chance),
    ]
    # This rank has seen the second collector only, and runs at another rate.
    late = TrueClock(ahead_ns=step, drift_ppm=-120, name="b")
    only = round_trips(late, network, every(1, 100, first=95), chance)
    timeline = Timeline({"both": Readings(both, ANCHOR), "late": Readings(only, ANCHOR)})
    assert timeline.reference == "b", "both have seen it"
    times = every(0.7, 130)
    check(timeline["both"], after, times)
    check(timeline["late"], late, [time for time in times if time > START + 9 * 10**10])


def test_clocks_that_nothing_connects() -> None:
    """Two collectors that no rank has seen both of: the smaller part has no bound, and that is reported."""
    one = round_trips(TrueClock(name="a"), Network(), every(1, 20), random.Random(1))
    other = round_trips(TrueClock(name="b", ahead_ns=10**10), Network(), every(1, 5), random.Random(2))
    timeline = Timeline({"one": Readings(one, ANCHOR), "other": Readings(other, ANCHOR)})
    assert timeline.reference == "a"
    at = np.array([START], np.int64)
    assert np.isfinite(timeline["one"].model.error(at)).all()
    assert np.isinf(timeline["other"].model.error(at)).all()


def test_a_clock_that_steps_is_noticed() -> None:
    """A rank whose clock jumps, as that of a virtual machine that was stopped, breaks the assumption: it is counted."""
    steady, jumped = TrueClock(), TrueClock(ahead_ns=3_000_000_000)
    syncs = [
        *round_trips(steady, Network(), every(1, 30), random.Random(1)),
        *round_trips(jumped, Network(), every(1, 60, first=31), random.Random(2)),
    ]
    _, fitted = looked_at(syncs)
    assert fitted.unsteady
    check(fitted, steady, every(1, 25))
    check(fitted, jumped, every(1, 60, first=35))


def test_numbers_from_anywhere() -> None:
    """Records that a damaged or hostile stream holds neither raise nor win."""
    wild = [
        ClockSync(sent=a, arrived=b, answered=c, returned=d, clock="collector")
        for a, b, c, d in [
            (-(1 << 63), 0, 0, (1 << 63) - 1),
            (5, 4, 3, 2),
            (START, UNIX, UNIX - 1, START + 5),
            (START + 10, UNIX, UNIX, START),
            (START + 3 * 10**9, 1 << 60, 1 << 60, START + 3 * 10**9 + 1),
            (START - (1 << 59), UNIX, UNIX, START + (1 << 59)),
        ]
    ]
    clock = TrueClock()
    _, fitted = looked_at([*wild, *round_trips(clock, Network(), every(1, 20), random.Random(1))])
    assert fitted.refused >= 4
    assert (np.diff(fitted.model.to_reference(np.array(every(0.1, 20), np.int64))) >= 0).all()


@given(st.floats(-1, 1), st.integers(0, 2**32))
def test_a_rate_that_wanders_within_the_limits(phase: float, seed: int) -> None:
    """A rate that keeps changing a little, as with temperature, stays within the bound."""

    def true(at: int) -> int:
        # A rate that swings by 0.025 ppm around 80 ppm within two minutes.
        seconds = (at - START) / 1e9
        swing = 0.025e-6 * 120 / (2 * np.pi) * 1e9 * np.sin(2 * np.pi * (seconds / 120 + phase))
        return UNIX + (at - START) + int((at - START) * 80e-6 + swing)

    chance, network = random.Random(seed), Network(jitter_ns=50)
    syncs: list[ClockSync] = []
    for sent in every(2, 900):
        arrived = sent + network.delay(100, chance)
        returned = arrived + network.delay(100, chance)
        syncs.append(
            ClockSync(sent=sent, arrived=true(arrived), answered=true(arrived), returned=returned, clock="collector")
        )
    _, fitted = looked_at(syncs)
    assert fitted.unsteady == 0
    times = every(0.9, 905)
    errors = np.abs(
        fitted.model.to_reference(np.array(times, np.int64)) - np.array([true(at) for at in times], np.int64)
    )
    assert (errors <= fitted.model.error(np.array(times, np.int64))).all()
