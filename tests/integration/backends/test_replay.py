"""A recording is played as a live source: in order, on our clock, as far as is recorded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from stepscope.backends.collecting import CollectingSink
from stepscope.backends.conformance import check_backend, check_block
from stepscope.backends.simulated.replay import ReplayBackend
from stepscope.build import trace
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.specimens import batch_of, every_kind, spans
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import clock, strings
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, empty_block
from stepscope.runtime.schedule.action import ProfilerAction
from tests.support.journals import batch_with_arguments, described, write_journal
from tests.support.messages import refused

NONE, WARMUP, RECORD, SAVE = ProfilerAction
MS = 1_000_000


def journal_of(tmp_path: Path, times: list[tuple[int, int]]) -> Path:
    """A journal of spans with these begins and durations, in ms."""
    block = spans([f"span {number}" for number in range(len(times))])
    block["ts"] = [ts * MS for ts, _ in times]
    block["dur"] = block["self_dur"] = [dur * MS for _, dur in times]
    return write_journal(tmp_path / "journal", [batch_of(block)])


async def played_steps(replay: ReplayBackend, recorded: list[tuple[int, int]]) -> tuple[CollectingSink, int]:
    """What a replay delivers where these times, in ms from its begin on, are recorded; and when it began.

    The times of transitions are exact, whenever they are made: all that has ended by then is given with them.
    """
    sink = CollectingSink()
    replay.open(sink)
    origin = clock.now()
    for begin, end in recorded:
        replay.transition(NONE, RECORD, origin + begin * MS)
        replay.transition(RECORD, NONE, origin + end * MS)
    await replay.aclose()
    return sink, origin


def times_of(events: Block, origin: int) -> list[tuple[int, int]]:
    """Begins and durations in ms, counted from `origin`."""
    return sorted(((int(event["ts"]) - origin) // MS, int(event["dur"]) // MS) for event in events)


async def test_events_come_when_they_end(tmp_path: Path) -> None:
    """A span is delivered when it has ended, shifted to where recording began, and the rest when recording ends."""
    sink, origin = await played_steps(
        ReplayBackend(journal_of(tmp_path, [(1000, 100), (1010, 20), (1050, 500)])), [(0, 9999)]
    )
    assert times_of(sink.events, origin) == [(0, 100), (10, 20), (50, 500)]


async def test_half_speed_makes_everything_twice_as_long(tmp_path: Path) -> None:
    """Times and durations are divided by the speed."""
    replay = ReplayBackend(journal_of(tmp_path, [(1000, 100), (1200, 10)]), speed=0.5)
    sink, origin = await played_steps(replay, [(0, 9999)])
    assert times_of(sink.events, origin) == [(0, 200), (400, 20)]


async def test_what_is_not_recorded_is_skipped_and_cut(tmp_path: Path) -> None:
    """Recording that ends gives the parts up to there; recording that begins again, the parts from there."""
    replay = ReplayBackend(journal_of(tmp_path, [(0, 1000), (100, 50), (400, 50), (700, 50)]))
    sink, origin = await played_steps(replay, [(0, 300), (600, 2000)])
    assert times_of(sink.events, origin) == [(0, 300), (100, 50), (600, 400), (700, 50)]
    cut = [bool(event["flags"] & int(Flag.CLIPPED)) for event in sink.events]
    assert cut == [int(dur) not in (50 * MS,) for dur in sink.events["dur"]]
    for delivery in sink.deliveries:
        assert delivery.promised is None or (delivery.events["ts"] >= delivery.promised).all()


async def test_an_empty_recording_is_finished_at_once(tmp_path: Path) -> None:
    """Nothing to play is nothing to wait for."""
    replay = ReplayBackend(write_journal(tmp_path / "journal", [batch_of(empty_block())]))
    sink, origin = await played_steps(replay, [(0, 1)])
    assert not len(sink.events)
    assert sink.passed == origin + MS
    assert replay.finished.is_set()


async def test_arguments_and_tracks_come_along(tmp_path: Path) -> None:
    """Blocks hold the arguments of their own events only; marks, steps and pauses of the recorded run stay behind."""
    batch = batch_with_arguments(["a", "b"], [{"x": 1}, {"y": "two"}])
    steps = EventBatch("steps", 0, spans(["ProfilerStep#0"]), b"")
    marks = spans(["ProfilerStep"])
    marks["kind"] = int(Kind.STEP)
    path = write_journal(tmp_path / "journal", [batch, steps, batch_of(marks), every_kind()])
    sink, _ = await played_steps(ReplayBackend(path), [(0, 1 << 40)])
    rows: dict[str, str] = {}
    for delivery in sink.deliveries:
        check_block(delivery.events, delivery.args)
        rows |= {row[2]: row[4] for row in described(EventBatch("replay", 0, delivery.events, delivery.args))}
    assert rows["a"] == "{'x': 1}"
    assert rows["b"] == "{'y': 'two'}"
    assert "ProfilerStep#0" not in rows
    assert int(Kind.STEP) not in sink.events["kind"]


async def test_ids_differ_and_still_link(tmp_path: Path) -> None:
    """A parent in the recording is a parent in the replay, under a number that the recorder never gives."""
    block = spans(["outer", "inner"], start_ns=0).copy()
    block["id"], block["parent"] = [7, 8], [0, 7]
    sink, _ = await played_steps(ReplayBackend(write_journal(tmp_path / "journal", [batch_of(block)])), [(0, 9999)])
    by_name = {strings.text(int(event["name"])): event for event in sink.events}
    assert by_name["inner"]["parent"] == by_name["outer"]["id"] != 7
    assert by_name["outer"]["parent"] == 0


async def test_one_window_can_be_chosen(tmp_path: Path) -> None:
    """Of a long recording one window may be enough."""
    batches = [batch_of(spans([f"w{window}"]), window=window) for window in (0, 1)]
    path = write_journal(tmp_path / "journal", batches)
    sink, _ = await played_steps(ReplayBackend(path, window=1), [(0, 9999)])
    assert [strings.text(int(name)) for name in sink.events["name"]] == ["w1"]


def test_what_cannot_be_played_is_refused(tmp_path: Path) -> None:
    """A missing file, another file, a bad speed and a recording larger than allowed are named."""
    for speed in (0, math.nan, math.inf):
        with refused(ValueError, "speed", repr(speed)):
            ReplayBackend(tmp_path / "journal", speed=speed)
    with refused(BackendError, "missing"):
        ReplayBackend(tmp_path / "missing").open(CollectingSink())
    (tmp_path / "other").write_bytes(bytes(100))
    with refused(BackendError, "other"):
        ReplayBackend(tmp_path / "other").open(CollectingSink())
    path = write_journal(tmp_path / "journal", [batch_of(spans(["x"] * 100))])
    with refused(BackendError, "journal", "max_bytes"):
        ReplayBackend(path, max_bytes=1000).open(CollectingSink())


@pytest.mark.parametrize("speed", [1.0, 10.0])
def test_the_contract_of_backends_holds(tmp_path: Path, speed: float) -> None:
    """It passes the suite of backends; recordings may be shorter than a window, so windows may be empty."""
    batches = [batch_of(spans(["x"] * 5, start_ns=start)) for start in range(0, 50_000_000, 1_000_000)]
    path = write_journal(tmp_path / "journal", batches)
    check_backend(lambda: ReplayBackend(path, speed=speed), silent=True)


def test_a_run_is_replayed_through_a_profiler(tmp_path: Path) -> None:
    """Recorded once, played at its own speed: the same spans, with the same durations and arguments."""
    first = MemoryExporter()
    with trace(exporters=[first], output_dir=tmp_path / "first") as profiler:
        for number in range(100):
            with profiler_span(number):
                pass
            profiler.step()
    replay = ReplayBackend(tmp_path / "first" / "journal")
    second = MemoryExporter()
    with trace(backends=[replay], exporters=[second], output_dir=tmp_path / "second") as profiler:
        assert replay.finished.wait(30)
    assert profiler.statistics().pipeline is not None
    assert played(second) == played(first)
    assert len(played(first)) == 100


def profiler_span(number: int) -> Any:
    """A span to be recorded."""
    from stepscope import span

    return span("recorded", number=number)


def played(exporter: MemoryExporter) -> list[tuple[int, dict[str, object]]]:
    """Durations and arguments of the recorded spans, in order."""
    rows = [
        (int(event["dur"]), arguments)
        for event, arguments in zip(exporter.events(), exporter.arguments(), strict=True)
        if strings.text(int(event["name"])) == "recorded"
    ]
    return sorted(rows, key=lambda row: str(row[1]))
