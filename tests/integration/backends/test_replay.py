"""A recording is played as a live source: in order, on our clock, as far as is recorded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.backends.collecting import CollectingSink
from stepscope.backends.conformance import check_backend, check_block
from stepscope.backends.simulated.replay import Playback, Recording, ReplayBackend
from stepscope.build import trace
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.specimens import batch_of, every_kind, spans
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import strings
from stepscope.runtime.events.intervals import ends
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, empty_block, join_blocks
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.schedule.action import ProfilerAction
from tests.support.journals import batch_with_arguments, described, write_journal
from tests.support.messages import refused

NONE, WARMUP, RECORD, SAVE = ProfilerAction


def recording_of(*batches: EventBatch, tmp_path: Path, window: int | None = None) -> Recording:
    """The recording of a journal with these batches."""
    with JournalReader(write_journal(tmp_path / "journal", batches)) as reader:
        recording = Recording.load(reader, window, 1 << 30)
    assert recording is not None
    return recording


def in_memory(times: list[tuple[int, int]]) -> Recording:
    """A recording of spans with these begins and durations."""
    block = empty_block(len(times))
    block["ts"] = [ts for ts, _ in times]
    block["dur"] = block["self_dur"] = [dur for _, dur in times]
    block["id"] = np.arange(1, len(times) + 1)
    block["kind"] = int(Kind.SPAN)
    start = int(block["ts"].min()) if len(times) else 0
    block = block[np.argsort(ends(block), kind="stable")]
    return Recording(block, b"", start, int(ends(block).max()) - start if len(times) else 0)


def due(playback: Playback, now: int) -> tuple[Block, int | None]:
    """All that is due, and the last watermark."""
    blocks: list[Block] = []
    watermark: int | None = None
    more = True
    while more:
        events, _, watermark, more = playback.due(now)
        blocks.append(events)
    return join_blocks(blocks), watermark


def nothing(answer: tuple[Block, int | None]) -> bool:
    """Whether neither events nor a watermark were delivered."""
    return len(answer[0]) == 0 and answer[1] is None


def times_of(events: Block) -> list[tuple[int, int]]:
    """Begins and durations."""
    return list(zip(events["ts"].tolist(), events["dur"].tolist(), strict=True))


def test_times_without_recording_are_skipped_and_cut() -> None:
    """Recording that ends gives the parts up to there; recording that begins again, the parts from there."""
    playback = Playback(in_memory([(0, 1000), (100, 50), (400, 50), (700, 50)]), 1.0, False)
    playback.begin(0)
    assert times_of(due(playback, 200)[0]) == [(100, 50)]
    part, _ = playback.end(300)
    assert times_of(part) == [(0, 300)]
    assert times_of(due(playback, 500)[0]) == []
    playback.begin(600)
    events, watermark = due(playback, 2000)
    assert times_of(events) == [(700, 50), (600, 400)]
    assert watermark is not None
    assert watermark > 2000
    assert (events["flags"] == [0, int(Flag.CLIPPED)]).all()
    assert events["self_dur"].sum() + part["self_dur"].sum() <= 1000 + 50


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300)), max_size=30),
    st.lists(st.tuples(st.integers(1, 200), st.sampled_from(["look", "begin", "end"])), max_size=30),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_watermarks_are_honest_and_nothing_is_lost(
    times: list[tuple[int, int]], acts: list[tuple[int, str]], speed: float
) -> None:
    """For any schedule: no event begins before a watermark, lies between windows, or comes twice."""
    playback = Playback(in_memory(times), speed, False)
    now, promised, recording = 10_000, 0, False
    recorded: list[tuple[int, int]] = []
    given_parts: list[tuple[int, int, int]] = []
    origin: int | None = None

    def take(events: Block, watermark: int | None) -> None:
        nonlocal promised
        assert (events["ts"] >= promised).all()
        given_parts.extend(zip(events["ts"].tolist(), ends(events).tolist(), events["id"].tolist(), strict=True))
        promised = max(promised, watermark or 0)

    for pause, act in [*acts, (5000, "look"), (1, "end")]:
        now += pause
        if act == "begin" and not recording:
            recording = True
            origin = now if origin is None else origin
            recorded.append((now, 1 << 60))
            playback.begin(now)
        elif act == "end" and recording:
            recording = False
            take(*due(playback, now))
            recorded[-1] = (recorded[-1][0], now)
            part, _ = playback.end(now)
            take(part, now)
        else:
            take(*due(playback, now))
    expected: list[tuple[int, int]] = []
    for ts, dur in times if origin is not None else []:
        assert origin is not None
        begin = origin + round((ts - min(ts for ts, _ in times)) / speed)
        end = begin + round(dur / speed)
        for first, last in recorded:
            if begin < last and (end > first or first <= begin):
                expected.append((max(begin, first), min(end, last)))
    assert sorted((first, last) for first, last, _ in given_parts) == sorted(expected)


def test_infinite_speed_waits_while_nothing_is_recorded() -> None:
    """Events that were due after the end of a window start with the next one."""
    count = 40_000
    playback = Playback(in_memory([(index * 10, 5) for index in range(count)]), math.inf, False)
    playback.begin(0)
    first, _, _, more = playback.due(0)
    assert more
    assert len(playback.end(100)[0]) == 0
    assert nothing(due(playback, 200))
    playback.begin(1_000_000)
    rest, _ = due(playback, 1_000_000)
    assert len(first) + len(rest) == count
    assert int(rest["ts"].min()) == 1_000_000


def test_a_loop_begins_anew_with_other_ids() -> None:
    """Rounds follow each other without a gap; links hold inside a round and not between rounds."""
    playback = Playback(in_memory([(0, 100), (10, 20)]), 1.0, True)
    playback.begin(1000)
    promised = 0
    for now in range(1000, 1500, 7):
        more = True
        while more:
            events, _, watermark, more = playback.due(now)
            assert (events["ts"] >= promised).all()
            promised = max(promised, watermark or 0)
    assert promised >= 1400
    block = spans(["outer", "inner"], start_ns=0).copy()
    block["ts"], block["dur"], block["id"], block["parent"] = [0, 10], [100, 20], [7, 8], [0, 7]
    block = block[np.argsort(ends(block))]
    playback = Playback(Recording(block, b"", 0, 100), 1.0, True)
    playback.begin(1000)
    events, watermark = due(playback, 1250)
    assert times_of(events) == [(1010, 20), (1000, 100), (1110, 20), (1100, 100), (1210, 20)]
    assert watermark == 1200
    inner, outer = events[:2]
    assert inner["parent"] == outer["id"] != 7
    assert len(set(events["id"].tolist())) == 5
    assert not playback.finished
    assert playback.rounds == 2


def test_an_empty_recording_is_finished_at_once() -> None:
    """Nothing to play, not even in a loop, is no endless loop."""
    for loop in (False, True):
        playback = Playback(in_memory([]), 1.0, loop)
        playback.begin(0)
        events, watermark = due(playback, 10)
        assert len(events) == 0
        assert watermark == 1 << 62
        assert playback.finished


def test_arguments_and_tracks_come_along(tmp_path: Path) -> None:
    """Blocks hold the arguments of their own events only; marks, steps and pauses of the recorded run stay behind."""
    batch = batch_with_arguments(["a", "b"], [{"x": 1}, {"y": "two"}])
    steps = EventBatch("steps", 0, spans(["ProfilerStep#0"]), b"")
    marks = spans(["ProfilerStep"])
    marks["kind"] = int(Kind.STEP)
    recording = recording_of(batch, steps, batch_of(marks), every_kind(), tmp_path=tmp_path)
    playback = Playback(recording, math.inf, False)
    playback.begin(0)
    events, args, _, more = playback.due(0)
    assert not more
    check_block(events, args)
    rows = {row[2]: row[4] for row in described(EventBatch("replay", 0, events, args))}
    assert rows["a"] == "{'x': 1}"
    assert rows["b"] == "{'y': 'two'}"
    assert "ProfilerStep#0" not in rows
    assert int(Kind.STEP) not in events["kind"]


def test_one_window_can_be_chosen(tmp_path: Path) -> None:
    """Of a long recording one window may be enough."""
    batches = [batch_of(spans([f"w{window}"]), window=window) for window in (0, 1)]
    recording = recording_of(*batches, tmp_path=tmp_path, window=1)
    assert [strings.text(int(name)) for name in recording.events["name"]] == ["w1"]


def test_unplayable_recordings_are_refused(tmp_path: Path) -> None:
    """A missing file, another file, a bad speed and a recording larger than allowed are named."""
    with refused(ValueError, "speed", "0"):
        ReplayBackend(tmp_path / "journal", speed=0)
    with refused(ValueError, "speed", "nan"):
        ReplayBackend(tmp_path / "journal", speed=math.nan)
    with refused(BackendError, "missing"):
        ReplayBackend(tmp_path / "missing").open(CollectingSink())
    (tmp_path / "other").write_bytes(bytes(100))
    with refused(BackendError, "other"):
        ReplayBackend(tmp_path / "other").open(CollectingSink())
    path = write_journal(tmp_path / "journal", [batch_of(spans(["x"] * 100))])
    with JournalReader(path) as reader, refused(BackendError, "journal", "max_bytes"):
        Recording.load(reader, None, 1000)


@pytest.mark.parametrize(("speed", "loop"), [(10.0, True), (math.inf, False)])
def test_the_contract_of_backends_holds(tmp_path: Path, speed: float, loop: bool) -> None:
    """Again and again, and at once, too; recordings may be shorter than a window, so windows may be empty."""
    batches = [batch_of(spans(["x"] * 5, start_ns=start)) for start in range(0, 50_000_000, 1_000_000)]
    path = write_journal(tmp_path / "journal", batches)
    slack = 100_000_000 if math.isinf(speed) else 1_000_000
    check_backend(lambda: ReplayBackend(path, speed=speed, loop=loop), silent=not loop, tolerance=slack)


def test_a_run_is_replayed_through_a_profiler(tmp_path: Path) -> None:
    """Recorded once, played as fast as possible: the same spans, with the same durations and arguments."""
    first = MemoryExporter()
    with trace(exporters=[first], output_dir=tmp_path / "first") as profiler:
        for number in range(100):
            with profiler_span(number):
                pass
            profiler.step()
    replay = ReplayBackend(tmp_path / "first" / "journal", speed=math.inf)
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
