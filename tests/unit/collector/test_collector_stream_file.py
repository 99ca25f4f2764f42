"""A stream's file takes each frame once, wherever a crash has cut it, and knows its end without being read."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.files import checkpoint, stream_file
from stepscope.collector.files.stream_file import StreamFile
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from tests.support.messages import refused
from tests.support.streams import RUN, SYNC, frames, run_frame

HEADER = fmt.encode_file_header(SYNC)


def take(file: StreamFile, first: int, count: int, size: int = 40) -> int:
    """Gives frames to a file; how many of them were new."""
    addition = file.check(first, count, memoryview(frames(first, count, size)))
    file.write(addition)
    return len(addition.frames)


def test_frames_are_taken_once(tmp_path: Path) -> None:
    """What is sent twice, whole or in part, is there once, byte by byte."""
    file = StreamFile(tmp_path, SYNC)
    assert [take(file, 0, 3), take(file, 0, 3), take(file, 1, 4), take(file, 5, 1), take(file, 2, 2)] == [3, 0, 2, 1, 0]
    file.close()
    assert file.path.read_bytes() == HEADER + frames(0, 6)


@given(st.data())
def test_a_file_goes_on_wherever_it_was_cut(data: st.DataObject) -> None:
    """After a crash inside any write the result is as if there had been none."""
    size = data.draw(st.sampled_from([0, 8, 400]))
    with tempfile.TemporaryDirectory() as place:
        file = StreamFile(Path(place), SYNC)
        whole = HEADER + frames(0, 9, size)
        for first in (0, 3, 6):
            take(file, first, 3, size)
        if data.draw(st.booleans()):
            file.close()  # with a checkpoint, of what is cut off below
        else:
            file._close()  # pyright: ignore[reportPrivateUsage]  # as the end of the process does
        cut = data.draw(st.integers(0, len(whole)))
        os.truncate(file.path, cut)
        again = StreamFile(Path(place), SYNC)
        expected = max(cut - len(HEADER), 0) * 9 // (len(whole) - len(HEADER))
        assert again.next == expected
        resent = data.draw(st.integers(0, again.next))
        take(again, resent, 9 - resent, size)
        again.close()
        assert file.path.read_bytes() == whole


def test_numbers_go_beyond_32_bits(tmp_path: Path) -> None:
    """A stream that runs for long counts on, also when it is opened again, with and without a checkpoint."""
    start = (1 << 32) - 2
    file = StreamFile(tmp_path, SYNC)
    file.skip(start, RUN)
    assert take(file, start, 5) == 6
    file.close()
    again = StreamFile(tmp_path, SYNC)
    assert again.next == start + 5
    assert take(again, start + 3, 3) == 1
    again.close()
    assert (tmp_path / "journal").read_bytes() == HEADER + run_frame(start - 1) + frames(start, 6)


def test_a_file_that_begins_later_says_whose_it_is(tmp_path: Path) -> None:
    """Unless the exporter does so itself; and once, however it is opened again."""
    for place, first in (("theirs", run_frame(7)), ("ours", frames(7, 1))):
        (tmp_path / place).mkdir()
        file = StreamFile(tmp_path / place, SYNC)
        file.skip(7, RUN)
        assert file.check(7, 0, memoryview(b"")).own == 0
        addition = file.check(7, 3, memoryview(first + frames(8, 2)))
        assert addition.own == (place == "ours")
        file.write(addition)
        file.skip(12, RUN)
        assert file.check(12, 1, memoryview(frames(12, 1))).own == 0
        take(file, 12, 1)
        file.close()
        again = StreamFile(tmp_path / place, SYNC)
        assert again.next == 13
        again.skip(20, RUN)
        assert take(again, 20, 1) == 1
        again.close()
        own = run_frame(6) if place == "ours" else b""
        assert file.path.read_bytes() == HEADER + own + first + frames(8, 2) + frames(12, 1) + frames(20, 1)


def test_numbers_are_counted_on_where_they_wrap(tmp_path: Path) -> None:
    """Reading alone tells, if no more than half of all numbers are missing at once."""
    file = StreamFile(tmp_path, SYNC)
    for first in (0, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 7):
        file.skip(first, RUN)
        take(file, first, 1)
    (tmp_path / checkpoint.NAME).unlink()
    again = StreamFile(tmp_path, SYNC)
    assert again.next == (1 << 32) + 8
    again.close()
    file.close()


@pytest.mark.parametrize(
    ("first", "count", "data", "facts"),
    [
        (5, 1, frames(5, 1), ["3", "5"]),
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
    """Nothing of a message is taken if not all of it is what it claims."""
    file = StreamFile(tmp_path, SYNC)
    take(file, 0, 3)
    with refused(FormatError, *facts):
        file.check(first, count, memoryview(data))
    assert take(file, 3, 2) == 2
    file.close()
    assert file.path.read_bytes() == HEADER + frames(0, 5)


def test_a_long_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before the checkpoint may be anything: only its last frame and what follows is read."""
    monkeypatch.setattr(stream_file, "CHECKPOINT_BYTES", 1000)
    file = StreamFile(tmp_path, SYNC)
    for first in range(0, 100, 5):
        take(file, first, 5)
    size = file.size  # not closed, as if killed
    with open(file.path, "r+b") as damaged:
        damaged.seek(len(HEADER) + 64)
        damaged.write(b"\0" * 2000)
    again = StreamFile(tmp_path, SYNC)
    assert (again.next, again.size) == (100, size)
    again.close()
    file.close()


def test_a_checkpoint_is_believed_only_if_it_fits(tmp_path: Path) -> None:
    """One that is damaged, of another file, or of what the disk has lost is no use, and no harm."""
    file = StreamFile(tmp_path, SYNC)
    take(file, 0, 20)
    file.close()
    mark, whole = (tmp_path / checkpoint.NAME).read_bytes(), file.path.read_bytes()
    chance = random.Random(7)
    wrong = [bytes([*mark[:at], mark[at] ^ (1 << chance.randrange(8)), *mark[at + 1 :]]) for at in range(len(mark))]
    for content in (b"", mark[:-1], mark + b"\0", b"\0" * len(mark), *wrong):
        (tmp_path / checkpoint.NAME).write_bytes(content)
        again = StreamFile(tmp_path, SYNC)
        assert (again.next, again.size) == (20, len(whole))
        again.close()
    for cut in (0, 10, 20, 44, len(whole) - 64, len(whole) - 1):
        file.path.write_bytes(whole[:cut])
        (tmp_path / checkpoint.NAME).write_bytes(mark)
        again = StreamFile(tmp_path, SYNC)
        assert again.next == max(cut - 20, 0) // 64
        again.close()
        assert file.path.read_bytes() == (whole[: 20 + 64 * again.next])


def test_a_checkpoint_of_before_a_restart_of_the_machine_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written then may not have reached the disk, wherever the file seems to end."""
    file = StreamFile(tmp_path, SYNC)
    take(file, 0, 5)
    file.close()
    with open(file.path, "r+b") as damaged:
        damaged.seek(len(HEADER) + 64)
        damaged.write(b"\0" * 64)
    monkeypatch.setattr(checkpoint, "boot", lambda: b"another start...")
    again = StreamFile(tmp_path, SYNC)
    assert again.next == 5  # what follows the damage is whole
    again.close()


def test_another_stream_or_no_journal_is_not_touched(tmp_path: Path) -> None:
    """A file that cannot be this stream's stays as it is."""
    StreamFile(tmp_path, b"\xf5xyz").close()
    before = (tmp_path / "journal").read_bytes()
    with refused(FormatError):
        StreamFile(tmp_path, SYNC)
    assert (tmp_path / "journal").read_bytes() == before
    (tmp_path / "journal").write_bytes(b"something else, rather long, of somebody")
    with refused(FormatError, "journal"):
        StreamFile(tmp_path, SYNC)
    assert (tmp_path / "journal").read_bytes().startswith(b"something")


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither of the journal nor of the checkpoint."""
    for name in ("journal", checkpoint.NAME):
        place = tmp_path / name.join("xx")
        place.mkdir()
        (place / name).symlink_to(tmp_path / "target")
        with pytest.raises(OSError):
            StreamFile(place, SYNC)
    assert not (tmp_path / "target").exists()


def test_files_are_private(tmp_path: Path) -> None:
    """They hold whatever arguments programs recorded."""
    before = os.umask(0)
    try:
        StreamFile(tmp_path, SYNC).close()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_full_disk_leaves_the_file_as_it_was(small_disk: Path) -> None:
    """A write that does not fit is taken back, and works when there is room again."""
    ballast = small_disk / "ballast"
    file = StreamFile(small_disk, SYNC)
    take(file, 0, 2)
    ballast.write_bytes(b"x" * (900 << 10))
    with pytest.raises(OSError):
        take(file, 2, 40, 8000)
    assert file.next == 2
    ballast.unlink()
    assert take(file, 2, 40, 8000) == 40
    file.close()
    assert StreamFile(small_disk, SYNC).next == 42
