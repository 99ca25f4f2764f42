"""Each event counts once in a merge, in however many files it lies; what ranks lost shows in its accounts."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.cli.main import main
from stepscope.collector.files.disk import SegmentFile
from stepscope.collector.files.stream_file import StreamFile
from stepscope.collector.merge.merge import Merge, ledger_of
from stepscope.collector.merge.outputs import write_merged
from stepscope.collector.merge.plan import Selection, plan
from stepscope.collector.retention.inventory import Segment
from stepscope.collector.runs.evicted import evict
from stepscope.collector.runs.job import Job, Member, chosen_job
from stepscope.collector.runs.recording import recordings_in
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.specimens import batch_of, run_in, window_of
from stepscope.exporters.specimens import spans as spans_from
from stepscope.runtime.accounting.ledger import MAX_COUNT, Ledger, OutputLedger, SourceLedger, sum_ledgers
from stepscope.runtime.events.record import Kind, empty_block
from stepscope.runtime.export.run import Run
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import run_record
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.windows.window import Window
from tests.integration.collector.test_merge import add_rank, merged, rank_run, syncs_of
from tests.support.basics import require
from tests.support.collectors import COMMAND
from tests.support.journals import HandMade
from tests.support.launch import run_to_end
from tests.support.ranks.cluster import collector, start_rank
from tests.support.ranks.streams import write_stream
from tests.support.ranks.worker import Rank
from tests.support.streams import RUN, STREAM, SYNC, frames_header, run_frame
from tests.support.streams import frames as stream_frames
from tests.support.viewers.scene import Scene, make_window, training


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collector's directory with a rank that was killed in step 7 of 10, delivered, and started again from step 5."""
    directory = tmp_path_factory.mktemp("delivered")
    with collector(directory / "collected") as address:
        assert start_rank(address, directory, Rank(rank=0, killed_at=7), 1).wait(60) == -9
        (run,) = directory.glob("run-*/rank0")
        command = [*COMMAND, "deliver", str(run), "--url", address]
        done = run_to_end(command, timeout=60, server="command")
        assert done.returncode == 0, done.stderr
        assert start_rank(address, directory, Rank(rank=0, first_step=5), 1).wait(60) == 0
    assert len(list((directory / "collected" / "streams").iterdir())) == 2
    return directory / "collected"


def spans(directory: Path, out: Path) -> Counter[tuple[str, int]]:
    """The spans of a merge, by name and step."""
    table: Any = require("pyarrow.parquet")
    assert main(["merge", str(directory), "--out", str(out)]) == 0
    rows = table.read_table(out).to_pylist()
    return Counter((row["name"], row["step"]) for row in rows if row["name"] in ("compute", "gloo:all_reduce"))


def test_a_stream_that_two_collectors_have(tmp_path: Path) -> None:
    """One took it over from the other: the whole file counts, in any order of the arguments."""
    add_rank(tmp_path / "b", 0)
    (whole,) = (tmp_path / "b").glob("streams/*")
    part = tmp_path / "a" / "streams" / ("0" * 32) / "journal"
    part.parent.mkdir(parents=True)
    whole = whole.rename(whole.with_name("0" * 32))
    part.write_bytes((whole / "journal").read_bytes()[:-400])
    alone, _ = merged(tmp_path / "b")
    for first, second in (("a", "b"), ("b", "a")):
        both, report = merged(tmp_path / first, None, None, tmp_path / second)
        assert len(both) == len(alone) > 0
        assert len(report.members) == 1 and report.members[0].ended and report.notes == []


def test_copies_of_which_neither_has_all_are_reported(tmp_path: Path) -> None:
    """The one with more events counts, and the part that is left out is reported."""
    add_rank(tmp_path / "a", 0)
    (stream,) = (tmp_path / "a").glob("streams/*")
    stream.rename(stream.with_name("1" * 32))
    (first,), _ = recordings_in([tmp_path / "a"])
    block: Any = empty_block(2)
    block["ts"], block["kind"] = first.last_ns + 1000, int(Kind.INSTANT)
    other = tmp_path / "b" / "streams" / ("1" * 32) / "journal"
    other.parent.mkdir(parents=True)
    HandMade(other).record(fmt.FrameType.RUN, first.run).events(block)
    exporter, report = merged(tmp_path / "b", None, None, tmp_path / "a")
    assert len(report.members) == 1 and len(exporter) == first.events
    (note,) = report.notes
    assert "not the 2 of the first" in note and str(other) in note


@pytest.mark.parametrize("evicted", [(0, 1, 2), (1, 2)])
def test_segments_that_were_evicted_are_missing_and_no_damage(tmp_path: Path, evicted: tuple[int, ...]) -> None:
    """They cost no other rank and no other window; how much it was is in the report."""
    ms = 1_000_000
    journals: list[Path] = []
    for rank in (0, 1):
        run = msgspec.structs.replace(run_in(tmp_path), rank=rank, job="job", pid=rank + 1, id=f"{rank:032x}")
        at = run.anchor.monotonic_ns
        windows = {n: (at + n * ms, at + n * ms + ms - 1, 10 + n) for n in range(6)}
        journals.append(tmp_path / "streams" / f"{rank:032x}" / "journal")
        recorded(journals[-1], run, windows, segment_bytes=1)
    whole, _ = merged(tmp_path)
    counts = [Segment.read(SegmentFile(path, path.stat())).counted() for path in segment_paths(journals[0])]
    assert len(counts) > 6
    for number in evicted:
        evict(journals[0], counts[number])
    missing = sum(counts[number].events for number in evicted)
    exporter, report = merged(tmp_path)
    assert len(report.members) == 2 and len(exporter) == len(whole) - missing and missing > 10
    assert any(f"{missing:,} events were evicted" in note for note in report.notes)
    assert not any(member.damage for member in report.members)
    assert main(["merge", str(tmp_path), "--out", str(tmp_path / "x.json")]) == 0
    assert main(["merge", *map(str, journals), "--out", str(tmp_path / "y.json")]) == 0
    assert events(tmp_path / "x.json") == events(tmp_path / "y.json")
    assert main(["convert", str(journals[0]), str(tmp_path / "z.json")]) == 0
    _, report = merged(tmp_path, Selection(window=4))
    assert report.absent == []
    segment_paths(journals[0])[1].unlink()
    _, report = merged(tmp_path)
    assert any("lost frames" in member.damage for member in report.members), "frames that nobody evicted are damage"


def recorded(path: Path, run: Run, windows: dict[int, tuple[int, int, int]], segment_bytes: int = 0) -> Path:
    """A journal that a run left, with windows of which each has its start, its end and a number of spans."""
    path.parent.mkdir(parents=True)
    writer = JournalWriter(path, segment_bytes=segment_bytes)
    writer.open(run)
    for index, (start, end, count) in windows.items():
        batch = batch_of(spans_from([f"{path.parent.name} {index}"] * count, start_ns=start), window=index)
        writer.write_batch(batch)
        writer.write_window(msgspec.structs.replace(window_of(index, batch), start_ns=start, end_ns=end))
    writer.close()
    return path


@pytest.mark.parametrize("rank", [None, 0])
def test_recordings_of_one_run_of_which_none_has_all(tmp_path: Path, rank: int | None) -> None:
    """The one with most events counts, as they overlap in time, and the part that is left out is reported."""
    run = msgspec.structs.replace(run_in(tmp_path), rank=rank)
    at = run.anchor.monotonic_ns
    ms = 1_000_000
    stream = {n: (at + n * ms, at + n * ms + ms - 1, count) for n, count in enumerate((9, 9, 5, 9, 9, 9))}
    journal = {1: (*stream[1][:2], 2), 2: (*stream[2][:2], 9)}
    later = {7: (at + 7 * ms, at + 8 * ms, 3)}
    for name, windows in (("a", stream), ("b", journal), ("c", later)):
        recorded(tmp_path / "in" / "streams" / name / "x.journal", run, windows)
    exporter, report = merged(tmp_path / "in")
    assert Counter(exporter.names()) == {
        "a 0": 9, "a 1": 9, "a 2": 5, "a 3": 9, "a 4": 9, "a 5": 9, "c 7": 3,
    }  # fmt: skip
    label = "rank 0" if rank == 0 else "process 1234"
    assert [member.member for member in report.members] == [label] * 2 and report.absent == []
    (note,) = report.notes
    assert "not the 11 of the first" in note


def test_windows_of_one_event_count_once(tmp_path: Path) -> None:
    """They end when they begin, and so overlap with nothing by their times."""
    run = run_in(tmp_path)
    at = run.anchor.monotonic_ns
    for name, windows in (("a", (0, 1, 2)), ("b", (0, 1))):
        recorded(tmp_path / "in" / name / "x.journal", run, {n: (at + n, at + n, 1) for n in windows})
    exporter, _ = merged(tmp_path / "in")
    assert Counter(exporter.names()) == {"a 0": 1, "a 1": 1, "a 2": 1}


@given(frames=st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=60)), max_size=8))
@settings(max_examples=80)
def test_any_frames_of_a_client_cost_nobody_else(
    frames: list[tuple[int, int, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Types of frames that a reader does not know, or that have no record, with anything in them."""
    directory = tmp_path_factory.mktemp("hostile")
    add_rank(directory, 0)
    (first,), _ = recordings_in([directory])
    made = HandMade(directory / "hostile.journal")
    made.record(fmt.FrameType.RUN, first.run)
    for kind, flags, payload in frames:
        made.frame(kind, payload, flags)
    exporter, report = merged(directory, job="job")
    assert "ProfilerStep#7" in exporter.names()
    assert report.members[0].events > 0


@pytest.mark.parametrize("overlap", [0, 2])
def test_a_stream_of_which_each_directory_has_a_part(tmp_path: Path, overlap: int) -> None:
    """As when a collector died, and what it had was no longer there for the next: they are put together."""
    add_rank(tmp_path / "whole", 0)
    (whole,) = (tmp_path / "whole" / "streams").glob("*/journal")
    data = whole.read_bytes()
    reader = FrameReader(whole)
    ends = [fmt.FILE_HEADER.size]
    while reader.next() is not None:
        ends.append(reader.position[1])
    reader.close()
    middle = len(ends) // 2
    parts = {
        "one": data[: ends[middle]] + b"half of a frame",
        "other": data[: fmt.FILE_HEADER.size] + data[ends[middle - overlap] :],
    }
    for name, part in parts.items():
        place = tmp_path / name / "streams" / whole.parent.name
        place.mkdir(parents=True)
        (place / "journal").write_bytes(part)
    outputs = [tmp_path / "out" / name for name in ("whole.json", "one.json", "other.json")]
    outputs[0].parent.mkdir()
    one, other = tmp_path / "one", tmp_path / "other"
    for sources, out in zip(([tmp_path / "whole"], [one, other], [other, one]), outputs, strict=True):
        assert main(["merge", *map(str, sources), "--out", str(out)]) == 0
    rows = [events(out) for out in outputs]
    assert rows[1] == rows[2] == rows[0] and len(rows[0]) > 3
    assert sorted(outputs) == sorted((tmp_path / "out").iterdir()), "temporary files are removed"


def test_a_stream_that_lies_about_its_positions_costs_nobody_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two directories have a part each, of which one is where no file has bytes: it is named, and the others are merged."""
    add_rank(tmp_path / "one", 0)
    for name, first, segment, position in (("one", 0, 0, 20), ("two", 3, 0, 400), ("two", 7, 1, 1 << 61)):
        data = run_frame(0) + stream_frames(1, 4) if first == 0 else stream_frames(first, 4)
        place = tmp_path / name / "streams" / STREAM
        place.mkdir(parents=True, exist_ok=True)
        file = StreamFile(place, SYNC, RUN)
        count = 5 if first == 0 else 4
        file.write(file.check(frames_header(first, count, segment, position), memoryview(data)))
        file.close()
    out = tmp_path / "out.json"
    sources = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert main(["merge", *sources, "--job", "job", "--out", str(out)]) == 3
    assert "ProfilerStep#7" in out.read_text()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("not read")]
    assert f"two/streams/{STREAM}" in line and "claims a position that no file has" in line


def test_a_part_of_another_run_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of another run, under the name of a stream: it is named, and the other part is merged."""
    run = msgspec.structs.replace(run_in(tmp_path), rank=0, id="0" * 32)
    at = run.anchor.monotonic_ns
    place = Path("streams", "0" * 32, "journal")
    journal = recorded(tmp_path / "one" / place, run, {n: (at + n * 1000, at + n * 1000 + 999, 10) for n in range(3)})
    reader = FrameReader(journal)
    assert (sync := reader.sync_word) is not None
    made = HandMade(tmp_path / "two.journal")
    made.path.write_bytes(journal.read_bytes()[: fmt.FILE_HEADER.size])
    made.sync = sync
    while (frame := reader.next()) is not None:
        kind, flags, payload = frame
        if kind == fmt.FrameType.RUN:
            made.record(kind, run_record(msgspec.structs.replace(run, rank=1, id="1" * 32), 0))
        elif kind != fmt.FrameType.END:
            made.frame(kind, payload, flags)
    made.frame(99, b"").frame(99, b"")
    reader.close()
    (tmp_path / "two" / place).parent.mkdir(parents=True)
    made.path.rename(tmp_path / "two" / place)
    out = tmp_path / "out.json"
    assert main(["merge", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(out)]) == 3
    assert len(events(out)) >= 30
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("not read")]
    assert "two/streams" in line and "of another run" in line


def test_a_stream_of_which_each_directory_has_some_segments(tmp_path: Path) -> None:
    """They are put together as parts of one file are."""
    run = msgspec.structs.replace(run_in(tmp_path), rank=0, id="0" * 32)
    at = run.anchor.monotonic_ns
    windows = {n: (at + n * 1000, at + n * 1000 + 999, 10 + n) for n in range(6)}
    place = Path("streams", "0" * 32)
    whole = recorded(tmp_path / "whole" / place / "journal", run, windows, segment_bytes=1)
    files = segment_paths(whole)
    for name, its in (("one", files[:5]), ("other", files[4:])):
        (tmp_path / name / place).mkdir(parents=True)
        for path in its:
            shutil.copy(path, tmp_path / name / place)
    one, other = tmp_path / "one", tmp_path / "other"
    for out, sources in (
        ("whole.json", [tmp_path / "whole"]),
        ("both.json", [one, other]),
        ("again.json", [other, one]),
    ):
        assert main(["merge", *map(str, sources), "--out", str(tmp_path / out)]) == 0
    assert events(tmp_path / "whole.json") == events(tmp_path / "both.json") == events(tmp_path / "again.json")
    assert len(events(tmp_path / "whole.json")) >= 75


def events(trace: Path) -> list[Any]:
    """The events of a Chrome trace, but for what names their rows."""
    return [event for event in json.loads(trace.read_text()) if event["ph"] != "M" and event["name"] != "stepscope"]


def add_windows(directory: Path, rank: int, *windows: Window) -> None:
    """A stream of these windows, which does not say what became of the run."""
    described = rank_run(directory, rank)
    scene = Scene(described)
    training(scene)
    write_stream(directory, described, [scene.batch()], windows, syncs_of(0))


def lost(overflow: int, queue: int, in_flight: int = 0) -> Ledger:
    """The accounts of 100 events."""
    accepted = 100 - overflow
    return Ledger(
        {"recorder": SourceLedger(100, accepted, {"overflow": overflow})},
        {"journal": OutputLedger(accepted, accepted - queue - in_flight, {"queue": queue}, in_flight)},
        {"names_cut": 1},
        windows_left_out=3,
    )


def test_losses_of_each_rank_are_reported(tmp_path: Path) -> None:
    """By rank, source, output and reason, in the window and in the run; nothing is mixed, nothing is left out."""
    for rank in (0, 1):
        add_windows(tmp_path, rank, make_window(ledger=lost(2 + 3 * rank, 7 * rank, rank)))
    exporter, _ = merged(tmp_path)
    (window,) = exporter.windows
    assert exporter.run is not None
    for ledger in (window.ledger, exporter.run.ledger()):
        assert {name: source.dropped for name, source in ledger.sources.items()} == {
            "rank 0: recorder": {"overflow": 2},
            "rank 1: recorder": {"overflow": 5},
        }
        assert ledger.dropped() == 7
        assert ledger.outputs["rank 1: journal"] == OutputLedger(95, 87, {"queue": 7}, 1)
        assert ledger.outputs["rank 0: journal"] == OutputLedger(98, 98, {"queue": 0}, 0)
        assert ledger.cut == {"names_cut": 2}
        assert ledger.windows_left_out == 6


def test_merged_files_have_the_accounts(tmp_path: Path) -> None:
    """Of a Chrome trace and of a journal: of the window, and of the run."""
    for rank in (0, 1):
        add_windows(tmp_path / "in", rank, make_window(ledger=lost(1, 2)))
    asyncio.run(write_merged([tmp_path / "in"], tmp_path / "trace.json"))
    rows: list[dict[str, Any]] = json.loads((tmp_path / "trace.json").read_text())
    ledgers = [row["args"]["ledger"] for row in rows if row["name"] in ("window 0", "stepscope")]
    assert [msgspec.convert(one, Ledger).dropped() for one in ledgers] == [2, 2]
    asyncio.run(write_merged([tmp_path / "in"], tmp_path / "out.journal"))
    with JournalReader(tmp_path / "out.journal") as reader:
        items = list(reader)
    found = [item.ledger if isinstance(item, Window) else item for item in items if isinstance(item, Ledger | Window)]
    assert [ledger.dropped() for ledger in found] == [2, 2]


@pytest.mark.parametrize("windows", [1, 3])
def test_each_rank_alone_has_its_own_accounts(tmp_path: Path, windows: int) -> None:
    """One file for each rank: names are as the rank has them, for there is no other."""
    made = [make_window(index, (7 + 3 * index,), ledger=lost(1 + index, 0)) for index in range(windows)]
    for rank in (0, 1):
        add_windows(tmp_path, rank, *made)
    job = Job(*chosen_job(recordings_in([tmp_path])[0], None))
    outputs: dict[int | None, MemoryExporter] = {}

    def exporter_for(rank: int | None, _: Member) -> MemoryExporter:
        return outputs.setdefault(rank, MemoryExporter())

    asyncio.run(Merge(job, plan(job, Selection()), tmp_path).apart(exporter_for))
    for output in outputs.values():
        assert [window.ledger for window in output.windows] == [window.ledger for window in made]
        assert output.run is not None
        assert output.run.ledger().dropped() == sum(1 + index for index in range(windows))
    assert sorted(outputs, key=str) == [0, 1]


def test_absurd_counts_of_journals_stay_writable() -> None:
    """Counts that no run has: the sum still fits into a file, whatever it is of."""
    huge = Ledger(
        {"x": SourceLedger(MAX_COUNT, MAX_COUNT, {"y": MAX_COUNT}, MAX_COUNT, MAX_COUNT)},
        {"o": OutputLedger(MAX_COUNT, MAX_COUNT, {}, MAX_COUNT)},
    )
    added = sum_ledgers([huge, huge])
    assert added.sources["x"] == huge.sources["x"] and added.outputs == huge.outputs
    assert ledger_of([("a", huge), ("b", huge)]).sources.keys() == {"a: x", "b: x"}
    assert ledger_of([("pid 1", lost(1, 0)), ("pid 1", lost(2, 0))]).sources["pid 1: recorder"].dropped == {
        "overflow": 3
    }
