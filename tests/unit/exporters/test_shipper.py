"""The shipper sends each frame of a journal once, in order, whatever the collector confirms, forgets or already has."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.files.stream_file import StreamFile
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.exporters.stream.protocol import Frames
from stepscope.exporters.stream.shipper import Chunk, Head, Shipper
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.messages import refused


def written(directory: Path, *, windows: int = 6, segment_bytes: int = 2000, close: bool = True) -> JournalWriter:
    """A journal of several segments: each window has ten spans."""
    writer = JournalWriter(directory / "journal", segment_bytes=segment_bytes)
    writer.open(run_in(directory))
    for index in range(windows):
        batch = batch_of(spans([f"span {n}" for n in range(10)]), window=index)
        writer.write_batch(batch)
        writer.write_window(window_of(index, batch))
    if close:
        writer.close()
    return writer


@contextmanager
def shipping(journal: Path) -> Generator[Shipper]:
    shipper = Shipper(journal)
    try:
        yield shipper
    finally:
        shipper.close()


def store(file: StreamFile, chunk: Chunk) -> None:
    """Stores a chunk, as a collector does."""
    header = Frames(chunk.begin.number, chunk.count, chunk.segment, chunk.begin.at)
    file.write(file.check(header, memoryview(chunk.data)))


def collected(directory: Path, journal: Path) -> StreamFile:
    directory.mkdir(exist_ok=True)
    head = Head.of(journal)
    return StreamFile(directory, head.sync, head.run)


def same_files(one: Path, other: Path) -> bool:
    """Whether two journals have the same segments, byte for byte."""
    ours, theirs = segment_paths(one), segment_paths(other)
    return [(path.name, path.read_bytes()) for path in ours] == [(path.name, path.read_bytes()) for path in theirs]


@given(st.data())
def test_the_collector_gets_the_same_files(data: st.DataObject) -> None:
    """However messages are cut, connections are lost, confirmations lag, and the collector loses everything."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        writer = written(directory, close=False)
        file = collected(directory / "c", writer.path)
        confirmed: Counter[int] = Counter()
        with shipping(writer.path) as shipper:
            for move in data.draw(
                st.lists(st.sampled_from(["send", "confirm", "reconnect", "lose", "write"]), max_size=30)
            ):
                if (
                    move == "send"
                    and (chunk := shipper.next_chunk(data.draw(st.sampled_from([1, 700, 5000])))) is not None
                ):
                    store(file, chunk)
                elif move == "confirm":
                    shipper.confirm(file.next)
                elif move == "reconnect":
                    shipper.resume(file.next, file.checksum)
                elif move == "lose":
                    file.close()
                    for path in segment_paths(file.path):
                        path.unlink()
                    file = collected(directory / "c", writer.path)
                    shipper.resume(file.next, file.checksum)
                elif move == "write":
                    writer.write_batch(batch_of(spans(["more"]), window=99))
                confirmed += shipper.drain_confirmed()
            writer.close()
            shipper.resume(file.next, file.checksum)
            while (chunk := shipper.next_chunk(5000)) is not None:
                store(file, chunk)
            shipper.confirm(file.next)
            assert confirmed + shipper.drain_confirmed() == counts(writer.path)
        with shipping(writer.path) as shipper:
            shipper.resume(file.next, file.checksum)
            assert shipper.is_confirmed and shipper.next_chunk(5000) is None
            assert shipper.drain_confirmed() == counts(writer.path)
        file.close()
        assert file.ended and same_files(writer.path, file.path)


def counts(journal: Path) -> Counter[int]:
    """Number of events, by window."""
    found: Counter[int] = Counter()
    with JournalReader(journal) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                found[item.window] += len(item)
    return found


def test_chunks_are_of_one_segment(tmp_path: Path) -> None:
    """And together they are all frames, each with its position."""
    journal = written(tmp_path).path
    with shipping(journal) as shipper:
        chunks = list(iter(lambda: shipper.next_chunk(1 << 20), None))
        assert [chunk.segment for chunk in chunks] == list(range(len(segment_paths(journal)))) and len(chunks) > 2
        assert shipper.sent_bytes == sum(len(chunk.data) for chunk in chunks)
        assert sum((chunk.events for chunk in chunks), Counter[int]()) == dict.fromkeys(range(6), 10)
        for chunk, following in zip(chunks, chunks[1:], strict=False):
            assert chunk.end == following.begin
        shipper.confirm(chunks[-1].end.number)
        assert shipper.is_confirmed and shipper.sent_bytes == 0


def test_uncommitted_frames_are_not_sent(tmp_path: Path) -> None:
    """A failed write is undone: frames behind the end that the writer has stated may become others."""
    writer = written(tmp_path, segment_bytes=0)
    end = 700
    shipper = Shipper(writer.path, lambda: end)
    assert (chunk := shipper.next_chunk(1 << 20)) is not None and chunk.end.at <= end
    assert shipper.next_chunk(1 << 20) is None
    end = writer.end
    assert shipper.next_chunk(1) is not None
    shipper.close()


def test_deleted_segments_are_passed_over(tmp_path: Path) -> None:
    """The numbers of the next frames say how many are missing."""
    journal = written(tmp_path, windows=80).path
    paths = segment_paths(journal)
    for path in paths[:2]:
        path.unlink()
    with shipping(journal) as shipper:
        assert shipper.confirmed.number > 0
        shipper.resume(0)
        assert (chunk := shipper.next_chunk(1 << 20)) is not None
        assert (chunk.segment, chunk.begin) == (2, shipper.confirmed)
        paths[4].unlink()  # while the journal is read
        segments = [chunk.segment for chunk in iter(lambda: shipper.next_chunk(1 << 20), None)]
        assert segments == [3, *range(5, len(paths))]


def test_a_collector_with_other_frames_is_refused(tmp_path: Path) -> None:
    """A machine that lost power may have written other frames with the numbers of those that it had sent."""
    journal = written(tmp_path).path
    with shipping(journal) as shipper:
        assert (chunk := shipper.next_chunk(700)) is not None
        with refused(FormatError, "lost power", journal):
            shipper.resume(chunk.end.number, chunk.checksum ^ 1)
        with refused(FormatError, "1000", journal):
            shipper.resume(1001)
        assert not shipper.drain_confirmed()
        shipper.resume(chunk.end.number, chunk.checksum)
        assert shipper.drain_confirmed() == chunk.events
        assert (following := shipper.next_chunk(700)) is not None and following.begin == chunk.end


def test_the_stream_has_the_same_id_whenever_it_is_sent(tmp_path: Path) -> None:
    """Also if its first segment was deleted; another journal of the run has another one."""
    journal = written(tmp_path).path
    head = Head.of(journal)
    assert len(head.stream) == 32 and head.sync == FrameReader(journal).sync_word
    segment_paths(journal)[0].unlink()
    assert Head.of(journal) == head
    (tmp_path / "other").mkdir()
    other = JournalWriter(tmp_path / "other" / "journal")
    other.open(msgspec.structs.replace(run_in(tmp_path), id=head.run.id))
    other.close()
    assert Head.of(other.path).stream != head.stream
    for content in (b"", b"something else that is no journal at all"):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(FormatError):
            Head.of(tmp_path / "bad")


def test_events_that_are_left_out_are_counted_once(tmp_path: Path) -> None:
    """Also if the connection is lost before the frames around them are confirmed; they are never confirmed themselves."""
    journal = written(tmp_path).path
    with shipping(journal) as shipper:
        for _ in range(2):
            shipper.resume(0)
            while (chunk := shipper.next_chunk(1)) is not None and not chunk.events:
                pass
            assert chunk is not None
            shipper.skip_chunk(chunk)
        assert shipper.left_out == 0
        while (last := shipper.next_chunk(1 << 20)) is not None:
            shipper.confirm(last.end.number)
        assert shipper.is_confirmed and shipper.left_out == 10
        assert shipper.drain_confirmed().total() == 50
