"""Which segments a collector evicts: the limit holds, protected windows stay longest, and what is missing is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.files.disk_use import disk_use
from stepscope.collector.files.store import Store
from stepscope.collector.retention.deleted import Deleted
from stepscope.collector.retention.policy import StoragePolicy
from stepscope.collector.retention.storage import Storage
from stepscope.collector.runs.evicted import NAME, append_evicted, read_evicted
from stepscope.collector.runs.recording import Recording
from stepscope.collector.settings import CollectorSettings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.segments import segment_paths
from tests.support.windowed import END, Frame, closed, events, run_of, stored, windows

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32
KIB = 1 << 10


class Part(msgspec.Struct, frozen=True):
    """What a segment has of a window."""

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
    """What was drawn, and what is protected of it."""

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
            found += [(stream, segment) for segment in before or (left[stream] if over else [])]
        return [one for one in found if not self.windows(*one) & self.last]


@given(streams(), st.integers(0, 3), st.integers(0, 3), st.floats(0.05, 1.2))
def test_the_limit_holds_and_what_is_missing_is_counted(
    tmp_path_factory: pytest.TempPathFactory, drawn: Drawn, newest: int, slowest: int, part: float
) -> None:
    """Whatever there is: enough is free in the end, or nothing that may be evicted is left; and no window that is protected is
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
    gone = [{*(one.number for one in before.segments[id])} - {*left[at]} for at, id in enumerate(ids)]
    if before.total <= limit - policy.slack:
        assert not any(gone)
    evictable = model.evictable(left)
    # What is written down about evicted segments takes a block for each stream.
    assert after.total <= limit - 2 * policy.slack + 4096 * len(ids) or not evictable
    touched = [number for at, its in enumerate(gone) for number in its if model.windows(at, number) & model.protected]
    # The last segment of a stream goes after all others of it.
    unprotected = [one for one in evictable if one[1] < len(drawn[one[0]][0]) - 1 and not model.windows(*one) & model.protected]
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
        assert {one.segment for one in evicted} == gone[at] and left[at]
        assert counts(path) + sum((Counter(one.events) for one in evicted), Counter[int]()) == sent
        recording = Recording.of(path, ids[at])
        assert recording.discarded == sum(one.total for one in evicted) and not recording.damage
    assert Deleted(store.directory).count.events == deleted
    assert Deleted(store.directory).count.streams == len(done.deleted)
