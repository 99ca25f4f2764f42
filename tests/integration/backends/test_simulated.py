"""The simulated accelerator: late, out of order, on its own clock, and honest about all of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.backends.collecting import CollectingSink
from stepscope.backends.simulated.simulated import SimulatedDevice
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Kind
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.schedule.action import ProfilerAction
from tests.support.kernels import KnownDevice
from tests.support.messages import refused

NONE, WARMUP, RECORD, SAVE = ProfilerAction
MS = 10**6


class ManualClock:
    """A clock that moves only by a call."""

    def __init__(self, at: int = 10**15) -> None:
        self.at = at

    def __call__(self) -> int:
        return self.at


class Rig:
    """A device on a manual clock, polled by hand."""

    def __init__(self, accept: Callable[[int], bool] = lambda nbytes: True, **settings: Any) -> None:
        self.clock = ManualClock()
        self.sink = CollectingSink(accept=accept)
        self.device = KnownDevice(clock=self.clock, **settings)
        self.device.open(self.sink)

    def wait(self, ns: int, every: int = 5 * MS) -> None:
        """Lets time pass, polling now and then."""
        end = self.clock.at + ns
        while self.clock.at < end:
            self.clock.at = min(self.clock.at + every, end)
            self.device.poll()

    def record(self, ns: int, every: int = 5 * MS) -> tuple[int, int]:
        """Records for a while, and waits until everything was delivered; returns start and stop."""
        start = self.clock.at
        self.device.transition(NONE, RECORD, start)
        self.wait(ns, every)
        stop = self.clock.at
        self.device.transition(RECORD, NONE, stop)
        self.wait(10_000 * MS, 1000 * MS)
        return start, stop

    def spans(self, category: str) -> Block:
        """The spans of a category, in the order of arrival."""
        events = self.sink.events
        wanted = (events["kind"] == Kind.SPAN) & (events["category"] == strings.category(category))
        found: Block = events[wanted]
        return found


def test_the_same_seed_gives_the_same_deliveries() -> None:
    """Every byte is the same under a manual clock, tracks apart; another seed gives something else."""

    def run(seed: int) -> list[tuple[bytes, int | None]]:
        rig = Rig(seed=seed, kernels_per_second=10_000, drop=0.2, clock_drift=30)
        rig.record(300 * MS)
        blocks = [(delivery.events.copy(), delivery.watermark) for delivery in rig.sink.deliveries]
        for block, _ in blocks:
            block["track"] = 0
        return [(block.tobytes(), watermark) for block, watermark in blocks]

    first = run(7)
    assert len(first) > 10
    assert first == run(7)
    assert first != run(8)


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 30 * MS), min_size=1, max_size=20),
    st.integers(1, 5),
    st.sampled_from([500, 20_000, 150_000]),
)
def test_deliveries_do_not_depend_on_the_times_of_polling(waits: list[int], streams: int, rate: float) -> None:
    """However irregularly the loop comes by, the same kernels are delivered, each exactly once."""

    def run(every: list[int]) -> Block:
        rig = Rig(streams=streams, kernels_per_second=rate, clock_error=0, flush_delay=0.01)
        start = rig.clock.at
        rig.device.transition(NONE, RECORD, start)
        for wait in every:
            rig.wait(wait, wait)
        rig.device.transition(RECORD, NONE, rig.clock.at)
        rig.wait(1000 * MS, 500 * MS)
        events = rig.sink.events
        assert len(events) == rig.device.statistics().produced == 4 * len(rig.device.truth)
        events["track"] = 0
        return events[np.lexsort((events["id"], events["kind"], events["ts"]))]

    assert run(waits).tobytes() == run([sum(waits)]).tobytes()


@settings(max_examples=25)
@given(
    skew=st.integers(-(10**18), 10**18),
    drift=st.floats(-500, 500),
    error=st.sampled_from([0, 200, 5_000]),
    delay=st.sampled_from([0.0, 0.02, 0.3]),
    every=st.integers(1 * MS, 40 * MS),
    seed=st.integers(0, 2**64),
)
def test_times_are_mapped_within_the_stated_error_and_watermarks_are_honest(
    skew: int, drift: float, error: int, delay: float, every: int, seed: int
) -> None:
    """A skewed and drifting clock read with an error: kernels land where they ran, and nothing comes too late."""
    rig = Rig(
        clock_skew=skew, clock_drift=drift, clock_error=error, flush_delay=delay, seed=seed, kernels_per_second=2_000
    )
    rig.record(120 * MS, every)
    _, stop = rig.record(60 * MS, every)
    truth = rig.device.truth
    found = rig.spans("kernel")
    assert len(found) == len(truth)
    bound = 4 * error + 10
    for event in found:
        kernel = truth[int(event["args_len"])]
        assert abs(int(event["ts"]) - kernel.start_ns) <= bound
        assert abs(int(event["dur"]) - kernel.dur_ns) <= 2 + kernel.dur_ns * 1e-3
    for delivery in rig.sink.deliveries:
        assert delivery.promised is None or not len(delivery.events) or delivery.events["ts"].min() >= delivery.promised
    assert rig.sink.passed is not None and rig.sink.passed >= stop


def test_launches_kernels_and_flows_belong_together() -> None:
    """A correlation id links a launch on a host thread with a later kernel on a stream, and so does a flow."""
    rig = Rig(streams=3, kernels_per_second=3_000)
    rig.record(200 * MS)
    launches = {int(event["args_len"]): event for event in rig.spans("cuda_runtime")}
    kernels = {int(event["args_len"]): event for event in rig.spans("kernel")}
    events = rig.sink.events
    begins = {int(event["id"]): event for event in events[events["kind"] == Kind.FLOW_START]}
    ends = {int(event["id"]): event for event in events[events["kind"] == Kind.FLOW_END]}
    assert launches.keys() == kernels.keys()
    assert begins.keys() == ends.keys()
    assert len(kernels) == len(begins) > 500
    assert {strings.text(int(event["name"])) for event in launches.values()} == {"cudaLaunchKernel"}
    for correlation, kernel in kernels.items():
        launch = launches[correlation]
        assert launch["ts"] + launch["dur"] <= kernel["ts"]
        host, stream = tracks.get(int(launch["track"])), tracks.get(int(kernel["track"]))
        assert host is not None and host.kind is TrackKind.THREAD
        assert stream is not None and stream.kind is TrackKind.STREAM
    by_time = {(int(event["ts"]), int(event["track"])) for event in begins.values()}
    assert by_time == {(int(event["ts"]), int(event["track"])) for event in launches.values()}
    assert len({int(event["id"]) for event in (*kernels.values(), *launches.values())}) == 2 * len(kernels)


def test_losses_are_whole_buffers_and_all_reported() -> None:
    """produced = delivered + lost, and what was lost is about the share that was asked for."""
    rig = Rig(kernels_per_second=100_000, flush_delay=0.01, drop=0.25)
    start, stop = rig.record(2000 * MS)
    counts = rig.device.statistics()
    assert counts.produced == counts.delivered + counts.lost == 4 * len(rig.device.truth)
    assert counts.delivered == len(rig.sink.events)
    assert counts.lost == sum(loss.count for loss in rig.sink.losses)
    assert 0.15 < counts.lost / counts.produced < 0.35
    assert {loss.reason for loss in rig.sink.losses} == {"source"}
    assert all(start <= loss.at < stop for loss in rig.sink.losses)
    assert any(str(counts.lost) in note for note in rig.device.report().notes)


def test_blocks_that_the_sink_refuses_are_counted() -> None:
    """A full inbox costs those blocks only."""
    refusals = itertools.cycle([True, False])
    rig = Rig(accept=lambda nbytes: next(refusals), flush_delay=0.01)
    _, stop = rig.record(200 * MS)
    counts = rig.device.statistics()
    assert counts.refused == rig.sink.refused > 0
    assert counts.produced == counts.delivered + counts.refused
    assert rig.sink.passed == stop


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("streams", 0), ("kernels_per_second", 0), ("kernels_per_second", float("nan")), ("flush_delay", -1),
        ("drop", 1.5), ("drop", -0.1), ("clock_drift", 1e9), ("clock_error", -1), ("buffer_kernels", 0), ("device", 999),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_named(argument: str, value: Any) -> None:
    """The message has the argument, the range and the value."""
    with refused(ValueError, argument, value):
        SimulatedDevice(**{argument: value})


def test_a_device_has_one_profiler_at_a_time() -> None:
    """Two would each get half of the kernels."""
    rig = Rig()
    with refused(BackendError, "simulated", "SimulatedDevice"):
        rig.device.open(CollectingSink())


async def test_aclose_does_not_wait_for_late_buffers() -> None:
    """Buffers that would arrive minutes later are delivered at once when the run ends."""
    clock, sink = ManualClock(), CollectingSink()
    device = SimulatedDevice(flush_delay=600, kernels_per_second=100_000, clock=clock)
    device.open(sink)
    device.transition(NONE, RECORD, clock.at)
    clock.at += 1000 * MS
    await device.aclose()
    await device.aclose()
    assert len(sink.events) == device.statistics().produced == 400_000
    assert sink.passed == clock.at


async def test_events_after_a_deadline_are_reported_lost() -> None:
    """The account balances even when closing was cancelled half way."""
    clock, sink = ManualClock(), CollectingSink()
    device = SimulatedDevice(flush_delay=600, kernels_per_second=1_000_000, clock=clock)
    device.open(sink)
    device.transition(NONE, RECORD, clock.at)
    clock.at += 1000 * MS
    with anyio.CancelScope() as scope:
        scope.cancel()
        await device.aclose()
    counts = device.statistics()
    assert counts.lost == sum(loss.count for loss in sink.losses) > 0
    assert counts.delivered == len(sink.events) > 0
    assert counts.produced == counts.delivered + counts.lost == 4_000_000
