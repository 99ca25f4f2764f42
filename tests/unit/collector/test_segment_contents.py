"""What a segment contains is found by its index, or by the headers of its frames, and is the same: what a reader of it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.runs.evicted import Evicted
from stepscope.collector.runs.segment_contents import MAX_WINDOWS, SegmentContents
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
from tests.support.windowed import SECOND, START, Frame, closed, encoded, events, run_of, windows
from tests.unit.runtime.journal.test_journal_index import ACT_LISTS, Act, window, write

FAR = 1 << 62


def contents(path: Path, earlier: Sequence[Evicted] = (), changed_ns: int = FAR) -> SegmentContents:
    """What a segment contains."""
    return SegmentContents.of(path, path.stat().st_size, changed_ns, earlier)


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
def test_it_is_what_a_reader_finds(
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
    earlier: list[Evicted] = []
    for number, path in enumerate(files):
        found = contents(path, earlier)
        moved = path.rename(place / f"alone-{number}")
        items, _ = read_journal(moved)
        numbers = frame_numbers(moved)
        counts = Counter[int]()
        for item in items:
            if isinstance(item, EventBatch):
                counts[item.window] += len(item)
        windows = [item for item in items if isinstance(item, Window)]
        lost = sum(source.dropped["overflow"] for one in windows for source in one.ledger.sources.values())
        size = moved.stat().st_size - (fmt.MAX_FILE_HEADER if number else fmt.FILE_HEADER.size)
        expected = Evicted(
            segment=number, first=numbers[0], frames=len(numbers), nbytes=size, events=dict(counts),
            windows=len(windows), dropped=lost,
        )  # fmt: skip
        assert found.counts == expected
        assert [(one.index, one.steps) for one in found.closed] == [
            (one.index, (one.steps[0].number, one.steps[-1].number) if one.steps else None) for one in windows
        ]
        moved.rename(path)
        without_index(path)
        scanned = contents(path, earlier)
        assert scanned.counts == expected and scanned.run == found.run
        assert scanned.closed == found.closed
        assert scanned.last_ns == found.last_ns
        earlier.append(found.counts)


def segment(path: Path, *frames: Frame) -> Path:
    """A segment with these frames, without an index."""
    path.write_bytes(fmt.encode_file_header(SYNC) + encoded(list(frames)))
    return path


def test_of_very_many_windows_most_are_added_up(tmp_path: Path) -> None:
    """Memory and the line that is written down are bounded; nothing is lost from the sums, and the slowest is known."""
    count, slow = 3 * MAX_WINDOWS, 5
    made = [
        frame for number in range(count) for frame in (events(number, 128, number), closed(number, 2 * number, number))
    ]
    made[2 * slow + 1] = closed(slow, 2 * slow, slow, seconds=9.0)
    made.append(events(count, 6400, count))
    found = contents(segment(tmp_path / "journal", run_of(), *made))
    assert found.counts.total == 2 * count + 100 and found.counts.windows == count
    assert len(found.counts.events) == MAX_WINDOWS and found.counts.events[count] == 100
    indices = {one.index for one in found.closed}
    assert len(indices) <= MAX_WINDOWS and {slow, count - 1, count - MAX_WINDOWS // 2} <= indices


def test_a_clock_that_is_ahead_is_not_believed(tmp_path: Path) -> None:
    """No window is later than its segment was written, whatever the rank says."""
    years = 10**9
    path = segment(tmp_path / "journal", run_of(0, began=years), *windows(range(2), 128, began=years))
    now = START + 100 * SECOND
    found = contents(path, changed_ns=now)
    assert found.last_ns == now and {one.end_ns for one in found.closed} == {now}
    right = segment(tmp_path / "right", run_of(), *windows(range(2), 128))
    assert [one.end_ns for one in contents(right, changed_ns=now).closed] == [START + SECOND, START + 2 * SECOND]


@pytest.mark.parametrize("damage", [b"", b"\xf5abc", bytes(100)])
def test_a_segment_that_was_cut_is_read_as_far_as_it_is_whole(tmp_path: Path, damage: bytes) -> None:
    path = segment(tmp_path / "journal", run_of(), *windows(range(3), 256))
    path.write_bytes(path.read_bytes()[:-10] + damage)
    found = contents(path)
    assert found.counts.total == 12 and [one.index for one in found.closed] == [0, 1]
