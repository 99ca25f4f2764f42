"""Rows: which of them an output has named; those of recordings that are read are no threads of this process, though the recording may
be its own."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from stepscope.backends.torch.kineto.blocks import KinetoTracks
from stepscope.exporters.specimens import spans
from stepscope.runtime._core import span
from stepscope.runtime.events import tracks
from stepscope.runtime.events.named_tracks import NamedTracks
from stepscope.runtime.events.record import Block, Kind
from stepscope.runtime.events.tracks import Track, TrackKind
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.records import TrackRecord
from tests.support.recording import recording

UNKNOWN = 0xFFFFFFF0
"""An id that no track has."""


def on(*where: int) -> Block:
    """A span on each of these tracks."""
    events = spans(["work"] * len(where))
    events["track"] = where
    return events


@pytest.mark.parametrize("times", [1, 300])
def test_a_track_is_missing_until_it_is_added(times: int) -> None:
    """Asking adds nothing; each is named once, in the order of their ids. Ids of no track are not looked for."""
    process = tracks.new(TrackKind.PROCESS, 7, 0, "another")
    busy = tracks.new(TrackKind.THREAD, 7, 9, "busy", process)
    known = NamedTracks()
    for _ in range(2):
        assert [track.id for track in known.missing(on(*[busy, process, UNKNOWN, 0] * times))] == [process, busy]
    known.add(known.missing(on(process)))
    assert [track.id for track in known.missing(on(*[busy, process] * times))] == [busy]
    assert process in known and busy not in known
    assert known.missing(on()) == known.missing(on(*[UNKNOWN] * times)) == [] and UNKNOWN not in known


def recorded() -> Track:
    """The row of this thread."""
    with recording() as log, span("work"):
        pass
    (row,) = {row.track for row in log.of(Kind.SPAN)}
    found = tracks.get(row)
    assert found is not None
    return found


def read(thread: Track, *, reuse: bool, name: str) -> None:
    """Reads of this thread, in a recording of this process."""
    process = TrackRecord(1, int(TrackKind.PROCESS), os.getpid(), 0, 0, "another name")
    ids = IdMap(reuse=reuse)
    ids.add_tracks([process, TrackRecord(2, int(TrackKind.THREAD), os.getpid(), thread.tid, 1, name)])


def kineto_track(thread: int) -> int:
    found = KinetoTracks()
    place = found.of(os.getpid(), thread)
    return int(found.rows()[place])


def test_backends_draw_where_the_recorder_does() -> None:
    """Tracks of this process stay the same, whichever kind of reader has read it meanwhile."""
    mine = recorded()
    for reuse in (True, False):
        before = tracks.since(1)[-1].id
        read(mine, reuse=reuse, name="another name")
        assert tracks.since(before + 1)
        assert kineto_track(mine.tid) == mine.id
    made = kineto_track(1 << 29)
    parent = tracks.get(made)
    assert parent is not None and parent.parent == tracks.process()


def test_a_number_that_the_system_gives_again_is_the_newer_thread() -> None:
    """Two threads of one number are two rows, and backends speak of the one that lives."""
    number = threading.get_native_id()
    older = tracks.new(TrackKind.THREAD, os.getpid(), number + (1 << 28), "older", tracks.process())
    newer = tracks.new(TrackKind.THREAD, os.getpid(), number + (1 << 28), "newer", tracks.process())
    assert older != newer
    assert kineto_track(number + (1 << 28)) == newer


def test_rows_of_a_recording_are_never_living_ones() -> None:
    """Not even at the instant at which they are added."""
    before = tracks.since(1)[-1].id
    interval = sys.getswitchinterval()
    reader = threading.Thread(
        target=lambda: [tracks.read(TrackKind.THREAD, 1 << 20, number, f"row {number}") for number in range(500)]
    )
    sys.setswitchinterval(1e-6)
    try:
        reader.start()
        while reader.is_alive():
            assert not [track for track in tracks.living(before + 1) if track.pid == 1 << 20]
    finally:
        sys.setswitchinterval(interval)
        reader.join()
    assert len([track for track in tracks.since(before + 1) if track.pid == 1 << 20]) == 500
