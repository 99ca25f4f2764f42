"""A journal names what its events need, however much else the process knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.specimens import run_in, spans
from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.named_texts import NamedTexts
from stepscope.runtime.events.named_tracks import NamedTracks
from stepscope.runtime.events.record import EVENT_DTYPE, EventBatch, Flag
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import TrackRecord, decode_record
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.journals import frames_of
from tests.support.recording import rows_of

UNKNOWN = 0xFFFFFFF0
"""An id that no track has."""


def on(*where: int) -> EventBatch:
    """A span on each of these tracks."""
    events = spans(["work"] * len(where))
    events["track"] = where
    return EventBatch("recorder", 0, events, b"")


def named(path: Path) -> list[list[TrackRecord]]:
    """What each frame of tracks in the journal says."""
    return [decode_record(kind, payload) for kind, payload in frames_of(path) if kind == fmt.FrameType.TRACKS]


def new_tracks() -> tuple[int, int, int]:
    """Ids of a thread of another process, of that process, and of one that nobody uses."""
    process = tracks.new(TrackKind.PROCESS, 7, 0, "another")
    tracks.new(TrackKind.THREAD, 7, 8, "idle", process)
    return tracks.new(TrackKind.THREAD, 7, 9, "busy", process), process, process + 1


def test_tracks_are_written_when_they_are_used(tmp_path: Path) -> None:
    """Each once, after the one that it belongs to; those of other runs cost nothing."""
    busy, process, idle = new_tracks()
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    writer.write_batch(on(busy, busy))
    writer.write_batch(on(busy))
    writer.write_batch(on(idle, busy, 0, UNKNOWN))
    writer.close()
    assert [[row.id for row in frame] for frame in named(writer.path)] == [[process, busy], [idle]]


def test_tracks_are_written_again_after_a_gap(tmp_path: Path) -> None:
    """Who lost what was written is told again, of what was written only."""
    busy, process, idle = new_tracks()
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    writer.write_batch(on(busy))
    said = b"".join(writer.restated(run_in(tmp_path), 100))
    writer.restate(run_in(tmp_path))
    writer.write_batch(on(busy))
    writer.close()
    assert [[row.id for row in frame] for frame in named(writer.path)] == [[process, busy]] * 2
    (tmp_path / "said").write_bytes(fmt.encode_file_header(writer.sync_word) + said)
    assert [[row.id for row in frame] for frame in named(tmp_path / "said")] == [[process, busy]]
    assert idle not in [row.id for frame in named(tmp_path / "said") for row in frame]


def test_events_that_did_not_fit_name_nothing(tmp_path: Path) -> None:
    """What was left out with its events is written with later ones."""
    busy, process, _ = new_tracks()
    many = tracks.new(TrackKind.THREAD, 7, 10, "many", process)
    writer = JournalWriter(tmp_path / "journal", max_bytes=4 << 20, holes=True)
    writer.open(run_in(tmp_path))
    writer.write_batch(on(*[many] * 200_000))
    assert writer.dropped == 200_000
    writer.write_batch(on(busy))
    writer.close()
    assert [[row.id for row in frame] for frame in named(writer.path)] == [[process, busy]]


def texts(path: Path) -> list[list[str]]:
    """What each frame of names in the journal says."""
    rows = [decode_record(kind, payload) for kind, payload in frames_of(path) if kind == fmt.FrameType.STRINGS]
    return [sorted(text for _, text in frame) for frame in rows]


def test_names_are_written_when_they_are_used(tmp_path: Path) -> None:
    """Each once: names, categories and keys of arguments, in the record or beside it; those of others cost nothing."""
    strings.intern("test: of nobody")
    busy, _, _ = new_tracks()
    events, first = on(busy, busy).events.copy(), _core.encode_arguments({"test: key": 1, "test: other": "x"})
    events["args_len"][0] = len(first)
    events["flags"][1] = int(Flag.ARG_INLINE)
    events["args_at"][1] = strings.intern("test: inline")
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    for _ in range(2):
        writer.write_batch(EventBatch("recorder", 0, events, first))
    events["name"] = strings.intern("test: later")
    writer.write_batch(EventBatch("recorder", 0, events, first))
    writer.close()
    named = ["test: inline", "test: key", "test: other", "user_annotation", "work"]
    assert texts(writer.path) == [named, ["test: later"]]
    with JournalReader(writer.path) as reader:
        read = [rows_of(batch.events, batch.args) for batch in reader if isinstance(batch, EventBatch)]
    assert [[(row.name, row.category, row.arguments) for row in rows] for rows in read] == [
        [
            (name, "user_annotation", {"test: key": 1, "test: other": "x"}),
            (name, "user_annotation", {"test: inline": 0}),
        ]
        for name in ("work", "work", "test: later")
    ]


def test_names_are_written_again_after_a_gap(tmp_path: Path) -> None:
    """Who lost what was written is told of all that was, also of what an earlier gap had hidden."""
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    for name in ("test: first", "test: second"):
        writer.write_batch(EventBatch("recorder", 0, spans([name]), b""))
        writer.restate(run_in(tmp_path))
    said = b"".join(writer.restated(run_in(tmp_path), 100))
    writer.write_batch(EventBatch("recorder", 0, spans(["test: first"]), b""))
    writer.close()
    assert texts(writer.path) == [["test: first", "user_annotation"], ["test: second", "user_annotation"]] + [
        ["test: first", "user_annotation"]
    ]
    (tmp_path / "said").write_bytes(fmt.encode_file_header(writer.sync_word) + said)
    assert texts(tmp_path / "said") == [["test: first", "test: second", "user_annotation"]]
    assert len(named(tmp_path / "said")[0]) == 2


@given(st.binary(max_size=8 * 64), st.binary(max_size=200))
def test_whatever_a_block_holds_nothing_is_noted(data: bytes, heap: bytes) -> None:
    """Asking for the names of damaged events says nothing, and finds only names that there are, each once."""
    known = NamedTexts()
    events = np.frombuffer(data[: len(data) // 64 * 64], EVENT_DTYPE)
    found = known.missing(events, heap)
    assert len({number for number, _ in found}) == len(found)
    assert all(strings.text(number) == text for number, text in found)
    assert known.all() == []
    known.add(found)
    assert known.missing(events, heap) == [] and known.all() == sorted(found)


@pytest.mark.parametrize("where", [[], [0], [UNKNOWN], [UNKNOWN, 0]])
def test_no_track_is_none(where: list[int]) -> None:
    """Ids of no track are not looked for, and cost no memory."""
    known = NamedTracks()
    assert known.missing(on(*where).events) == []
    assert known.all() == []
    assert UNKNOWN not in known


def test_what_is_named_is_not_missing() -> None:
    """Asking names nothing."""
    busy, process, _ = new_tracks()
    known = NamedTracks()
    for _ in range(2):
        assert [track.id for track in known.missing(on(busy, process, busy).events)] == [process, busy]
    known.add(known.missing(on(process).events))
    assert [track.id for track in known.missing(on(busy, process).events)] == [busy]
    assert process in known and busy not in known
    assert [track.id for track in known.all()] == [process]
