"""Which segments a collector evicts: the limit holds, protected windows stay longest, and what is missing is counted."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.files.disk import disk_use
from stepscope.collector.files.store import Store
from stepscope.collector.live.streams import Streams
from stepscope.collector.retention.policy import StoragePolicy
from stepscope.collector.retention.storage import Count, Deleted, Storage
from stepscope.collector.runs.evicted import NAME, evict, read_evicted
from stepscope.collector.runs.recording import Recording
from stepscope.collector.settings import CollectorSettings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.segments import segment_paths
from tests.support.call_count import counted
from tests.support.disks import small_disk
from tests.support.window_streams import END, Frame, closed, events, run_of, stored, windows

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32
KIB = 1 << 10


class Part(msgspec.Struct, frozen=True):
    """A segment's share of a window."""

    window: int
    events: int
    pace: int
    """Seconds of both of its steps; of windows that are equally slow the later one takes a moment longer."""
    ends: bool


Drawn = list[tuple[list[list[Part]], bool]]
"""Streams: the parts of windows in their segments, and whether the stream has its end."""


@st.composite
def streams(draw: st.DrawFn) -> Drawn:
    """Each is another rank of one job; windows follow each other, and may go on in the next segment."""
    made: Drawn = []
    for _ in range(draw(st.integers(1, 4))):
        window = 0
        segments: list[list[Part]] = []
        for _ in range(draw(st.integers(1, 4))):
            parts: list[Part] = []
            for _ in range(draw(st.integers(0, 3))):
                parts.append(Part(window, draw(st.integers(200, 600)), draw(st.integers(1, 99)), draw(st.booleans())))
                window += parts[-1].ends
            segments.append(parts)
        made.append((segments, draw(st.booleans())))
    return made


def frames(rank: int, parts: Sequence[Part], last: bool) -> list[Frame]:
    """A segment."""
    made = [run_of(rank)]
    for part in parts:
        made.append(events(part.window, 64 * part.events, 1000 * part.window))
        if part.ends:
            seconds = part.pace + part.window / 100
            made.append(closed(part.window, 2 * part.window, 1000 * part.window, seconds=seconds))
    return [*made, END] if last else made


def counts(path: Path) -> Counter[int]:
    """Events by window in the segments that are left."""
    found = Counter[int]()
    if segment_paths(path):
        with JournalReader(path) as reader:
            for item in reader:
                if isinstance(item, EventBatch):
                    found[item.window] += len(item)
    return found


class Model:
    """The drawn segments, and those that are protected."""

    def __init__(self, drawn: Drawn, policy: StoragePolicy) -> None:
        self.drawn = drawn
        ended = [
            part
            for segments, over in drawn
            for parts in (segments if over else segments[:-1])
            for part in parts
            if part.ends
        ]
        pace = {part.window: max(other.pace for other in ended if other.window == part.window) for part in ended}
        newest = sorted(pace, reverse=True)[: policy.newest]
        slowest = sorted(pace, key=lambda window: (pace[window], window), reverse=True)[: policy.slowest]
        self.protected = {*newest, *slowest}
        self.last = set(newest[:1])

    def windows(self, stream: int, segment: int) -> set[int]:
        """Those of which a segment has something."""
        return {part.window for part in self.drawn[stream][0][segment]}

    def evictable(self, left: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """Of the segments that are left of each stream those that may be evicted."""
        found: list[tuple[int, int]] = []
        for stream, (segments, over) in enumerate(self.drawn):
            before = [segment for segment in left[stream] if segment < len(segments) - 1]
            chosen = [(stream, segment) for segment in before or (left[stream] if over else [])]
            found += [one for one in chosen if not over or not self.windows(*one) & self.last]
        return found


@given(streams(), st.integers(0, 3), st.integers(0, 3), st.floats(0.05, 1.2))
def test_the_limit_holds_and_evicted_events_are_counted(
    tmp_path_factory: pytest.TempPathFactory, drawn: Drawn, newest: int, slowest: int, part: float
) -> None:
    """For any segments: enough is free in the end, or nothing that may be evicted is left; and no window that is protected is
    touched while a segment without one could go. Events are in the files, or counted; what was evicted is no damage."""
    store = Store(CollectorSettings(directory=tmp_path_factory.mktemp("collector")))
    ids = [f"{number:032x}" for number in range(len(drawn))]
    for rank, (segments, over) in enumerate(drawn):
        made = [frames(rank, parts, over and at == len(segments) - 1) for at, parts in enumerate(segments)]
        stored(store, ids[rank], *made)
    before = disk_use(store.directory)
    limit = int(before.total * part)
    policy = StoragePolicy(max_bytes=limit, newest=newest, slowest=slowest)
    model = Model(drawn, policy)
    done = Storage(store, policy).enforce()
    after = disk_use(store.directory)
    left = [[one.number for one in after.segments.get(id, ())] for id in ids]
    missing = [{*(one.number for one in before.segments[id])} - {*left[at]} for at, id in enumerate(ids)]
    evictable = model.evictable(left)
    if before.total <= limit - policy.slack:
        assert not any(missing)
    else:  # the record of evicted segments takes a block for each stream
        assert after.total <= limit - 2 * policy.slack + 4096 * len(ids) or not evictable
    touched = [
        number for at, its in enumerate(missing) for number in its if model.windows(at, number) & model.protected
    ]
    # The last segment of a stream goes after all others of it.
    unprotected = [
        one for one in evictable if one[1] < len(drawn[one[0]][0]) - 1 and not model.windows(*one) & model.protected
    ]
    assert not touched or not unprotected
    deleted = 0
    for at, (segments, _) in enumerate(drawn):
        sent = sum((Counter({one.window: one.events}) for parts in segments for one in parts), Counter[int]())
        path = store.path(ids[at])
        if ids[at] in done.deleted:
            assert not path.parent.exists()
            deleted += sent.total()
            continue
        evicted = read_evicted(path)
        assert {one.segment for one in evicted} == missing[at] and left[at]
        assert counts(path).total() + sum(one.events for one in evicted) == sent.total()
        partly = {window for one in evicted for window in range(one.first_window, one.last_window + 1)}
        assert set(+(sent - counts(path))) <= partly
        recording = Recording.of(path, ids[at])
        assert recording.discarded == sum(one.events for one in evicted) and not recording.damage
    assert Deleted(store.directory).count.events == deleted
    assert Deleted(store.directory).count.streams == len(done.deleted)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(CollectorSettings(directory=tmp_path / "c"))


def numbers(path: Path) -> list[int]:
    """The segments that are left."""
    return [int(one.suffix[1:] or 0) for one in segment_paths(path)]


def make_room(store: Store, nbytes: int, **policy: int) -> Storage:
    """Evicts until so many bytes are free, a fifteenth of what there is at least."""
    limit = (disk_use(store.directory).total - nbytes) * 8 // 7
    storage = Storage(store, StoragePolicy(max_bytes=max(limit, 1), **policy))
    storage.enforce()
    return storage


def segment(first: int, count: int, rank: int = 0, *, nbytes: int = 64 * KIB, began: int = 0) -> list[Frame]:
    """A segment with windows of a second each; the first begins so many seconds after the start of its process."""
    return [run_of(rank, began), *windows(range(first, first + count), nbytes, began=began + first, first=2 * first)]


def test_the_oldest_go_first_whosever_they_are(store: Store) -> None:
    """By the time of their last event, and not more than must."""
    one = stored(store, ONE, segment(0, 2), segment(4, 2), segment(8, 1))
    two = stored(store, TWO, segment(2, 2, rank=1), segment(6, 2, rank=1), segment(9, 1, rank=1))
    left: list[tuple[list[int], list[int]]] = []
    for _ in range(5):
        make_room(store, 100 * KIB, newest=0, slowest=0)
        left.append((numbers(one), numbers(two)))
    assert left == [([1, 2], [0, 1, 2]), ([1, 2], [1, 2]), ([2], [1, 2]), ([2], [2]), ([2], [2])]


def test_protected_windows_stay_on_all_ranks(store: Store) -> None:
    """The slowest one is slow on one rank; the others keep it as well, also one on which it has not ended."""
    slow = segment(0, 3)
    slow[-1] = closed(2, 4, 2, seconds=3.0)
    paths = [stored(store, ONE, slow, segment(3, 3), segment(6, 3), segment(9, 1))]
    paths.append(stored(store, TWO, *(segment(at, 3, rank=1) for at in (0, 3, 6)), segment(9, 1, rank=1)))
    paths.append(stored(store, THREE, segment(0, 3, rank=2)[:-1], *(segment(at, 3, rank=2) for at in (3, 6, 9))))
    make_room(store, 550 * KIB, newest=1, slowest=1)
    assert [numbers(path) for path in paths] == [[0, 2, 3]] * 3
    make_room(store, 550 * KIB, newest=1, slowest=1)
    assert [numbers(path) for path in paths] == [[2, 3]] * 3
    make_room(store, 550 * KIB, newest=1, slowest=1)
    assert [numbers(path) for path in paths] == [[3]] * 3


def test_the_very_newest_window_stays_if_nothing_newer_is_there(store: Store) -> None:
    """Of the last start of each rank that is over; of the others there is something newer."""
    ended = [*segment(4, 4), END]
    before = stored(store, ONE, segment(0, 4), ended)
    paths = [stored(store, TWO, segment(0, 4, began=1000), [*segment(4, 4, began=1000), END])]
    paths.append(stored(store, THREE, segment(0, 4, rank=1), [*segment(4, 4, rank=1), END]))
    make_room(store, 1300 * KIB, newest=1, slowest=0)
    assert [numbers(path) for path in paths] == [[1]] * 2 and not before.exists()


def test_a_run_that_is_over_goes_whole_in_the_end(store: Store) -> None:
    """Segment by segment; what it had brought is counted with what was evicted before."""
    path = stored(store, ONE, segment(0, 4), [*segment(4, 4), END])
    stored(store, TWO, segment(8, 1, rank=1, nbytes=512 * KIB))
    make_room(store, 200 * KIB, newest=0, slowest=0)
    assert numbers(path) == [1] and Deleted(store.directory).count.streams == 0
    make_room(store, 200 * KIB, newest=0, slowest=0)
    assert not path.parent.exists()
    assert Deleted(store.directory).count == Count(1, 8 * KIB, ONE)


def test_an_hour_of_silence_is_an_end(store: Store) -> None:
    """Of a process that was killed: until then its last segment stays."""
    path = stored(store, ONE, segment(0, 4))
    make_room(store, 200 * KIB, newest=0, slowest=0)
    assert path.exists()
    then = path.stat().st_mtime - 7200
    os.utime(path, (then, then))
    make_room(store, 200 * KIB, newest=0, slowest=0)
    assert not path.exists()


def test_of_two_runs_of_a_job_the_older_one_goes_first(store: Store) -> None:
    """Windows of the same steps are protected together; of these the oldest segments are the first."""
    before = stored(store, ONE, segment(0, 2), [*segment(2, 2), END])
    after = stored(store, TWO, segment(0, 2, began=1000), [*segment(2, 2, began=1000), END])
    make_room(store, 100 * KIB, newest=4, slowest=0)
    assert numbers(before) == [1] and numbers(after) == [0, 1]


def test_uploaded_segments_go_first(store: Store) -> None:
    """Then what is not; a run that is to make a place for another one must be uploaded whole."""
    one = stored(store, ONE, segment(0, 2), [*segment(2, 2), END])
    two = stored(store, TWO, segment(4, 2), [*segment(6, 2), END])
    there = {two, two.with_name("journal.1")}
    limit = disk_use(store.directory).total
    policy = StoragePolicy(max_bytes=limit, newest=0, slowest=0)
    Storage(store, policy, uploaded=there.__contains__).enforce()
    assert numbers(one) == [0, 1] and numbers(two) == [1]
    assert Storage(store, policy, uploaded=there.__contains__).enforce(surplus_streams=2).deleted == [TWO]
    Storage(store, StoragePolicy(max_bytes=4096, newest=0, slowest=0), uploaded=lambda _: False).enforce()
    assert not one.exists()


def test_a_collector_killed_while_it_evicts_counts_nothing_twice(store: Store) -> None:
    """Whether the line was written, or a part of it: as long as the segment is there it does not count."""
    path = stored(store, ONE, segment(0, 4), segment(4, 4), segment(8, 1))
    lines = path.with_name(NAME)
    make_room(store, 200 * KIB, newest=0, slowest=0)
    (first,) = read_evicted(path)
    line = lines.read_bytes()
    again = line.replace(b'"segment":0', b'"segment":1')
    for cut in (len(again), len(again) - 1, 9, 0):
        lines.write_bytes(line + again[:cut])
        assert read_evicted(path) == [first]
        recording = Recording.of(path, ONE)
        assert recording.discarded == first.events == 4 * KIB and not recording.damage
        data = path.with_name("journal.1").read_bytes()
        evict(path, msgspec.structs.replace(first, segment=1))
        assert [one.segment for one in read_evicted(path)] == [0, 1]
        path.with_name("journal.1").write_bytes(data)


def test_a_full_disk_is_freed(tmp_path: Path) -> None:
    """Though there is no room for the line: it is written when the segment has made some."""
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        store = Store(CollectorSettings(directory=disk / "c"))
        path = stored(store, ONE, segment(0, 4), segment(4, 4), segment(8, 1))
        with contextlib.suppress(OSError), (disk / "of somebody else").open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        storage = make_room(store, 200 * KIB, newest=0, slowest=0)
        assert numbers(path) == [1, 2] and not storage.unreadable
        assert [one.events for one in read_evicted(path)] == [4 * KIB]


def test_a_stream_that_cannot_be_written_or_deleted_is_left_as_it_is(store: Store) -> None:
    """It is named, the limit holds with the others, and a file that cannot be deleted does not count as deleted."""
    one = stored(store, ONE, segment(0, 4), segment(4, 1))
    one.with_name(NAME).mkdir()
    two = stored(store, TWO, [*segment(0, 4, rank=1), END])
    two.with_name("evicted").mkdir()
    three = stored(store, THREE, segment(5, 4, rank=2), segment(9, 1, rank=2))
    for _ in range(3):
        storage = make_room(store, 200 * KIB, newest=0, slowest=0)
        assert sorted(storage.unreadable) == [ONE, TWO]
        assert numbers(one) == [0, 1] and numbers(two) == [0] and numbers(three) == [1]
        assert Deleted(store.directory).count == Count()
    two.with_name("evicted").rmdir()
    storage = make_room(store, 200 * KIB, newest=0, slowest=0)
    assert Deleted(store.directory).count == Count(1, 4 * KIB, TWO) and list(storage.unreadable) == [ONE]


def test_nothing_is_evicted_before_the_state_is_restored_from_it(store: Store) -> None:
    """Its reader would miss it. No newer stream goes in its place: this one is read first."""
    path = stored(store, ONE, segment(0, 4), [*segment(4, 4), END])
    newer = stored(store, TWO, segment(9, 4, rank=1), [*segment(13, 4, rank=1), END])
    streams = Streams(8)
    streams.unread = {ONE: path, THREE: store.path(THREE)}
    plenty = Storage(store, StoragePolicy(max_bytes=1 << 30, newest=0, slowest=0), streams)
    least = Storage(store, StoragePolicy(max_bytes=1100 * KIB, newest=0, slowest=0), streams)
    for postponed in (plenty.enforce(surplus_streams=1).postponed, least.enforce().postponed):
        assert set(postponed) == {ONE} and numbers(path) == numbers(newer) == [0, 1]
    streams.restore_first(postponed)
    assert list(streams.unread) == [THREE, ONE]
    streams.unread.clear()
    assert {stream for stream, _ in least.enforce().evicted} == {ONE}
    assert plenty.enforce(surplus_streams=1).deleted == [ONE] and numbers(newer) == [0, 1]


def test_many_windows_cost_in_proportion(store: Store) -> None:
    """A run of weeks has hundreds of thousands in its segments."""

    def calls(stream: str, segments: int) -> float:
        stored(
            store,
            stream,
            *([run_of(), *windows(range(at, at + 50), 256, frames=1)] for at in range(0, 50 * segments, 50)),
        )
        storage = Storage(store, StoragePolicy(max_bytes=1 << 30))
        storage.enforce(surplus_streams=1)
        _, found = counted(lambda: storage.enforce(surplus_streams=1))
        store.remove(stream)
        return found / segments

    few, many = calls(ONE, 5), calls(TWO, 40)
    assert many < 2 * few, (few, many)
