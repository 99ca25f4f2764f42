"""The live state of streams, without a network: what frames make of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.clocks.server_clock import LatestClock
from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.files.store import Store
from stepscope.collector.live import streams as live_streams
from stepscope.collector.live.live import Live, start_views
from stepscope.collector.live.startup_recovery import StartupRecovery
from stepscope.collector.live.step_times import BUCKETS, RECENT, History, StepTimes
from stepscope.collector.live.stream import Rate, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.runs.evicted import Evicted
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web.charts import Charts
from stepscope.collector.web.live_events import LiveEvents
from stepscope.exporters.stream.protocol import Hello, StepSummary
from stepscope.runtime.accounting.ledger import MAX_COUNT, Ledger, SourceLedger
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch, Kind, empty_block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import ClockSync, EndRecord, RunRecord, WindowRecord, encode_record
from tests.support.basics import at_once
from tests.support.journals import events_payloads
from tests.support.streams import CONNECTION

SECOND = 10**9
START = 1_700_000_000 * SECOND
ANYTHING = st.integers(-(1 << 63), (1 << 63) - 1)


def run_of(rank: int | None = 0, name: str = "job") -> RunRecord:
    """A rank of a run whose monotonic clock is Unix time."""
    return RunRecord(name=name, anchor=ClockAnchor(START, START, 0), rank=rank, host="host", pid=7)


def steps(durations: list[int], start: int = START, number: int = 0) -> Any:
    """Step spans, one after the other."""
    block: Any = empty_block(len(durations))
    ends = np.cumsum(durations)
    block["ts"], block["dur"] = start + ends - durations, durations
    block["step"] = number + np.arange(len(durations))
    block["kind"] = int(Kind.SPAN)
    return block


def events_frame(events: Any, source: str = "steps") -> tuple[int, int, bytes]:
    """A frame of events."""
    ((flags, payload),) = events_payloads(EventBatch(source, 0, events, b""))
    return int(fmt.FrameType.EVENTS), flags, payload


def record_frame(kind: fmt.FrameType, record: Any) -> tuple[int, int, bytes]:
    """A frame of a record."""
    return int(kind), 0, encode_record(record)


def a_life() -> list[tuple[int, int, bytes]]:
    """The frames of a short run."""
    ledger = Ledger(sources={"recorder": SourceLedger(produced=120, accepted=100, dropped={"overflow": 20})})
    closed = WindowRecord(
        index=0, start_ns=START, end_ns=START + SECOND, steps=b"\0" * 48, complete=True, ledger=ledger
    )
    return [
        record_frame(fmt.FrameType.RUN, run_of()),
        record_frame(fmt.FrameType.CLOCK_SYNC, sync(START, START + 5 * SECOND, 1000)),
        events_frame(steps([SECOND // 10] * 20)),
        events_frame(empty_block(100), source="recorder"),
        record_frame(fmt.FrameType.WINDOW_CLOSED, closed),
        record_frame(fmt.FrameType.END, EndRecord(events=120, windows=1)),
    ]


def sync(sent: int, theirs: int, trip: int, clock: str = "a") -> ClockSync:
    """A round trip."""
    return ClockSync(sent=sent, arrived=theirs, answered=theirs, returned=sent + trip, clock=clock)


def view_of(stream: Stream) -> dict[str, Any]:
    """The view of a stream, without its rates."""
    streams = Streams(8)
    streams.add(stream)
    live = Live(streams, Downloads(Path("/nowhere")), exposed=False)
    (view,) = at_once(live.snapshot()).ranks
    found: dict[str, Any] = msgspec.to_builtins(view)
    return {name: value for name, value in found.items() if name not in ("events_per_s", "bytes_per_s", "silent_s")}


async def test_live_and_read_again_are_the_same(tmp_path: Path) -> None:
    """However the frames are divided among messages, and wherever the collector was started again in between."""
    frames = a_life()
    sync_word = fmt.new_sync_word()
    whole = Stream("a" * 32, run_of())
    whole.add_frames(frames, 0, len(frames))
    for cut in range(len(frames) + 1):
        store, streams = Store(CollectorSettings(directory=tmp_path / str(cut))), Streams(8)
        data = [
            b"".join(fmt.encode_frame(sync_word, kind, n, [body], flags))
            for n, (kind, flags, body) in enumerate(frames)
        ]
        path = store.path("a" * 32)
        path.parent.mkdir(mode=0o700)
        path.write_bytes(fmt.encode_file_header(sync_word) + b"".join(data[:cut]))
        restoring = StartupRecovery(store, streams)
        restoring.look()
        with streams.connected(Hello("a" * 32, sync_word, run_of()), CONNECTION) as stream:
            assert stream.restoring
            task = asyncio.create_task(restoring.run())
            for number in range(cut, len(frames)):
                with path.open("ab") as file:
                    file.write(data[number])
                stream.add_frames([frames[number]], len(data[number]), number + 1)
                await asyncio.sleep(0)
            await task
            # An exporter that did not hear the confirmation sends again what is there.
            stream.add_frames(frames[-2:], 0, len(frames))
        assert {**view_of(stream), "restoring": False} == view_of(whole), cut
        assert stream.bytes == path.stat().st_size
        assert dict(stream.dropped) == {"recorder/overflow": 20}


@given(st.lists(st.tuples(ANYTHING, ANYTHING, st.integers(0, 255)), max_size=40), ANYTHING)
def test_times_that_make_no_sense_cost_nothing_but_themselves(rows: list[tuple[int, int, int]], offset: int) -> None:
    """Any times and durations are accepted without an error, in bounded memory."""
    block = steps([1] * len(rows))
    for at, (ts, dur, flags) in enumerate(rows):
        block["ts"][at], block["dur"][at], block["flags"][at] = ts, dur, flags
    times = StepTimes()
    times.add_events(block, max(min(offset, 1 << 62), -(1 << 62)), START, START + 100 * SECOND)
    times.add_events(steps([5, 6]), 0, START, START + 100 * SECOND)
    assert (times.newest(2)["ms"] * 1e6).round().tolist() == [5, 6]
    for history in (times.recent, times.all):
        index, means = history.sums().means(history.width_ns)
        assert len(index) == len(means) <= BUCKETS


@given(st.lists(st.tuples(st.integers(0, 20_000 * SECOND), st.integers(1, SECOND)), min_size=1, max_size=60))
def test_a_history_keeps_the_mean_of_all(samples: list[tuple[int, int]]) -> None:
    """Each sample counts once, in any order; the width is as small as the time allows."""
    history = History(rolling=False)
    for at, duration in samples:
        history.add(np.array([START + at]), np.array([duration]))
    width = history.width_ns
    times = [at for at, _ in samples]
    assert width == 250_000_000 or max(times) - min(times) > width * (BUCKETS // 2 - 2) or max(times) > times[0]
    index, means = history.sums().means(width * 1024)
    assert len(index) <= 2
    _, all_means = history.sums().means(width)
    assert min(d for _, d in samples) <= means.min() <= means.max() <= max(d for _, d in samples)
    assert len(all_means) <= min(len(samples), BUCKETS)


def test_the_newest_steps_stay_one_by_one() -> None:
    """More than fit, in one block and in many."""
    for sizes in ([4000], [100] * 40, [7] * 150):
        times, total = StepTimes(), 0
        for size in sizes:
            times.add_events(steps([SECOND] * size, number=total), 0, START, START + 10**13)
            total += size
        found = times.newest(10_000)
        assert found["number"].tolist() == list(range(total - RECENT, total)) and set(found["ms"].tolist()) == {1000.0}
        assert (times.count, times.last) == (total, total - 1)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1000)), max_size=60))
def test_rates(counts: list[tuple[int, int]]) -> None:
    """The average of the last five whole seconds, whenever it is asked for."""
    rate, now, seen = Rate(), 100.0, list[tuple[int, int]]()
    for eighths, count in counts:  # which floats add up exactly
        now += eighths / 8
        rate.add(count, now)
        seen.append((int(now), count))
    if not seen:
        assert rate.per_second(now) == 0
        return
    second = int(now) + 1
    seconds = min(second - seen[0][0], 5)
    expected = sum(count for at, count in seen if second - seconds <= at < second) / seconds
    assert rate.per_second(now + 1) == pytest.approx(expected)
    assert rate.per_second(now + 100) == 0
    assert str(rate.per_second(seen[0][0] - 1)) == str(
        float(sum(count for at, count in seen if at == seen[-1][0]))
    )  # asked just before


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20),
    st.integers(-(10**18), 10**18),
)
def test_the_clock_bound_holds(trips: list[tuple[int, int]], offset: int) -> None:
    """The true offset is within the bound, however the way there and the way back divide the round trip; it is no larger than the
    best round trip allows."""
    latest = LatestClock(run_of().anchor)
    assert (latest.offset_ns, latest.bound_ns) == (0, None)
    for n, (there, back) in enumerate(trips):
        sent = 10**7 * n
        arrived = sent + there + offset
        latest.add(
            ClockSync(sent=sent, arrived=arrived, answered=arrived + 3, returned=sent + there + 3 + back, clock="a")
        )
        assert latest.bound_ns is not None and abs(latest.offset_ns - offset) <= latest.bound_ns
        assert latest.bound_ns <= min(map(sum, trips[: n + 1])) / 2 + 500e-6 * (sent + there + 3 + back) + 2


@pytest.mark.parametrize("drift_ppm", [-100, 0, 30])
def test_the_clock_bound_follows_a_clock_that_drifts(drift_ppm: int) -> None:
    """For an hour, and into another start of the collector, whose clock is another one."""
    latest = LatestClock(run_of().anchor)
    for n in range(720):
        sent, ahead = 5 * SECOND * n, 10**15 if n < 700 else 0

        def theirs(at: int) -> int:
            return at + at * drift_ppm // 10**6 + ahead  # noqa: B023

        arrived, returned = theirs(sent + 40_000), sent + 100_000
        latest.add(
            ClockSync(sent=sent, arrived=arrived, answered=arrived, returned=returned, clock="a" if ahead else "b")
        )
        assert latest.bound_ns is not None
        assert abs(returned + latest.offset_ns - theirs(returned)) <= latest.bound_ns < 51_000


@given(
    st.lists(
        st.builds(ClockSync, sent=ANYTHING, arrived=ANYTHING, answered=ANYTHING, returned=ANYTHING, clock=st.just("a"))
    )
)
def test_round_trips_that_make_no_sense(samples: list[ClockSync]) -> None:
    """Clocks that went back or are off by centuries give no bound, or one that a number holds."""
    latest = LatestClock(run_of().anchor)
    for sample in samples:
        latest.add(sample)
        assert abs(latest.offset_ns) < 1 << 62
        assert latest.bound_ns is None or latest.bound_ns >= 0


def test_steps_and_records_that_a_rank_left_out_are_counted() -> None:
    """Steps without facts by its summaries, and records by its end. However much it claims, the sum is a number."""
    stream = Stream("1" * 32, run_of())
    for _ in range(3):
        stream.add_summary(StepSummary(0, 0, (1 << 62) - 1, [], b""))
    stream.add_frames([record_frame(fmt.FrameType.END, EndRecord(records_left_out=6))], 100, 1)
    rank = live_streams.Rank("rank")
    rank.add(stream)
    (view,) = start_views(rank, 0.0)
    assert (view.left_out_steps, view.left_out_records) == (MAX_COUNT, 6)


def test_evicted_segments_are_counted() -> None:
    """Once each, however often it is heard of; windows of which one had a part say so."""
    stream = Stream("a" * 32, run_of())
    stream.add_frames(a_life(), 0, len(a_life()))
    assert [window.partly_evicted for window in stream.windows] == [False]
    for segment in [*range(2000), 0, 7]:
        stream.windows.evict(
            Evicted(segment=segment, frames=9, nbytes=900, events=40, first_window=segment // 2, last_window=segment)
        )
    assert [window.partly_evicted for window in stream.windows] == [False], "only of the newest windows it is known"
    stream.windows.evict(Evicted(segment=2000, frames=9, nbytes=900, events=2, first_window=0, last_window=0))
    assert len(stream.windows.evicted) == 2001
    assert (stream.windows.discarded, stream.windows.discarded_bytes) == (80_002, 2001 * 900)
    other = Stream("b" * 32, run_of())
    other.windows.evict(Evicted(segment=0, frames=9, nbytes=900, events=2, first_window=0, last_window=1 << 62))
    other.windows.evict(Evicted(segment=1, frames=9, nbytes=900, events=2, first_window=-1, last_window=0))
    other.add_frames(a_life(), 0, len(a_life()))
    assert [window.partly_evicted for window in other.windows] == [False]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.binary(max_size=80)), max_size=20))
def test_any_frames_are_accepted(frames: list[tuple[int, int, bytes]]) -> None:
    """A frame with a right checksum may have any content."""
    stream = Stream("a" * 32, run_of())
    stream.add_frames(frames, 100, len(frames))
    assert stream.next == len(frames)
    assert view_of(stream)["id"] == "job-0"


class CountedStream(Stream):
    """Counts how often it was asked whose stream it is."""

    asked = 0
    is_remote = False

    @property
    def remote(self) -> bool:
        """Whether another collector takes it."""
        CountedStream.asked += 1
        return self.is_remote

    @remote.setter
    def remote(self, remote: bool) -> None:
        self.is_remote = remote


def test_a_stream_more_costs_the_same_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one rank that is started again and again, the order of few starts is looked at; all streams are looked at seldom."""
    began, compared = live_streams._began, 0  # pyright: ignore[reportPrivateUsage]

    def counted(stream: Stream) -> tuple[int, int, str]:
        nonlocal compared
        compared += 1
        return began(stream)

    monkeypatch.setattr(live_streams, "_began", counted)
    streams, run = Streams(256), run_of(0)
    for number in range(3000):
        stream = CountedStream(f"{number:032x}", run, born_ns=START + number)
        stream.remote = number > 256
        streams.add(stream)
    (rank,) = streams
    assert len(streams.all) == 3000 and rank.latest.id == f"{2999:032x}"
    assert [stream.superseded for stream in rank.streams] == [True] * 2999 + [False]
    assert compared < 3000 * 16
    assert CountedStream.asked < 3000 * 300


async def test_charts_are_bounded() -> None:
    """Starts of a rank that lie years apart are one chart of a few hundred points."""
    streams = Streams(8)
    for number, year in enumerate((0, 1, 2)):
        stream = Stream(f"{number:032x}", run_of(), born_ns=START + year * 10**16)
        stream.steps.add_events(steps([SECOND] * 100, START + year * 3 * 10**16), 0, START, 1 << 62)
        streams.add(stream)
    for range in ("recent", "all"):
        found = await Charts(streams).chart(range, ["job-0"])
        assert 0 < len(found.times) <= BUCKETS
        assert set(found.series[0].step_ms) == {1000.0}


async def test_a_slow_listener_gets_the_latest_only() -> None:
    """A listener that reads slowly gets no old updates; its next one has everything."""
    streams = Streams(64)
    events = LiveEvents(Live(streams, Downloads(Path("/nowhere")), exposed=False))
    slow, quick = events.listen(), events.listen()

    async def next_of(listener: Any) -> Any:
        return msgspec.json.decode((await anext(listener)).split(b"data: ")[1])

    assert (await next_of(slow))["full"] and (await next_of(quick))["full"]
    for number in range(3):
        streams.add(Stream(f"{number:032x}", run_of(number)))
        found = await next_of(quick)
        while not found["ranks"]:
            found = await next_of(quick)
        assert not found["full"]
        assert [view["rank"] for view in found["ranks"] if view["rank"] == number]
    found = await next_of(slow)
    assert found["full"] and len(found["ranks"]) == 3
    await events.stop()
    assert [chunk async for chunk in slow][-1].startswith(b"event: end")
    await quick.aclose()
