"""The segments of a stream get each frame once, wherever a crash has cut them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.files import stream_file
from stepscope.collector.files.stream_file import StreamFile
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from tests.support.messages import refused
from tests.support.streams import RUN, SYNC, frames, frames_header, run_frame

HEADER = fmt.encode_file_header(SYNC)


def write_frames(file: StreamFile, first: int, count: int, size: int = 40, segment: int = 0, position: int = 20) -> int:
    """Gives frames to a file; how many of them were new."""
    header = frames_header(first, count, segment, position)
    new_frames = file.check(header, memoryview(frames(first, count, size)))
    file.write(new_frames)
    return len(new_frames.frames)


def test_frames_are_stored_once(tmp_path: Path) -> None:
    """A frame that is sent twice, whole or in part, is there once, byte by byte."""
    file = StreamFile(tmp_path, SYNC, RUN)
    assert [
        write_frames(file, 0, 3),
        write_frames(file, 0, 3),
        write_frames(file, 1, 4),
        write_frames(file, 5, 1),
        write_frames(file, 2, 2),
    ] == [3, 0, 2, 1, 0]
    file.close()
    assert file.path.read_bytes() == HEADER + frames(0, 6)


@given(st.data())
def test_a_file_goes_on_wherever_it_was_cut(data: st.DataObject) -> None:
    """After a crash inside any write the result is as if there had been none."""
    size = data.draw(st.sampled_from([0, 8, 400]))
    with tempfile.TemporaryDirectory() as place:
        file = StreamFile(Path(place), SYNC, RUN)
        whole = HEADER + frames(0, 9, size)
        for first in (0, 3, 6):
            write_frames(file, first, 3, size)
        file.close()
        cut = data.draw(st.integers(0, len(whole)))
        os.truncate(file.path, cut)
        again = StreamFile(Path(place), SYNC, RUN)
        expected = max(cut - len(HEADER), 0) * 9 // (len(whole) - len(HEADER))
        assert again.next == expected
        resent = data.draw(st.integers(0, again.next))
        write_frames(again, resent, 9 - resent, size)
        again.close()
        assert file.path.read_bytes() == whole


def test_a_file_that_was_deleted_takes_nothing(tmp_path: Path) -> None:
    """Bytes written to it would be gone when it is closed; a file that was moved is there."""
    file = StreamFile(tmp_path, SYNC, RUN)
    write_frames(file, 0, 3)
    moved = file.path.rename(tmp_path / "moved")
    assert write_frames(file, 3, 1) == 1
    moved.unlink()
    with refused(FileNotFoundError, "deleted while it was written", snapshot=False):
        write_frames(file, 4, 1)
    assert file.next == 4
    file.close()


def test_frames_go_to_their_segments(tmp_path: Path) -> None:
    """Each file has the header that the rank's has; a closed one is not touched again, also after a restart."""
    file = StreamFile(tmp_path, SYNC, RUN)
    write_frames(file, 0, 3)
    second, third = 20 + 3 * 64, 20 + 5 * 64
    assert write_frames(file, 3, 2, segment=1, position=second) == 2
    assert write_frames(file, 1, 4, segment=1, position=84) == 0
    file.close()
    again = StreamFile(tmp_path, SYNC, RUN)
    assert (again.next, again.size) == (5, 20 + 3 * 64 + 32 + 2 * 64)
    write_frames(again, 5, 1, segment=3, position=third)
    with refused(FormatError, "segment 1", "segment 3"):
        write_frames(again, 6, 1, segment=1)
    with refused(FormatError, "segment 4", "byte 100"):
        write_frames(again, 6, 1, segment=4, position=100)
    again.close()
    assert (tmp_path / "journal").read_bytes() == HEADER + frames(0, 3)
    assert (tmp_path / "journal.1").read_bytes() == fmt.encode_file_header(SYNC, 1, second) + frames(3, 2)
    assert (tmp_path / "journal.3").read_bytes() == fmt.encode_file_header(SYNC, 3, third) + frames(5, 1)


def test_missing_frames_are_counted(tmp_path: Path) -> None:
    """A rank may have deleted its oldest segments, and a broker may have lost messages."""
    file = StreamFile(tmp_path, SYNC, RUN)
    new_frames = file.check(frames_header(7, 2, 2, 1000), memoryview(run_frame(7) + frames(8, 1)))
    file.write(new_frames)
    assert new_frames.missing == 7 and len(new_frames.frames) == 2
    new_frames = file.check(frames_header(12, 1, 2, 2000), memoryview(frames(12, 1)))
    file.write(new_frames)
    assert new_frames.missing == 3
    file.close()
    assert file.path.with_name("journal.2").read_bytes().endswith(run_frame(7) + frames(8, 1) + frames(12, 1))


def test_a_segment_without_its_beginning_gets_the_run(tmp_path: Path) -> None:
    """Its positions stay those of the rank's journal."""
    file = StreamFile(tmp_path, SYNC, RUN)
    new_frames = file.check(frames_header(7, 3, 1, 1000), memoryview(frames(7, 3)))
    file.write(new_frames)
    assert new_frames.missing == 6 and len(new_frames.frames) == 4
    file.close()
    begin = 1000 - len(run_frame(6))
    whole = fmt.encode_file_header(SYNC, 1, begin) + run_frame(6) + frames(7, 3)
    assert file.path.with_name("journal.1").read_bytes() == whole
    again = StreamFile(tmp_path, SYNC, RUN)
    assert again.next == 10
    again.close()


def test_a_file_without_frames_is_deleted(tmp_path: Path) -> None:
    """A collector that was killed between a new segment's header and its first frame continues behind the one before."""
    file = StreamFile(tmp_path, SYNC, RUN)
    write_frames(file, 0, 3)
    file.close()
    (tmp_path / "journal.1").write_bytes(fmt.encode_file_header(SYNC, 1, 20 + 3 * 64))
    again = StreamFile(tmp_path, SYNC, RUN)
    assert again.next == 3 and not (tmp_path / "journal.1").exists()
    assert write_frames(again, 3, 1, segment=1, position=20 + 3 * 64) == 1
    again.close()


def test_a_segment_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that never begins a new one is refused."""
    monkeypatch.setattr(stream_file, "MAX_SEGMENT_BYTES", 300)
    file = StreamFile(tmp_path, SYNC, RUN)
    write_frames(file, 0, 4)
    with refused(FormatError, "300"):
        write_frames(file, 4, 1)
    assert write_frames(file, 4, 1, segment=1, position=20 + 4 * 64) == 1
    file.close()


@pytest.mark.parametrize(
    ("first", "count", "data", "facts"),
    [
        (3, 2, frames(3, 1), ["2", "1"]),
        (3, 1, frames(3, 2) + b"not looked at", ["1"]),
        (3, 2, frames(4, 2), ["3", "4"]),
        (3, 1, frames(3, 1)[:-1], []),
        (3, 1, frames(3, 1)[:10], []),
        (3, 1, frames(3, 1, sync=b"\xf5xyz"), []),
        (3, 1, frames(3, 1)[:-1] + b"?", []),
        (3, 1, b"", ["1", "0"]),
        (3, 0, frames(3, 1), ["0"]),
    ],
)
def test_other_data_are_refused_whole(tmp_path: Path, first: int, count: int, data: bytes, facts: list[str]) -> None:
    """No part of a message is stored if its header is wrong."""
    file = StreamFile(tmp_path, SYNC, RUN)
    write_frames(file, 0, 3)
    with refused(FormatError, *facts):
        file.check(frames_header(first, count), memoryview(data))
    assert write_frames(file, 3, 2) == 2
    file.close()
    assert file.path.read_bytes() == HEADER + frames(0, 5)


def test_another_stream_or_no_journal_is_not_touched(tmp_path: Path) -> None:
    """A file that cannot be this stream's stays as it is."""
    other = StreamFile(tmp_path, b"\xf5xyz", RUN)
    other.write(other.check(frames_header(0, 1), memoryview(frames(0, 1, sync=b"\xf5xyz"))))
    other.close()
    before = (tmp_path / "journal").read_bytes()
    with refused(FormatError):
        StreamFile(tmp_path, SYNC, RUN)
    assert (tmp_path / "journal").read_bytes() == before
    (tmp_path / "journal").write_bytes(b"something else, rather long, of somebody")
    with refused(FormatError, "journal"):
        StreamFile(tmp_path, SYNC, RUN)
    assert (tmp_path / "journal").read_bytes().startswith(b"something")


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither of the first segment nor of a later one."""
    for name in ("journal", "journal.1"):
        place = tmp_path / name.join("xx")
        place.mkdir()
        (place / name).symlink_to(tmp_path / "target")
        with pytest.raises(OSError):
            StreamFile(place, SYNC, RUN)
    assert not (tmp_path / "target").exists()


def test_files_are_private(tmp_path: Path) -> None:
    """They hold whatever arguments programs recorded."""
    before = os.umask(0)
    try:
        file = StreamFile(tmp_path, SYNC, RUN)
        write_frames(file, 0, 1)
        write_frames(file, 1, 1, segment=1, position=84)
        file.close()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_full_disk_leaves_the_file_as_it_was(small_disk: Path) -> None:
    """A write that does not fit is undone, and works when there is room again."""
    ballast = small_disk / "ballast"
    file = StreamFile(small_disk, SYNC, RUN)
    write_frames(file, 0, 2)
    ballast.write_bytes(b"x" * (900 << 10))
    with pytest.raises(OSError):
        write_frames(file, 2, 40, 8000)
    assert file.next == 2
    ballast.unlink()
    assert write_frames(file, 2, 40, 8000) == 40
    file.close()
    assert StreamFile(small_disk, SYNC, RUN).next == 42
