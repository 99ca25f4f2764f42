"""What a collector gives up of a journal, whatever anybody has sent: it comes to an end, and costs no more than there is."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.collector.discarding.discard import places
from stepscope.collector.files.disk_use import disk_use
from stepscope.collector.files.store import Store
from stepscope.collector.retention.giving_up import GivingUp
from stepscope.collector.retention.inventory import Inventory
from stepscope.collector.retention.retention import StoragePolicy
from stepscope.collector.retention.storage import Storage
from stepscope.collector.runs.mark import SUPERSEDED
from stepscope.collector.settings import CollectorSettings
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import MetadataRecord, encode_record
from tests.support.calls import counted
from tests.support.streams import SYNC
from tests.support.windowed import END, SECOND, START, Frame, closed, encoded, events, no_text, run_of, stored, windows

ONE, TWO = "1" * 32, "2" * 32
KIB = 1 << 10
YEARS = 10**9
"""In seconds."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(CollectorSettings(directory=tmp_path / "c"))


def names(size: int) -> Frame:
    """A frame of metadata of so many bytes."""
    return int(fmt.FrameType.METADATA), 0, encode_record(MetadataRecord({"text": "x" * size}))


def clock(payload: bytes) -> Frame:
    """A frame that is to be a reading of the clocks."""
    return int(fmt.FrameType.CLOCK), 0, payload


A_READING = encode_record(ClockAnchor(1, 2, 3))


def test_a_record_that_is_no_text_costs_itself(store: Store) -> None:
    """Of what was given up earlier, as anybody may have sent it: the limit is kept on this stream and on the others."""
    paths = [stored(store, ONE, [run_of(), no_text(), *windows(range(8), 128 * KIB)])]
    paths.append(stored(store, TWO, [run_of(1), *windows(range(8), 128 * KIB)]))
    limit = disk_use(store.directory).total * 3 // 4
    storage = Storage(store, StoragePolicy(max_bytes=limit, newest=1, slowest=0))
    done = storage.enforce()
    assert done.used <= limit and not storage.unreadable
    assert {stream for stream, _ in done.discarded} == {ONE, TWO}
    with JournalReader(paths[0]) as reader:
        assert sum(isinstance(item, EventBatch) for item in reader)
        assert reader.damage.undecodable_frames == 1


class Faulty(Store):
    """Has a fault of its own with one stream."""

    def remove(self, stream: str) -> bool:
        if stream == TWO:
            raise RuntimeError("a fault of ours")
        return super().remove(stream)


def test_a_fault_with_one_journal_costs_that_one(tmp_path: Path) -> None:
    """It is named, and the limit is kept with the others."""
    store = Faulty(CollectorSettings(directory=tmp_path))
    stored(store, ONE, [run_of(), *windows(range(8), 128 * KIB), END])
    stored(store, TWO, [run_of()]).with_name(SUPERSEDED).write_text(ONE)
    limit = disk_use(store.directory).total - 256 * KIB
    storage = Storage(store, StoragePolicy(max_bytes=limit, newest=1, slowest=0))
    done = storage.enforce()
    assert done.events and done.used <= limit and storage.unreadable == {TWO: "RuntimeError: a fault of ours"}


class Counting:
    """Does what concerns one stream, so many times at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0

    def __call__(self, stream: str, path: Path, work: Callable[[], object]) -> bool:
        self.count += 1
        assert self.count < self._most, "the same again and again"
        work()
        return True


def test_a_record_that_cannot_go_is_passed(store: Store) -> None:
    """It is too small to say that it is gone, and behind some that went: it stays, and giving up comes to its end."""
    tiny = bytes(8)
    gone = [closed(0, 0, 0), closed(1, 2, 1)]
    frames = [run_of(), *gone, names(3000), clock(tiny), clock(A_READING), closed(2, 4, 2), events(3, 6400, 3)]
    path = stored(store, ONE, frames)
    inventory = Inventory(path)
    inventory.look()
    at = len(fmt.encode_file_header(SYNC) + encoded(frames[:4]))
    giving = GivingUp({ONE: inventory}, 1 << 30, Counting(20))
    giving.records(1 << 30)
    data = path.read_bytes()
    assert data[at + fmt.FRAME_HEADER.size :].startswith(tiny) and data[at + len(SYNC)] == fmt.FrameType.CLOCK
    reader = FrameReader(path)
    kinds = Counter(frame[0] for frame in iter(reader.next, None))
    reader.close()
    assert kinds[fmt.FrameType.GIVEN_UP] == 1 and kinds[fmt.FrameType.WINDOW_CLOSED] == 1 and not reader.damage


def calls_to_give_up(store: Store, stream: str, count: int) -> float:
    """Calls of functions for each window that is given up, of so many tiny ones."""
    stored(store, stream, [run_of(), *windows(range(count), 256, frames=1), END])
    limit = disk_use(store.directory).total
    storage = Storage(store, StoragePolicy(max_bytes=limit, newest=1, slowest=0))
    done, calls = counted(lambda: storage.enforce(wanted=limit // 4))
    assert done.windows > count // 10
    assert store.remove(stream)
    return calls / done.windows


def test_a_window_costs_the_same_however_many_there_are(store: Store) -> None:
    """A run of weeks has hundreds of thousands, all of which are looked at with nobody else at the frames."""
    few, many = calls_to_give_up(store, ONE, 300), calls_to_give_up(store, TWO, 1500)
    assert many < 2 * few, (few, many)


def written(path: Path, second: int) -> Path:
    """A journal nothing was written to since."""
    at = START // SECOND + second
    os.utime(path, (at, at))
    return path


def test_a_clock_that_is_ahead_keeps_nothing(store: Store) -> None:
    """Its windows are of when they were seen at the latest: they go before those of a run that came later, and so does the run."""
    wrong = [run_of(1, began=YEARS), *windows(range(4), 128 * KIB, began=YEARS, first=1000), END]
    before = written(stored(store, ONE, wrong), 10)
    after = written(stored(store, TWO, [run_of(), *windows(range(4), 128 * KIB, began=100), END]), 110)
    policy = StoragePolicy(max_bytes=disk_use(store.directory).total * 3 // 4, newest=2, slowest=0)
    done = Storage(store, policy).enforce()
    assert done.deleted == [ONE] and not before.exists()
    inventory = Inventory(after)
    inventory.look()
    assert inventory.windows.keys() == set(range(4))


def test_what_a_clock_that_is_ahead_records_now_is_of_now(store: Store) -> None:
    """However far it is ahead; what is older in a window that is open goes first, on whichever rank."""
    wrong = [run_of(0, began=YEARS), *(events(0, 64 * KIB, YEARS + second) for second in range(16))]
    early = written(stored(store, ONE, wrong), 16)
    late = written(stored(store, TWO, [run_of(1), *(events(0, 64 * KIB, second) for second in range(8, 24))]), 24)
    Storage(store, StoragePolicy(max_bytes=disk_use(store.directory).total * 3 // 4)).enforce()
    left = [sum(place.header.count for place in places(path)) for path in (early, late)]
    assert 0 < left[0] < left[1]
    inventory = Inventory(early)
    inventory.look()
    with early.open("ab") as file:
        file.write(encoded([events(1, 64 * KIB, YEARS + 100)], 17))
    inventory.look()
    assert inventory.windows[0].last_ns <= inventory.windows[1].last_ns == inventory.grown_ns <= time.time_ns()
