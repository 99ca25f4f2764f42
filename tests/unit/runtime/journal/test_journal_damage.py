"""Torn, damaged and hostile journals: what is whole is read, and nothing else."""

from __future__ import annotations

import os
import tempfile
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.specimens import batch_of, spans
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import records as records
from stepscope.runtime.journal.columns import HEADER
from stepscope.runtime.journal.reader import JournalReader
from tests.support.journals import (
    Described,
    HandMade,
    batch_with_arguments,
    described,
    events_of,
    frame_borders,
    read_journal,
    replace_file,
    write_journal,
)
from tests.support.messages import refused


def sample(directory: Path) -> bytes:
    """The bytes of a small journal with two windows and arguments."""
    batches = [
        batch_with_arguments(
            [f"damage {index}", "same"], [{"key": index}, {}], window=index // 3, start_ns=1000 * index
        )
        for index in range(6)
    ]
    path = write_journal(directory / "sample", batches)
    data = path.read_bytes()
    path.unlink()
    return data


def batches_in(path: Path) -> list[list[Described]]:
    """The batches of a journal in words."""
    items, _ = read_journal(path)
    return [described(item) for item in items if isinstance(item, EventBatch)]


def test_every_cut_keeps_the_whole_frames(tmp_path: Path) -> None:
    """Cut at any byte, a journal gives exactly the frames that are whole, and says how many bytes are not."""
    data = sample(tmp_path)
    path = tmp_path / "journal"
    replace_file(path, data)
    whole = batches_in(path)
    borders = frame_borders(data)
    event_ends = [end for end, at in zip(borders[1:], borders, strict=False) if data[at + 4] == fmt.FrameType.EVENTS]
    # The table of names may be long, when other tests ran before; its inside is like the inside of any frame.
    cuts = {cut for border in borders for cut in range(border - 40, border + 40)} | set(range(300))
    for cut in sorted(cut for cut in cuts if 0 <= cut <= len(data)):
        replace_file(path, data[:cut])
        items, damage = read_journal(path)
        found = [described(item) for item in items if isinstance(item, EventBatch)]
        assert found == whole[: sum(end <= cut for end in event_ends)]
        complete = max((border for border in borders if border <= cut), default=0)
        assert damage.torn_bytes == cut - complete
        assert damage.lost_frames == damage.skipped_bytes == 0


vandalism = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "zero"]), st.floats(0, 1), st.binary(min_size=1, max_size=60)),
    min_size=1,
    max_size=6,
)


@given(vandalism)
def test_random_damage_never_invents_events(acts: list[tuple[str, float, bytes]]) -> None:
    """Flipped, missing and additional bytes cost what they hit: no crash, no endless loop, no event that never was."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        intact = sample(place)
        path = replace_file(place / "journal", intact)
        written = {row for batch in batches_in(path) for row in batch}
        broken = bytearray(intact)
        for act, where, junk in acts:
            at = int(where * (len(broken) - 1))
            part = slice(at, at + len(junk))
            if act == "flip":
                broken[at] ^= junk[0] or 1
            elif act == "cut":
                del broken[at : at + 3 * len(junk)]
            elif act == "insert":
                broken[at:at] = junk
            else:
                broken[part] = bytes(len(broken[part]))
        replace_file(path, bytes(broken))
        try:
            found = [row for batch in batches_in(path) for row in batch]
        except FormatError:
            both_marks = fmt.FILE_HEADER.size + fmt.FRAME_HEADER.size
            assert bytes(broken[:both_marks]) != intact[:both_marks]
            return
    assert set(found) <= written
    assert len(found) <= len(written)


def test_damage_in_the_middle_costs_one_frame(tmp_path: Path) -> None:
    """After a damaged frame the reader finds the next one, and says what is missing."""
    data = bytearray(sample(tmp_path))
    borders = frame_borders(bytes(data))
    events = [at for at in borders[:-1] if data[at + 4] == fmt.FrameType.EVENTS]
    hit = events[2]
    size = borders[borders.index(hit) + 1] - hit
    path = tmp_path / "journal"
    replace_file(path, bytes(data))
    whole = batches_in(path)
    for offset in (0, 5, 12, 23, size // 2, size - 1):
        broken = bytearray(data)
        broken[hit + offset] ^= 0x40
        replace_file(path, bytes(broken))
        assert batches_in(path) == whole[:2] + whole[3:]
        _, damage = read_journal(path)
        assert (damage.skipped_bytes, damage.lost_frames, damage.torn_bytes) == (size, 1, 0)


def test_a_destroyed_header_costs_nothing(tmp_path: Path) -> None:
    """The frames can be read without the file's header."""
    data = sample(tmp_path)
    path = replace_file(tmp_path / "journal", data)
    whole = batches_in(path)
    replace_file(path, bytes(fmt.FILE_HEADER.size) + data[fmt.FILE_HEADER.size :])
    _, damage = read_journal(path)
    assert damage.header
    assert batches_in(path) == whole


def test_a_journal_inside_an_event_stays_there(tmp_path: Path) -> None:
    """Frames inside an argument do not pass for the journal's own when the frame around them is damaged."""
    inner = write_journal(tmp_path / "inner", [batch_of(spans(["never written"]))]).read_bytes()
    journal = HandMade(tmp_path / "journal").frame(200, inner).events(spans(["after"]))
    data = bytearray(journal.path.read_bytes())
    at = data.index(inner)
    data[at - 1] ^= 1
    replace_file(journal.path, bytes(data))
    assert [row[2] for row in events_of(journal.path)] == ["after"]


def test_a_page_of_zeros_is_passed_over(tmp_path: Path) -> None:
    """Zeros that a file system leaves after a loss of power do not hide the frames behind them."""
    data = sample(tmp_path)
    border = frame_borders(data)[6]
    path = replace_file(tmp_path / "journal", data[:border] + bytes(3 << 20) + data[border:])
    _, damage = read_journal(path)
    assert damage.skipped_bytes == 3 << 20
    assert batches_in(path) == batches_in(replace_file(tmp_path / "intact", data))


@pytest.mark.parametrize("gap", range((1 << 20) - 30, (1 << 20) + 2, 3))
def test_frames_are_found_across_the_borders_of_a_search(tmp_path: Path, gap: int) -> None:
    """The search reads in pieces; a frame that begins at the end of one is not missed."""
    journal = HandMade(tmp_path / "journal").record(fmt.FrameType.CAP, records.CapRecord(1, 2))
    with open(journal.path, "ab") as file:
        file.write(bytes(gap))
    journal.record(fmt.FrameType.CAP, records.CapRecord(3, 4))
    items, damage = read_journal(journal.path)
    assert items == [records.CapRecord(1, 2), records.CapRecord(3, 4)]
    assert damage.skipped_bytes == gap


def test_claims_are_not_believed(tmp_path: Path) -> None:
    """Lengths and counts beyond what is there, with right checksums, neither allocate nor crash."""
    journal = HandMade(tmp_path / "journal")
    huge = fmt.EVENTS_HEADER.pack(0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 1)
    large = fmt.EVENTS_HEADER.pack(0, 0, 0, 900_000, 0, 0)
    journal.frame(fmt.FrameType.EVENTS, huge + b"x")
    journal.frame(fmt.FrameType.EVENTS, large)
    journal.frame(fmt.FrameType.EVENTS, fmt.EVENTS_HEADER.pack(0, 0, 0, 0, 0, 500) + b"short")
    journal.frame(fmt.FrameType.EVENTS, large + bytes(900_000 * 64))
    for size in (1 << 20, 256 << 20, 0xFFFFFFFF):
        for says in (True, False):
            bomb = zstandard.ZstdCompressor(write_content_size=says).compress(bytes(256 << 20))
            columns = HEADER.pack(size, 0, 100) + bomb
            journal.frame(fmt.FrameType.EVENTS, large + columns, fmt.COLUMNS | fmt.ZSTD)
    journal.frame(fmt.FrameType.EVENTS, b"", fmt.COLUMNS)
    journal.frame(fmt.FrameType.WINDOW_CLOSED, b"\x91" * 100_000)
    journal.record(fmt.FrameType.WINDOW_CLOSED, {"index": 1 << 64 - 1, "start_ns": 0, "end_ns": 0})
    journal.record(fmt.FrameType.RUN, [1, 2, 3])
    tracemalloc.start()
    items, damage = read_journal(journal.path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert items == []
    assert damage == type(damage)(undecodable_frames=14)
    assert peak < 80 << 20


def test_a_frame_beyond_the_end_is_not_allocated(tmp_path: Path) -> None:
    """A header that claims 64 MiB in a short file costs nothing."""
    journal = HandMade(tmp_path / "journal")
    with open(journal.path, "ab") as file:
        head = fmt.FRAME_HEADER.pack(journal.sync, 4, 0, 0, 0, fmt.MAX_PAYLOAD, 0, 0)[:-4]
        file.write(head + zlib.crc32(head).to_bytes(4, "little"))
    tracemalloc.start()
    items, damage = read_journal(journal.path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert items == []
    assert damage.torn_bytes == fmt.FRAME_HEADER.size
    assert peak < 4 << 20


def test_repeated_parts_are_read_as_they_are(tmp_path: Path) -> None:
    """A file glued together from parts of one journal has frames out of order, and no billions of lost ones."""
    data = sample(tmp_path)
    borders = frame_borders(data)
    path = replace_file(tmp_path / "journal", data + data[borders[0] : borders[3]])
    _, damage = read_journal(path)
    assert not damage


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A FIFO is refused instead of waited for."""
    os.mkfifo(tmp_path / "fifo")
    with refused(FormatError, "fifo"):
        JournalReader(tmp_path / "fifo")
    with refused(FormatError, tmp_path):
        JournalReader(tmp_path)
    with pytest.raises(FileNotFoundError):
        JournalReader(tmp_path / "missing")
