"""The windows of a segment are found by its index, or by the headers of its frames, and are those that a reader of it finds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.files.disk import SegmentFile
from stepscope.collector.retention.inventory import MAX_WINDOWS, Segment
from stepscope.collector.runs.evicted import Evicted
from stepscope.exporters.specimens import run_in
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.index import index_records
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.windows.window import Window
from tests.support.journals import frame_numbers, read_journal
from tests.support.streams import SYNC
from tests.support.window_streams import SECOND, START, Frame, closed, encoded, events, run_of, windows
from tests.unit.runtime.journal.test_journal_index import ACT_LISTS, Act, window, write

FAR = 1 << 62


def read(path: Path, changed_ns: int = FAR) -> Segment:
    """A segment that was changed last at this time."""
    os.utime(path, ns=(changed_ns, changed_ns))
    return Segment.read(SegmentFile(path, path.stat()))


def without_index(path: Path) -> None:
    """Makes the index frames of a segment those of a type that nobody knows."""
    reader = FrameReader(path)
    end = reader.files.begin + path.stat().st_size - reader.files.at(reader.files.begin).header_bytes
    places = [reader.files.at(at).offset(at) for at, _ in index_records(reader) if at < end]
    sync = reader.sync_word
    reader.close()
    assert sync is not None
    data = bytearray(path.read_bytes())
    for at in places:
        found = fmt.decode_frame_header(data, at, sync)
        assert found is not None
        _, flags, number, length, _ = found
        frame = fmt.encode_frame(sync, 99, number, [bytes(data[at + 24 : at + 24 + length])], flags)
        data[at : at + 24 + length] = b"".join(map(bytes, frame))
    path.write_bytes(data)


@given(ACT_LISTS, st.integers(1, 4_000), st.booleans())
def test_listed_windows_are_those_that_a_reader_finds(
    tmp_path_factory: pytest.TempPathFactory, acts: Sequence[Act], segment_bytes: int, ended: bool
) -> None:
    """Of each segment, however windows go on in the next one, and whether it has an index or not."""
    place = tmp_path_factory.mktemp("journal")
    writer = JournalWriter(place / "journal", segment_bytes=segment_bytes)
    writer.open(run_in(place))
    open = write(writer, acts)
    if ended:
        for index in sorted(open):
            writer.write_window(window(index))
        writer.close()
    else:
        writer.abandon()
    files = segment_paths(writer.path)
    files = files if ended else files[:-1]
    for number, path in enumerate(files):
        found, counted = read(path), read(path).counted()
        moved = path.rename(place / f"alone-{number}")
        items, _ = read_journal(moved)
        batches = [item for item in items if isinstance(item, EventBatch)]
        windows = [item for item in items if isinstance(item, Window)]
        size = moved.stat().st_size - (fmt.MAX_FILE_HEADER if number else fmt.FILE_HEADER.size)
        expected = (number, len(frame_numbers(moved)), size, sum(map(len, batches)))
        assert (counted.segment, counted.frames, counted.nbytes, counted.events) == expected
        finished = [one for one in found.windows if one.end_ns is not None]
        assert [(one.index, one.steps) for one in finished] == [
            (one.index, (one.steps[0].number, one.steps[-1].number) if one.steps else None) for one in windows
        ]
        there = {*(batch.window for batch in batches if len(batch)), *(one.index for one in windows)}
        assert there <= {one.index for one in found.windows}
        assert not there or counted.first_window <= min(there) <= max(there) <= counted.last_window
        moved.rename(path)
        without_index(path)
        scanned = read(path)
        assert scanned.run == found.run and [one for one in scanned.windows if one.end_ns is not None] == finished


def segment(path: Path, *frames: Frame) -> Path:
    """A segment with these frames, without an index."""
    path.write_bytes(fmt.encode_file_header(SYNC) + encoded(list(frames)))
    return path


def test_very_many_windows_are_counted_together(tmp_path: Path) -> None:
    """Memory is bounded; nothing is lost from the sums, and the slowest is known."""
    count, slow = 3 * MAX_WINDOWS, 5
    made = [
        frame for number in range(count) for frame in (events(number, 128, number), closed(number, 2 * number, number))
    ]
    made[2 * slow + 1] = closed(slow, 2 * slow, slow, seconds=9.0)
    made.append(events(count, 6400, count))
    found = read(segment(tmp_path / "journal", run_of(), *made))
    assert found.counted() == Evicted(
        segment=0, frames=2 * count + 2, nbytes=found.counted().nbytes, events=2 * count + 100, first_window=0,
        last_window=count,
    )  # fmt: skip
    indices = {one.index for one in found.windows}
    assert len(indices) <= MAX_WINDOWS + 1 and {slow, count - 1, count - MAX_WINDOWS // 2, count} <= indices


def test_a_clock_that_is_ahead_is_not_believed(tmp_path: Path) -> None:
    """No window is later than its segment was written, whatever the rank says."""
    years = 10**9
    path = segment(tmp_path / "journal", run_of(0, began=years), *windows(range(2), 128, began=years))
    now = START + 100 * SECOND
    found = read(path, now)
    assert found.last_ns == now and {one.end_ns for one in found.windows} == {now}
    right = segment(tmp_path / "right", run_of(), *windows(range(2), 128))
    assert [one.end_ns for one in read(right, now).windows] == [START + SECOND, START + 2 * SECOND]


@pytest.mark.parametrize("damage", [b"", b"\xf5abc", bytes(100)])
def test_a_segment_that_was_cut_is_read_as_far_as_it_is_whole(tmp_path: Path, damage: bytes) -> None:
    path = segment(tmp_path / "journal", run_of(), *windows(range(3), 256))
    path.write_bytes(path.read_bytes()[:-10] + damage)
    found = read(path)
    assert found.counted().events == 12
    assert [(one.index, one.end_ns is None) for one in found.windows] == [(0, False), (1, False), (2, True)]
