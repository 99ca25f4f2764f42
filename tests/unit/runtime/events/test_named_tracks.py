"""Which tracks an output has written."""

from __future__ import annotations

import pytest

from stepscope.exporters.specimens import spans
from stepscope.runtime.events import tracks
from stepscope.runtime.events.named_tracks import NamedTracks
from stepscope.runtime.events.record import Block
from stepscope.runtime.events.tracks import TrackKind

UNKNOWN = 0xFFFFFFF0
"""An id that no track has."""


def on(*where: int) -> Block:
    """A span on each of these tracks."""
    events = spans(["work"] * len(where))
    events["track"] = where
    return events


@pytest.mark.parametrize("where", [[], [0], [UNKNOWN], [UNKNOWN, 0], [UNKNOWN] * 300])
def test_no_track_is_none(where: list[int]) -> None:
    """Ids of no track are not looked for, and cost no memory."""
    known = NamedTracks()
    assert known.missing(on(*where)) == []
    assert UNKNOWN not in known


@pytest.mark.parametrize("times", [1, 300])
def test_a_track_is_missing_until_it_is_added(times: int) -> None:
    """Asking adds nothing; each is named once, in the order of their ids."""
    process = tracks.new(TrackKind.PROCESS, 7, 0, "another")
    busy = tracks.new(TrackKind.THREAD, 7, 9, "busy", process)
    known = NamedTracks()
    for _ in range(2):
        assert [track.id for track in known.missing(on(*[busy, process] * times))] == [process, busy]
    known.add(known.missing(on(process)))
    assert [track.id for track in known.missing(on(*[busy, process] * times))] == [busy]
    assert process in known and busy not in known
