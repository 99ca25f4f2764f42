"""Frames that are read many at once are those that are read one by one, whatever is in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.runtime.events.record import empty_block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from tests.unit.collector.test_collector_live import a_life, events_frame

SYNC = fmt.new_sync_word()
Frame = tuple[int, int, bytes]
Found = tuple[list[Frame], tuple[int, int], Damage, list[int]]


def content() -> list[bytes]:
    """The frames of a journal: small and large, with and without events; four are missing."""
    frames = [*a_life()[:4], events_frame(empty_block(100), "recorder"), *a_life()[1:4], *a_life() * 5]
    numbers = [number + 4 * (number >= 5) for number in range(len(frames))]
    return [
        b"".join(fmt.encode_frame(SYNC, kind, number, [body], flags))
        for number, (kind, flags, body) in zip(numbers, frames, strict=True)
    ]


def read(path: Path, following: int) -> Found:
    """Everything of a journal, by so many bytes at once, or one by one (0); events of other sources are passed over."""
    frames, events = list[Frame](), list[int]()

    def passed(beginning: bytes) -> bool:
        header = fmt.decode_events_header(beginning)
        if header is None or header[0].source == "steps":
            return False
        events.append(header[0].count)
        return True

    reader = FrameReader(path)
    try:
        while True:
            at = reader.position
            frames += reader.following(following, passed) if following else []
            if reader.position == at:
                frame = reader.next(passed)
                if frame is None:
                    return frames, reader.position, reader.damage, events
                frames.append(frame)
    finally:
        reader.close()


def flipped(data: bytearray, at: int) -> None:
    """A byte that the disk has changed."""
    data[at] ^= 0x55


WRONG: dict[str, Callable[[bytearray, int], object]] = {
    "nothing": lambda data, at: None,
    "a byte": flipped,
    "bytes that are missing": lambda data, at: data.__delitem__(slice(at, at + 300)),
    "the end": lambda data, at: data.__delitem__(slice(at, None)),
    "zeros": lambda data, at: data.__setitem__(slice(at, at + 50), bytes(50)),
}


@pytest.mark.parametrize("what", WRONG)
def test_many_at_once_are_the_same(tmp_path: Path, what: str) -> None:
    """The same frames, numbers, events and damage, wherever something is wrong, and however few bytes are read at once."""
    path = tmp_path / "journal"
    whole = fmt.encode_file_header(SYNC) + b"".join(content())
    for at in range(fmt.FILE_HEADER.size, len(whole), 1 if what == "nothing" else 463):
        data = bytearray(whole)
        WRONG[what](data, at)
        path.write_bytes(data)
        one_by_one = read(path, 0)
        for nbytes in (100, 1000, 1 << 16):
            assert read(path, nbytes) == one_by_one, (at, nbytes)
        if what == "nothing":
            assert len(one_by_one[0]) + len(one_by_one[3]) == len(content()) and one_by_one[2] == Damage(lost_frames=4)
            break
