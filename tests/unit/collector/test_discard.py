"""Giving up frames of a journal in place: whatever is chosen, in whatever order, nothing else changes, and all counts are right."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.collector.discarding import holes, region
from stepscope.collector.discarding.discard import EventsPlace, block_bytes, discard, free, places
from stepscope.collector.discarding.region import LONGEST
from stepscope.collector.retention.inventory import Inventory
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import empty_block
from stepscope.runtime.journal import discarded_frames
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.discarded_frames import KINDS, GivenUp, decode, encode
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import MetadataRecord, encode_record
from tests.support.calls import counted
from tests.support.streams import SYNC
from tests.support.windowed import Frame, closed, encoded, of_size, run_of

BLOCK = 4096
HEADER = fmt.FRAME_HEADER.size
FALLOCATE: Callable[..., int] = vars(holes)["_fallocate"]


def batch(window: int, size: int) -> Frame:
    """A frame of events of so many bytes in all, as nearly as whole events and their arguments make it."""
    return of_size(empty_block(max((size - HEADER - 41) // 64, 1)), window, size - HEADER)


def names(number: int, size: int = 20) -> Frame:
    """A frame of metadata."""
    return int(fmt.FrameType.METADATA), 0, encode_record(MetadataRecord({str(number): "x" * size}))


def discarded(number: int) -> Frame:
    """A frame that was given up by a version that gave up one at a time."""
    return int(fmt.FrameType.DISCARDED), 0, batch(number % 3, 130 + number)[2]


def anchor(number: int) -> Frame:
    """A reading of the clocks."""
    return int(fmt.FrameType.CLOCK), 0, encode_record(ClockAnchor(number, number, 0))


def unknown(number: int) -> Frame:
    """A frame of a kind that this version does not know."""
    return 99, 0, bytes([number % 256]) * 30


def journal(path: Path, frames: Sequence[Frame]) -> Path:
    """A file with these frames."""
    path.write_bytes(fmt.encode_file_header(SYNC) + encoded([run_of(), *frames]))
    return path


class Content:
    """What a journal holds, by frames; it must not be damaged."""

    def __init__(self, reader: FrameReader) -> None:
        self.events = Counter[int]()
        self.gone = 0
        self.records: list[tuple[int, bytes]] = []
        self._reader = reader

    def read(self, most: int = 1 << 30) -> Content:
        """Goes on by so many frames."""
        while most and (frame := self._reader.next()) is not None:
            most -= 1
            if frame[0] == fmt.FrameType.EVENTS:
                found = fmt.decode_events_header(frame[2])
                assert found is not None
                self.events[found[0].window] += found[0].count
            elif frame[0] in KINDS:
                self.gone += decode(frame[0], frame[2]).total
            else:
                self.records.append((frame[0], frame[2]))
        assert not self._reader.damage, self._reader.damage
        return self


def content(path: Path) -> Content:
    """All of it."""
    reader = FrameReader(path)
    try:
        return Content(reader).read()
    finally:
        reader.close()


def given_up(path: Path) -> int:
    """Events that a journal says are gone."""
    with JournalReader(path) as reader:
        for _ in reader:
            pass
        assert not reader.damage, reader.damage
        return reader.discarded


SIZES = (130, 400, 1000, BLOCK - 24, BLOCK, BLOCK + 24, 3 * BLOCK, 40_000)


class Drawn:
    """A journal, and what is chosen of it, one time after the other. Drawn at random, for what is rare in short examples is
    what matters: frames in long runs, and readers within them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        sizes = self.random.sample(SIZES, 3)
        others = self.random.choice((0.1, 0.4, 0.7))
        self.frames = [
            self._other()
            if self.random.random() < others
            else batch(self.random.randrange(3), self.random.choice(sizes))
            for _ in range(self.random.randrange(2, 60))
        ]
        self.rounds = [self._some() for _ in range(self.random.randrange(1, 5))]
        self.span = self.random.choice((500, 3 * BLOCK, region.SPAN))

    @contextlib.contextmanager
    def stored(self) -> Generator[Path]:
        """Its file, in which regions end by themselves behind some bytes."""
        with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            patch.setattr(region, "SPAN", self.span)
            yield journal(Path(directory) / "journal", self.frames)

    def _other(self) -> Frame:
        number = self.random.randrange(100)
        made: list[Callable[[int], Frame]] = [names, names, lambda n: names(n, 3000), anchor, closed_at, discarded]
        return unknown(number) if self.random.random() < 0.1 else self.random.choice(made)(number)

    def _some(self) -> set[int]:
        every = range(1, len(self.frames) + 1)
        first = self.random.choice(every)
        return {
            number
            for number in every
            if first <= number < first + self.random.randrange(60) or self.random.random() < 0.1
        }


def closed_at(window: int) -> Frame:
    """The end of a window."""
    return closed(window, 0, 0)


DRAWN = st.builds(Drawn, st.integers(0, 1 << 32))
QUIET = settings(max_examples=60)


def chosen_of(path: Path, numbers: set[int]) -> list[EventsPlace]:
    """Those of the frames with events that have these numbers and are there."""
    return [place for place in places(path) if place.number in numbers]


@QUIET
@given(DRAWN)
def test_whatever_is_chosen(drawn: Drawn) -> None:
    """Records are what they were, in their order; of events there are those that were not chosen, and the others count."""
    with drawn.stored() as path:
        before, ends = content(path), _ends(path)
        borders = set(drawn.random.sample(ends, drawn.random.randrange(min(3, len(ends)))))
        for numbers in drawn.rounds:
            chosen = chosen_of(path, numbers)
            expected = content(path).events
            for place in chosen:
                expected[place.header.window] -= place.header.count
            discard(path, chosen, borders=borders)
            after = content(path)
            assert after.events == +expected and after.records == before.records
            assert given_up(path) == before.events.total() + before.gone - expected.total()
            assert borders <= set(_ends(path))
            inventory = Inventory(path)
            inventory.look()
            assert inventory.events == before.events.total() + before.gone


def _ends(path: Path) -> list[int]:
    """Where the frames end."""
    reader = FrameReader(path)
    found: list[int] = []
    while reader.next() is not None:
        found.append(reader.position[1])
    reader.close()
    return found


@QUIET
@given(DRAWN, st.integers(0, 30))
def test_whoever_is_killed_leaves_a_whole_journal(drawn: Drawn, when: int) -> None:
    """At any write: what was given up by then counts, and no record is lost or twice there. The rest can be freed later."""
    with drawn.stored() as path:
        before = content(path)
        left = when

        def dying(real: Callable[..., int]) -> Callable[..., int]:
            def work(*arguments: int | bytes) -> int:
                nonlocal left
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
                return real(*arguments)

            return work

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "pwrite", dying(os.pwrite))
            patch.setattr("stepscope.collector.discarding.holes._fallocate", dying(FALLOCATE))
            try:
                for numbers in drawn.rounds:
                    discard(path, chosen_of(path, numbers))
            except KeyboardInterrupt:
                pass
        after = content(path)
        assert after.records == before.records and after.events <= before.events
        assert given_up(path) == before.events.total() + before.gone - after.events.total()
        inventory = Inventory(path)
        inventory.look()
        free(path, inventory.unfreed)
        assert content(path).records == before.records and content(path).events == after.events


@QUIET
@given(DRAWN)
def test_who_reads_meanwhile_misses_nothing(drawn: Drawn) -> None:
    """Every record once, and every event: as it was, or as one that was given up."""
    with drawn.stored() as path:
        before = content(path)
        reader = FrameReader(path)
        found = Content(reader).read(drawn.random.randrange(len(drawn.frames)))
        for numbers in drawn.rounds:
            discard(path, chosen_of(path, numbers))
            found.read(drawn.random.randrange(5))
        found.read()
        assert found.records == before.records and reader.position == (len(drawn.frames) + 1, path.stat().st_size)
        assert found.events.total() + found.gone == before.events.total() + before.gone
        reader.close()


@pytest.mark.parametrize("size", [130, 1000, BLOCK, BLOCK + 100, 50_000])
def test_only_blocks_that_something_else_touches_stay(tmp_path: Path, size: int) -> None:
    """However large the frames are, and also if they are given up one after the other; and one huge one between tiny ones."""
    tiny = [frame for at in range(200) for frame in (batch(0, 130), names(at))]
    frames = [*[batch(0, size)] * 300, names(1), *tiny, batch(0, 1 << 20), *tiny, batch(1, 130)]
    path = journal(tmp_path / "journal", frames)
    records = sum(24 + len(payload) for kind, _, payload in frames if kind != fmt.FrameType.EVENTS)
    block = block_bytes(tmp_path)
    chosen = [place for place in places(path) if place.header.window == 0]
    start = 0
    for at in range(0, len(chosen), 50):
        done = discard(path, chosen[at : at + 50], start=start)
        start = done.made[-1].last
    left = path.stat().st_blocks * 512
    # And one for each frame that may grow no longer.
    assert left <= 2 * records + (8 + path.stat().st_size // LONGEST) * block, (left, records)
    assert content(path).events == {1: 1}


def test_one_that_stays_alone_says_less_when_its_window_has_ended(tmp_path: Path) -> None:
    """Behind a run and a record that cannot be moved into it: nothing of what it says is freed."""
    path = journal(tmp_path / "journal", [batch(0, 130), names(1, 3000), batch(1, 130), names(2)])
    discard(path, chosen_of(path, {1}))
    discard(path, chosen_of(path, {3}), ended={0, 1})
    assert given_up(path) == content(path).gone == 2


def gone_of(window: int) -> Frame:
    """A frame that stands for one event that was given up."""
    return int(fmt.FrameType.GIVEN_UP), 0, encode(GivenUp({window: 1}))


def test_little_is_looked_at_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far what lies between two frames reaches: it would all be in memory."""
    between = [frame for at in range(1500) for frame in (gone_of(0), names(at, 8000))]
    path = journal(tmp_path / "journal", [batch(0, 40_000), *between, batch(0, 40_000), batch(1, 130)])
    before = content(path)
    chosen = [place for place in places(path) if place.header.window == 0]
    size = path.stat().st_size
    read, write = os.pread, os.pwrite
    furthest = most = written = 0

    def reading(fd: int, count: int, at: int) -> bytes:
        nonlocal furthest
        furthest = max(furthest, at)
        return read(fd, count, at)

    def writing(fd: int, data: bytes, at: int) -> int:
        nonlocal most, written
        most, written = max(most, furthest - at), written + 1
        return write(fd, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", reading)
        patch.setattr(os, "pwrite", writing)
        discard(path, chosen)
    assert written > 1000 and 0 < most <= region.SPAN + LONGEST < size // 2
    after = content(path)
    assert after.records == before.records and after.events == {1: 1}
    assert after.gone == before.events.total() - 1 + before.gone


def sums_made(path: Path, count: int) -> int:
    """Calls that deal with what is gone while so many frames become one, each of a window of its own."""
    journal(path, [batch(at, 130) for at in range(count)])
    chosen = list(places(path))
    done, calls = counted(lambda: discard(path, chosen), discarded_frames)
    assert len(done.made) == 1 and content(path).gone == count
    return calls


def test_what_is_gone_is_added_up_once(tmp_path: Path) -> None:
    """Not again for each frame: with many windows that would take the square of the time."""
    assert sums_made(tmp_path / "few", 50) == sums_made(tmp_path / "many", 1000)


@pytest.mark.parametrize("count", [0, 1, 1000, 1 << 15, (1 << 15) + 1, 1_000_003, 5 << 20])
@pytest.mark.parametrize("before", [b"", b"what is said"])
def test_the_checksum_of_zeros(count: int, before: bytes) -> None:
    """However many there are, it is what zlib computes byte by byte."""
    assert holes.crc_of_zeros(count, zlib.crc32(before)) == zlib.crc32(before + bytes(count))
