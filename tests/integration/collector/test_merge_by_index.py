"""A merge of one window reads indexes and the frames of that window: all others may be damaged, and nothing changes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest

from stepscope.collector.files.disk import SegmentFile
from stepscope.collector.merge.plan import Selection
from stepscope.collector.retention.inventory import Segment
from stepscope.collector.runs.evicted import evict
from stepscope.collector.runs.recording import Recording
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.runtime.events.record import EVENT_DTYPE, EventBatch, Kind
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import index as journal_index
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.records import ClockSync
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.windows.window import Step
from tests.integration.collector.test_merge import merged
from tests.support.journals import frame_borders

WINDOWS = 12
EVENTS = 4
SECOND = 10**9

State = Literal["ended", "killed", "growing"]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index is due every 1,000 bytes."""
    monkeypatch.setattr(journal_index, "MAX_BYTES", 1000)


def record(
    directory: Path,
    rank: int,
    *,
    state: State = "ended",
    first_step: int = 0,
    start: int = 0,
    segment_bytes: int = 1500,
) -> Path:
    """A stream with two steps in each window. One that was killed, or grows, has begun a further window."""
    run = run_in(directory)
    anchor = msgspec.structs.replace(run.anchor, monotonic_ns=run.anchor.monotonic_ns + start * 1000 * SECOND)
    id = f"{rank + 16 * start:032x}"
    run = msgspec.structs.replace(run, rank=rank, world_size=2, job="job", pid=1 + rank, id=id, anchor=anchor)
    writer = JournalWriter(directory / "streams" / id / "journal", segment_bytes=segment_bytes)
    writer.open(run)
    for number in range(WINDOWS + (state != "ended")):
        at = anchor.monotonic_ns + number * SECOND
        steps = tuple(Step(first_step + 2 * number + n, at + n * 1000, at + n * 1000 + 999) for n in range(2))
        writer.write_batch(events_of(f"rank {rank} start {start} window {number}", number, steps))
        if number < WINDOWS:
            window = window_of(number, events_of("", number, steps))
            writer.write_window(msgspec.structs.replace(window, start_ns=at, end_ns=steps[1].end_ns, steps=steps))
    if state == "ended":
        writer.close()
    else:
        writer.abandon()
    return writer.path


def events_of(name: str, window: int, steps: tuple[Step, ...]) -> EventBatch:
    """A mark and a span in each step."""
    batch = batch_of(spans([name] * EVENTS, start_ns=steps[0].start_ns), window=window)
    events = batch.events.copy()
    events["ts"] = np.repeat([step.start_ns for step in steps], 2)
    events["step"] = np.repeat([step.number for step in steps], 2)
    events["kind"][::2], events["dur"][::2] = int(Kind.STEP), 0
    return msgspec.structs.replace(batch, events=events)


def shown(exporter: MemoryExporter) -> list[tuple[object, ...]]:
    """The events of a merge but for their tracks, which get other ids each time, and its windows."""
    fields = [name for name in EVENT_DTYPE.names or () if name != "track"]
    events = [tuple(row) for batch in exporter.batches for row in batch.events[fields].tolist()]
    return [*events, *((window.index, window.steps, window.complete) for window in exporter.windows)]


def damage_others(path: Path, window: int) -> int:
    """Destroys the frames before the last index but for the run's, indexes, and those of one window; returns how many bytes."""
    (row,) = Recording.of(path, "", lambda rows: rows["window"] == window).rows_of(np.array([window]))
    found: list[tuple[Path, int, int, int]] = []
    last = 0
    for file in segment_paths(path):
        data = file.read_bytes()
        header = fmt.decode_file_header(data)
        assert header is not None
        borders = frame_borders(data)
        for at, after in zip(borders, borders[1:], strict=False):
            position = header.begin + at - header.nbytes
            if data[at + 4] == fmt.FrameType.INDEX:
                last = position
            elif data[at + 4] != fmt.FrameType.RUN and not row["begin"] <= position < row["end"]:
                found.append((file, position, at, after - at))
    destroyed = 0
    for file, position, at, length in found:
        if position < last:
            with file.open("r+b") as open_file:
                open_file.seek(at)
                open_file.write(bytes(length))
            destroyed += length
    return destroyed


@pytest.mark.parametrize("state", ["ended", "killed"])
@pytest.mark.parametrize("selection", [Selection(window=5), Selection(steps=(11, 11))])
def test_frames_of_other_windows_are_not_read(state: State, selection: Selection, tmp_path: Path) -> None:
    """They are destroyed on the disk: the merge of one window is the same, and finds no damage."""
    paths = [record(tmp_path, rank, state=state) for rank in (0, 1)]
    before, report = merged(tmp_path, selection)
    assert len(before) == (2 * EVENTS if selection.steps != (11, 11) else EVENTS)
    for path in paths:
        assert damage_others(path, 5) > 1000
    after, again = merged(tmp_path, selection)
    assert shown(after) == shown(before)
    assert again.members == report.members and not any(member.damage for member in again.members)
    whole, everything = merged(tmp_path)
    assert len(whole) < 2 * EVENTS * WINDOWS and all(member.damage for member in everything.members)


def test_damage_of_the_window_itself_is_reported(tmp_path: Path) -> None:
    """Of whose it is."""
    paths = [record(tmp_path, rank) for rank in (0, 1)]
    for file in segment_paths(paths[1]):
        data = bytearray(file.read_bytes())
        borders = frame_borders(bytes(data))
        for at, after in zip(borders, borders[1:], strict=False):
            found = fmt.decode_events_header(bytes(data[at + fmt.FRAME_HEADER.size : after]))
            if data[at + 4] == fmt.FrameType.EVENTS and found is not None and found[0].window == 5:
                data[after - 1] ^= 1
        file.write_bytes(data)
    exporter, report = merged(tmp_path, Selection(window=5))
    assert len(exporter) == EVENTS
    assert [bool(member.damage) for member in report.members] == [False, True]


def test_a_rank_that_was_started_again_is_found_by_its_steps(tmp_path: Path) -> None:
    """It counts its windows from 0: the rows that are wanted at first are not those that belong to the window of the job."""
    record(tmp_path, 0)
    record(tmp_path, 1, state="killed")
    again = record(tmp_path, 1, first_step=2 * 9, start=1, state="growing")
    exporter, report = merged(tmp_path, Selection(window=9))
    assert set(exporter.names()) >= {f"rank {rank} start 0 window 9" for rank in (0, 1)} | {"rank 1 start 1 window 0"}
    assert len(exporter) == 3 * EVENTS and [member.events for member in report.members] == [EVENTS] * 3
    # Of a window without an end the steps are known, too.
    last, _ = merged(tmp_path, Selection(window=WINDOWS))
    assert set(last.names()) == {"rank 1 start 0 window 12", "rank 1 start 1 window 3"}
    damage_others(again, 0)
    assert shown(merged(tmp_path, Selection(window=9))[0]) == shown(exporter)


def test_a_window_without_an_end_is_made_of_outlines(tmp_path: Path) -> None:
    """Its steps before the last index are read from outlines, and not from its events."""
    run = msgspec.structs.replace(run_in(tmp_path), rank=1, world_size=2, job="job", id="1" * 32, pid=2)
    writer = JournalWriter(tmp_path / "streams" / ("1" * 32) / "journal")
    writer.open(run)
    at = run.anchor.monotonic_ns
    for number in range(40):
        step = Step(number, at + number * 1000, at + number * 1000 + 999)
        writer.write_batch(events_of(f"step {number}", 0, (step, step)))
    writer.abandon()
    recording = Recording.of(writer.path, "")
    (window,) = recording.windows(recording.rows).values()
    assert [step.number for step in window.steps] == [*range(40)] and not window.complete
    data = bytearray(writer.path.read_bytes())
    borders = frame_borders(bytes(data))
    last = max(at for at in borders[:-1] if data[at + 4] == 16)
    for at, after in zip(borders, borders[1:], strict=False):
        if at < last and data[at + 4] == 4:
            data[at + 24 : after] = bytes(after - at - 24)
    writer.path.write_bytes(data)
    recording = Recording.of(writer.path, "")
    assert recording.windows(recording.rows) == {0: window}


@pytest.mark.parametrize("missing", [(2, 3), (0, 1, 3)])
def test_segments_between_others_that_were_evicted(missing: tuple[int, ...], tmp_path: Path) -> None:
    """Windows in the other segments are found without those, and without reading what else is there."""
    path = record(tmp_path, 0)
    record(tmp_path, 1)
    whole = {number: shown(merged(tmp_path, Selection(window=number))[0]) for number in range(WINDOWS)}
    counts = [Segment.read(SegmentFile(file, file.stat())).counted() for file in segment_paths(path)]
    assert len(counts) > 5
    rows = Recording.of(path, "").rows
    reader = FrameReader(path)
    hit = [{reader.files.at(int(at)).number for at in (row["begin"] + 1, row["end"])} & {*missing} for row in rows]
    reader.close()
    left = {int(row["window"]) for row, its in zip(rows, hit, strict=True) if not its}
    for number in missing:
        evict(path, counts[number])
    assert 2 < len(left) < WINDOWS
    for number in left:
        exporter, report = merged(tmp_path, Selection(window=number))
        assert shown(exporter) == whole[number]
        assert report.absent == [] and not any(member.damage for member in report.members)
    exporter, report = merged(tmp_path)
    assert len(exporter) == EVENTS * (2 * WINDOWS) - sum(counts[number].events for number in missing)
    assert not any(member.damage for member in report.members)
    assert damage_others(path, max(left)) > 0
    assert shown(merged(tmp_path, Selection(window=max(left)))[0]) == whole[max(left)]


def test_clocks_of_a_rank_that_was_started_again_are_those_of_the_jobs_window(tmp_path: Path) -> None:
    """It counts its windows anew: comparisons of clocks near its own window of that number would say nothing."""
    for rank, start, windows, first_step, at_s in ((0, 0, 18, 0, 0), (1, 0, 6, 0, 0), (1, 1, 12, 12, 3600)):
        _wandering(tmp_path, rank, start, windows, first_step, at_s)
    whole, _ = merged(tmp_path)
    for selection in (Selection(window=8), Selection(window=2, stream=f"{17:032x}")):
        alone, report = merged(tmp_path, selection)
        assert report.windows == [8]
        begins = [sorted(int(b.events["ts"].min()) for b in one.batches if b.window == 8) for one in (whole, alone)]
        apart = [at[-1] - at[0] for at in begins]
        bound = max(member.bound_ns for member in report.members if member.bound_ns is not None)
        assert abs(apart[1] - apart[0]) <= 2 * bound < 10_000_000


def _wandering(place: Path, rank: int, start: int, windows: int, first_step: int, at_s: int) -> None:
    """A start of a rank with a window every ten minutes; the clock of rank 1 wanders by 10 ms."""
    run, gap_s, begin = run_in(place), 600, 10**15
    anchor = msgspec.structs.replace(
        run.anchor, monotonic_ns=begin + at_s * SECOND, wall_ns=run.anchor.wall_ns + at_s * SECOND
    )
    id = f"{rank + 16 * start:032x}"
    run = msgspec.structs.replace(
        run,
        rank=rank,
        world_size=2,
        job="job",
        host=f"h{rank}",
        clock=f"clock {rank}",
        pid=1 + rank + 10 * start,
        id=id,
        anchor=anchor,
    )
    writer = JournalWriter(place / "streams" / id / "journal")
    writer.open(run)
    for number in range(windows):
        at = begin + (at_s + number * gap_s) * SECOND
        for sent in range(at, at + gap_s * SECOND, 10 * SECOND):
            ahead = round(1e7 * math.sin(2 * math.pi * (sent - begin) / SECOND / 7200)) if rank else 0
            arrived = sent + ahead + 50_000
            writer.write_sync(
                ClockSync(sent=sent, arrived=arrived, answered=arrived, returned=sent + 100_000, clock="c")
            )
        steps = tuple(Step(first_step + 2 * number + i, at + i * 1000, at + i * 1000 + 999) for i in range(2))
        batch = events_of("x", number, steps)
        writer.write_batch(batch)
        closed = msgspec.structs.replace(window_of(number, batch), start_ns=at, end_ns=steps[1].end_ns, steps=steps)
        writer.write_window(closed)
    writer.close()
