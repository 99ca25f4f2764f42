"""A journal that was written is read back, by this process and by others."""

from __future__ import annotations

import math
import sys
import zlib
from pathlib import Path

import msgspec
import pytest

from stepscope.exporters.specimens import ODD_NAMES, batch_of, run_in, spans, window_of
from stepscope.runtime.accounting.ledger import Ledger, SourceLedger
from stepscope.runtime.errors import ClosedError, FormatError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch, Flag
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import records as records
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.windows.window import Window
from tests.support.basics import ROOT
from tests.support.journals import HandMade, batch_with_arguments, described, events_of, read_journal, write_journal
from tests.support.launch import run_to_end
from tests.support.messages import refused


def test_windows_metadata_and_run_come_back(tmp_path: Path) -> None:
    """Control records survive with odd texts, numbers beyond 64 bits and objects reduced to what a file can hold."""
    batch = batch_of(spans(["x"]))
    window = msgspec.structs.replace(window_of(7, batch), profiler="\ud800", diagnostics=ODD_NAMES[:3])
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path, name='run "1" \udfff'))
    writer.write_metadata({"big": 1 << 70, "nan": math.nan, "object": object(), "\ud800": {"deep": (1, {2})}})
    anchor = ClockAnchor.read()
    writer.write_anchor(anchor)
    writer.write_window(window)
    ledger = Ledger({"recorder": SourceLedger(5, 3, {"overflow": 2})})
    writer.write_ledger(ledger)
    writer.close()
    with JournalReader(writer.path) as reader:
        items = list(reader)
        assert reader.run is not None
        assert reader.run.name == 'run "1" \\udfff'
        assert reader.metadata == {
            "big": hex(1 << 70),
            "nan": "nan",
            "object": "<object>",
            "\\ud800": {"deep": [1, [2]]},
        }
        assert reader.end is not None and (reader.end.events, reader.end.windows) == (0, 1)
        assert not reader.damage
    assert anchor in items
    assert ledger in items
    (found,) = (item for item in items if isinstance(item, Window))
    assert found == msgspec.structs.replace(window, profiler="\\ud800")


def test_metadata_is_written_when_it_changes(tmp_path: Path) -> None:
    """Metadata that stays the same takes no space."""
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    for values in ({"a": 1}, {"a": 1}, {"a": 2}):
        writer.write_metadata(values)
    writer.close()
    items, _ = read_journal(writer.path)
    assert [item.values for item in items if isinstance(item, records.MetadataRecord)] == [{"a": 1}, {"a": 2}]


def test_another_process_reads_it(tmp_path: Path) -> None:
    """A process whose tables give other ids to everything sees the same names, arguments and tracks."""
    batch = batch_with_arguments(["first", "second"], [{"shape": [2, 3], "über": "ä"}, {"layer": 7}])
    block = batch.events.copy()
    task = tracks.new(tracks.TrackKind.TASK, 1, 99, "worker", tracks.new(tracks.TrackKind.THREAD, 1, 2, "Main"))
    block["track"] = task
    inline = spans(["inline"])
    inline["flags"], inline["args_at"], inline["args_len"] = int(Flag.ARG_INLINE), strings.intern("seq"), 17
    path = write_journal(tmp_path / "journal", [EventBatch("recorder", 0, block, batch.args), batch_of(inline)])
    program = f"""
from pathlib import Path
from stepscope.runtime.events import strings
from stepscope.runtime.events import tracks
for number in range(500):
    strings.intern(f"shift {{number}}"), strings.category(f"c{{number}}")
    tracks.new(tracks.TrackKind.THREAD, 9, number, "shift")
from stepscope.runtime.events.record import EventBatch
from tests.support.journals import described, read_journal
items, damage = read_journal(Path({str(path)!r}))
assert not damage, damage
for item in items:
    if isinstance(item, EventBatch):
        for row in described(item):
            print(row[2:5])
        track = tracks.get(int(item.events["track"][0]))
        parent = tracks.get(track.parent)
        print(track.name, track.kind.name, track.tid, parent and parent.name)
"""
    result = run_to_end([sys.executable, "-c", program], cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        str(("first", "user_annotation", "{'shape': [2, 3], 'über': 'ä'}")),
        str(("second", "user_annotation", "{'layer': 7}")),
        "worker TASK 99 Main",
        str(("inline", "user_annotation", "{'seq': 17}")),
        "MainThread THREAD 1 None",
    ]


def test_reading_twice_adds_no_tracks(tmp_path: Path) -> None:
    """Tracks that exist already are used again, and two alike stay two."""
    twins = [tracks.new(tracks.TrackKind.TASK, 1, 5, "twin") for _ in range(2)]
    block = spans(["a", "b"])
    block["track"] = twins
    path = write_journal(tmp_path / "journal", [batch_of(block)])
    before = len(tracks.since(1))
    for _ in range(2):
        items, _ = read_journal(path)
        (batch,) = (item for item in items if isinstance(item, EventBatch))
        assert len(set(batch.events["track"].tolist())) == 2
    assert len(tracks.since(1)) == before


def test_arguments_that_cannot_be_stored_are_counted(tmp_path: Path) -> None:
    """Arguments beyond the heap, or too large for a frame, cost their event its arguments and nothing else."""
    block = spans(["outside", "large", "kept"])
    heap = batch_with_arguments(["x"], [{"a": 1}]).args
    huge = bytes(fmt.CHUNK_BYTES + 1)
    block["args_at"] = [len(heap) + len(huge), len(heap), 0]
    block["args_len"] = [1, len(huge), len(heap)]
    path = write_journal(tmp_path / "journal", [batch_of(block, heap + huge)])
    with JournalReader(path) as reader:
        rows = [row for item in reader if isinstance(item, EventBatch) for row in described(item)]
        assert reader.end is not None
        assert reader.end.arguments_cut == 2
        assert not reader.damage
    assert [(row[2], row[4]) for row in rows] == [("outside", "{}"), ("large", "{}"), ("kept", "{'a': 1}")]


def test_unfinished_journal_is_read_and_continued(tmp_path: Path) -> None:
    """A journal that is being written gives what is there, and the rest when asked again."""
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    writer.write_batch(batch_of(spans(["first"])))
    with JournalReader(writer.path) as reader:
        first = [row for item in reader if isinstance(item, EventBatch) for row in described(item)]
        writer.write_batch(batch_of(spans(["second"])))
        writer.close()
        second = [row for item in reader if isinstance(item, EventBatch) for row in described(item)]
        assert not reader.damage
        assert reader.end is not None and (reader.end.events, reader.end.windows) == (2, 0)
    assert [row[2] for row in first] == ["first"]
    assert [row[2] for row in second] == ["second"]


def test_frames_of_later_versions_are_skipped(tmp_path: Path) -> None:
    """Frame types and fields that this version does not know are no damage."""
    journal = HandMade(tmp_path / "journal").frame(200, b"anything at all")
    journal.record(fmt.FrameType.CAP, {"limit_bytes": 5, "dropped": 6, "new_field": [1, 2]})
    with JournalReader(journal.path) as reader:
        assert list(reader) == [records.CapRecord(5, 6)]
        assert not reader.damage


@pytest.mark.parametrize(("version", "which"), [(fmt.VERSION + 1, "newer"), (fmt.VERSION - 1, "earlier")])
def test_another_version_is_refused(tmp_path: Path, version: int, which: str) -> None:
    """A file of another version is named as such."""
    path = tmp_path / "journal"
    head = fmt.FILE_HEADER.pack(fmt.MAGIC, version, 0, fmt.new_sync_word(), 0)[:-4]
    path.write_bytes(head + zlib.crc32(head).to_bytes(4, "little"))
    with refused(FormatError, f"version {version}", f"version {fmt.VERSION}", which):
        JournalReader(path)


@pytest.mark.parametrize("content", [b"{}", bytes(1000)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is no journal is an error that says so."""
    path = tmp_path / "other"
    path.write_bytes(content)
    with refused(FormatError, "other"):
        JournalReader(path)


def test_closed_writer_refuses(tmp_path: Path) -> None:
    """Writing after the end raises instead of losing silently."""
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    writer.close()
    writer.close()
    with pytest.raises(ClosedError):
        writer.write_batch(batch_of(spans(["late"])))
    with pytest.raises(ClosedError):
        writer.write_metadata({"late": 1})
    assert events_of(writer.path) == []
