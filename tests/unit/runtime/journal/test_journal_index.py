"""The index of a journal leads to the frames of each window, and is believed no further than these bear it out."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.reading.recording import load
from stepscope.cli.main import main
from stepscope.collector.runs.recording import Recording
from stepscope.exporters.specimens import run_in, window_of
from stepscope.runtime.accounting.ledger import Ledger, SourceLedger
from stepscope.runtime.events import strings
from stepscope.runtime.events.clock import ClockSync
from stepscope.runtime.events.record import EventBatch, Kind, empty_block, join_blocks
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import index as journal_index
from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from stepscope.runtime.journal.index import JournalIndex
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import EndRecord, IndexRecord, MetadataRecord, encode_record
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.windows.open_window import STEPS
from stepscope.runtime.windows.window import Window
from tests.support.journals import batch_with_arguments, described

Act = tuple[int, bool] | tuple[int, bool, bool]
"""Number of a window; whether it ends, or gets a batch; whether an index is due."""
ACT_LISTS = st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), min_size=1, max_size=40)


def window(number: int) -> Window:
    """One with accounts and a note of its own."""
    made = window_of(number, batch_with_arguments(["x"], [{}], window=number, start_ns=number))
    ledger = Ledger({"recorder": SourceLedger(produced=3 + number, accepted=3, dropped={"overflow": number})})
    return msgspec.structs.replace(made, ledger=ledger, diagnostics=(f"note {number}",))


def batch_of(index: int, number: int) -> EventBatch:
    """Two spans; in some batches also a step mark and a gap of two events, in others the span of a step."""
    batch = batch_with_arguments(["x", "y"], [{"act": number}, {}], window=index, start_ns=10 * number)
    more = empty_block(2)
    more["ts"], more["step"], more["id"] = 10 * number, number, 1
    if number % 3 == 0:
        more["kind"], more["name"] = [Kind.STEP, Kind.GAP], strings.intern("dropped")
        more["id"][1], more["dur"][1] = 2, 1
        return EventBatch("recorder", index, join_blocks([batch.events, more]), batch.args)
    if number % 3 == 1:
        more["kind"], more["dur"], more["name"] = Kind.SPAN, 7, strings.intern("step")
        return EventBatch(STEPS, index, more[:1], b"")
    return batch


def write(writer: JournalWriter, acts: Sequence[Act]) -> set[int]:
    """For each act writes a batch of a window, or its end; with an index if that is due. Returns the windows without an end."""
    closed: set[int] = set()
    for number, (index, ends, *due) in enumerate(acts):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal_index, "INTERVAL_NS", -1 if any(due) else 1 << 62)
            patch.setattr(journal_index, "MIN_BYTES", 0)
            if index in closed:
                continue
            if ends:
                writer.write_window(window(index))
                closed.add(index)
            else:
                writer.write_metadata({"acts": number})
                writer.write_batch(batch_of(index, number))
    return {index for index, *_ in acts} - closed


def written(directory: Path, acts: Sequence[Act]) -> Path:
    """A journal that was closed normally. Windows that are left open are closed at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    writer = JournalWriter(directory / "journal")
    writer.open(run_in(directory))
    for index in sorted(write(writer, acts)):
        writer.write_window(window(index))
    writer.write_ledger(Ledger({"recorder": SourceLedger(produced=len(acts))}))
    writer.close()
    return writer.path


def read(path: Path, only: int | None) -> tuple[list[Any], Any, Any]:
    """The batches and windows of one window, or of all, and the run's metadata and accounts."""
    with JournalReader(path) as reader:
        items = list(reader.items(only))
        assert not reader.damage.harm()
        batches = [described(item) for item in items if isinstance(item, EventBatch) and only in (None, item.window)]
        windows = [item for item in items if isinstance(item, Window) and only in (None, item.index)]
        return [batches, windows], reader.metadata, reader.ledger


@given(ACT_LISTS)
def test_a_window_is_read_alone(tmp_path_factory: pytest.TempPathFactory, acts: Sequence[Act]) -> None:
    """However windows overlap, it gives what reading all gives of it; so do the facts of the list."""
    path = written(tmp_path_factory.mktemp("journal"), acts)
    (batches, windows), metadata, ledger = read(path, None)
    with JournalReader(path) as reader:
        index = reader.index()
    assert index is not None
    rows = {row.window: row for row in index.windows()}
    assert rows.keys() == {one.index for one in windows}
    for one in windows:
        expected = [[each for each in batches if each[0][1] == one.index], [one]]
        assert read(path, one.index) == (expected, metadata, ledger)
        row = rows[one.index]
        assert index.find(one.index) == row
        assert row.events == sum(map(len, expected[0])) and row.dropped == one.index and row.complete == one.complete
        assert (row.start_ns, row.end_ns, row.wall_start_ns) == (one.start_ns, one.end_ns, one.wall_start_ns)
        assert row.steps == len(one.steps)
        assert not one.steps or (row.first_step, row.last_step) == (one.steps[0].number, one.steps[-1].number)
    assert read(path, 99)[0] == [[], []]


@given(ACT_LISTS, st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_steps_are_read_alone(
    tmp_path_factory: pytest.TempPathFactory, acts: Sequence[Act], ends: tuple[int, int]
) -> None:
    """Frames that are left out have no event of the steps, and none in their time."""
    steps = min(ends), max(ends)
    times = 10 * steps[0], 10 * steps[1] + 10

    def wanted(batches: Iterable[EventBatch]) -> list[Any]:
        found: list[Any] = []
        for batch in batches:
            of_steps = (batch.events["step"] >= steps[0]) & (batch.events["step"] <= steps[1])
            in_time = (batch.events["ts"] < times[1]) & (batch.events["ts"] + batch.events["dur"] > times[0])
            rows = batch.events[of_steps | in_time]
            found += [described(msgspec.structs.replace(batch, events=rows))] if len(rows) else []
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_index, "STRETCH_BYTES", 1)
        path = written(tmp_path_factory.mktemp("journal"), acts)
    with JournalReader(path) as reader:
        index = reader.index()
        assert index is not None
        for rows in index.parts:
            for at in range(len(rows)):
                row = rows[at : at + 1]
                others = index.without(row[0], steps, times)
                assert wanted(reader.batches(row, others)) == wanted(reader.batches(row))
        assert not reader.damage.harm()


ACTS = [(number // 4, number % 4 == 3) for number in range(40)]
"""Ten windows of three batches each."""


def test_other_steps_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a window that lasts for the whole run, a few steps are found without reading the rest."""
    monkeypatch.setattr(journal_index, "STRETCH_BYTES", 1)
    path = written(tmp_path, [(0, False)] * 30)
    with JournalReader(path) as reader:
        index = reader.index()
        assert index is not None
        row = index.parts[0][0]
        others = index.without(row, (12, 12), (120, 130))
    assert sum(end - begin for begin, end in others) > (row["closed"] - row["begin"]) / 2
    data = bytearray(path.read_bytes())
    for begin, end in others:
        data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
    with JournalReader(path) as reader:
        found = [batch.events for batch in reader.batches(index.parts[0], others)]
        assert 12 in join_blocks(found)["step"] and not reader.damage


def test_frames_that_end_before_they_begin_are_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index may be damaged, or made to mislead a merge."""
    monkeypatch.setattr(journal_index, "STRETCH_BYTES", 1)
    with JournalReader(written(tmp_path, [(0, False)] * 8)) as reader:
        index = reader.index()
        assert index is not None
        others = index.without(index.parts[0][0], (0, 0), (0, 0))
        events = [batch.events.tobytes() for batch in reader.batches(index.parts[0])]
        found = reader.batches(index.parts[0], [(others[3][0], others[1][0])])
        assert [batch.events.tobytes() for batch in found] == events


def test_steps_are_looked_for_in_the_indexes_of_their_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of other windows make a merge of all steps of many windows no slower."""
    monkeypatch.setattr(journal_index, "STRETCH_BYTES", 1)
    path = written(tmp_path, [(number // 8, number % 8 == 7, True) for number in range(80)])
    with JournalReader(path) as reader:
        index = reader.index()
        assert index is not None and len(index.records) > 20
        (row,) = index.parts[0][index.parts[0]["window"] == 4]
        others = index.without(row, (35, 35), (350, 360))
        own = [record for at, record in index.records if row["begin"] < at and record.before < row["end"]]
        stretches = memoryview(b"".join(record.stretches for record in own))
        index.records = [(at, msgspec.structs.replace(each, stretches=stretches)) for at, each in index.records]
        again = index.without(row, (35, 35), (350, 360))
    assert others and again == others * len(own)


def test_durations_below_zero_count_as_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A span of no step that begins in the time of some steps is read with them, though it seems to end before."""
    monkeypatch.setattr(journal_index, "STRETCH_BYTES", 1)
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    for number in range(3):
        batch = batch_of(0, number)
        events = batch.events.copy()
        events["ts"], events["dur"], events["step"] = 1000 * (number + 1), -500, -1
        writer.write_batch(msgspec.structs.replace(batch, events=events))
    writer.write_window(window(0))
    writer.close()
    with JournalReader(writer.path) as reader:
        index = reader.index()
        assert index is not None
        others = index.without(index.parts[0][0], (7, 7), (1900, 2100))
        found = [batch.events["ts"].tolist() for batch in reader.batches(index.parts[0], others)]
    assert {ts for times in found for ts in times} == {2000}


def test_an_index_of_many_stretches_is_due_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of two windows whose frames alternate, too, fit into what a message broker takes."""
    monkeypatch.setattr(journal_index, "MAX_ROWS_BYTES", 1000)
    monkeypatch.setattr(journal_index, "INTERVAL_NS", 1 << 62)
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    for number in range(200):
        writer.write_batch(batch_of(number % 2, number))
    for number in range(2, 102):
        writer.write_batch(batch_of(number, number))
        writer.write_window(window(number))
    writer.close()
    with JournalReader(writer.path) as reader:
        index = reader.index()
    assert index is not None
    sizes = [len(record.rows) + len(record.stretches) for _, record in index.records]
    assert max(sizes) < 1200 and min(sizes[:-1]) > 1000
    assert sum(len(record.stretches) for _, record in index.records) == 200 * journal_index.STRETCH.size


def test_other_windows_are_not_looked_at(tmp_path: Path) -> None:
    """Damage to one costs the others nothing, not even a note."""
    path = written(tmp_path, ACTS)
    with JournalReader(path) as reader:
        index = reader.index()
    assert index is not None and (row := index.find(3)) is not None
    data = bytearray(path.read_bytes())
    data[row.begin + 8 : row.end] = bytes(row.end - row.begin - 8)
    whole = read(path, 5)
    path.write_bytes(data)
    assert read(path, 5) == whole
    with JournalReader(path) as reader:
        assert not list(reader.items(3)) or reader.damage


@given(ACT_LISTS, st.integers(0, 400))
def test_an_index_of_a_journal_that_was_cut(
    tmp_path_factory: pytest.TempPathFactory, acts: Sequence[Act], cut: int
) -> None:
    """The index frames that are there and the frames after them lead to each window, with or without an end."""
    path = written(tmp_path_factory.mktemp("journal"), acts)
    data = path.read_bytes()
    path.write_bytes(data[: max(len(data) - cut, 200)])
    (batches, windows), metadata, ledger = read(path, None)
    for number in range(7):
        expected = (
            [each for each in batches if each[0][1] == number],
            [each for each in windows if each.index == number],
        )
        assert read(path, number) == ([*expected], metadata, ledger)


@given(ACT_LISTS)
def test_recovery_goes_on_from_an_index(tmp_path_factory: pytest.TempPathFactory, acts: Sequence[Act]) -> None:
    """The result is the same as without one, and has an index of all its windows."""
    found: list[Any] = []
    for name, chosen in (("indexed", acts), ("plain", [(*act[:2], False) for act in acts])):
        directory = tmp_path_factory.mktemp(name)
        writer = JournalWriter(directory / "journal")
        writer.open(run_in(directory))
        write(writer, chosen)
        writer.abandon()
        result = recover(writer.path)
        with JournalReader(writer.path) as reader:
            index = reader.index()
        assert index is not None and index.builder.recovered and not index.builder.open
        rows = [(row.window, row.events, row.steps, row.start_ns, row.end_ns) for row in index.windows()]
        what = read(writer.path, None)[0]
        assert [read(writer.path, each.index)[0][1] for each in what[1]] == [[each] for each in what[1]]
        windows = [msgspec.structs.replace(each, wall_start_ns=0) for each in what[1]]  # each run has its own
        found.append((what[0], windows, rows, result.windows, result.unfinished, result.total, result.events))
    assert found[0] == found[1]


def test_recovery_does_not_read_frames_before_the_index(tmp_path: Path) -> None:
    """Events before it are not decoded: damage to their frames does not matter."""
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    write(writer, [(0, False)] * 9 + [(0, False, True)])
    (position, record), *_ = index_of(writer.path).records
    write(writer, [(0, False)] * 3)
    writer.abandon()
    data = bytearray(writer.path.read_bytes())
    data[record.open[0].begin + 100 : record.outlines] = bytes(record.outlines - record.open[0].begin - 100)
    writer.path.write_bytes(data)
    assert position < len(data)
    result = recover(writer.path)
    assert (result.windows, result.unfinished, result.events) == (1, 1, 25 + 7)
    row = index_of(writer.path).find(0)
    assert row is not None and row.steps == 4


def index_of(path: Path) -> JournalIndex:
    """The index of a journal that has one."""
    with JournalReader(path) as reader:
        index = reader.index()
    assert index is not None
    return index


def test_a_journal_without_an_index(tmp_path: Path) -> None:
    """If its process was killed before the first one, all of it is read."""
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    write(writer, ACTS)
    writer.abandon()
    with JournalReader(writer.path) as reader:
        assert reader.index() is None
    assert len(read(writer.path, 4)[0][0]) == 3


def forged(path: Path, index: object, at: int = 0) -> None:
    """Replaces the index of a journal by another, of which the end says that it begins at a byte; default: where it does."""
    with JournalReader(path) as reader:
        found = [*reader]
        assert found and reader.frames.sync_word is not None
        number, begin = reader.end_position
        sync = reader.frames.sync_word
    with JournalReader(path) as reader:
        end = reader.frames.last()
    assert end is not None
    decoded = msgspec.msgpack.decode(end[2], type=EndRecord)
    data = path.read_bytes()[: decoded.index]
    data += b"".join(fmt.encode_frame(sync, fmt.FrameType.INDEX, number - 1, [encode_record(index)]))
    last = msgspec.structs.replace(decoded, index=at or decoded.index)
    data += b"".join(fmt.encode_frame(sync, fmt.FrameType.END, number, [encode_record(last)]))
    assert begin
    path.write_bytes(data)


def rows_at(path: Path, offset: int) -> IndexRecord:
    """The index of a journal, its places moved by some bytes."""
    with JournalReader(path) as reader:
        index = reader.index()
    assert index is not None
    moved = [
        msgspec.structs.replace(row, begin=row.begin + offset, closed=row.closed + offset) for row in index.windows()
    ]
    packed = map(msgspec.structs.astuple, moved)
    rows = b"".join(journal_index.ROW.pack(*values) for values in packed)
    return IndexRecord(
        rows=memoryview(rows), metadata=index.builder.metadata + offset, ledger=index.builder.ledger + offset
    )


@pytest.mark.parametrize("offset", [1, -7, 1 << 40, -(1 << 40)])
def test_an_index_that_leads_elsewhere(offset: int, tmp_path: Path) -> None:
    """All of the journal is read then."""
    path = written(tmp_path, ACTS)
    whole = read(path, 5)[0]
    forged(path, rows_at(path, offset))
    assert read(path, 5)[0] == whole
    assert load(path, only=(5,)).ranks[0].windows[5].diagnostics == ("note 5",)


@pytest.mark.parametrize(
    ("index", "at"),
    [
        (IndexRecord(rows=memoryview(b"x" * 50)), 0),
        (MetadataRecord({}), 0),
        ("text", 0),
        (IndexRecord(), 21),
        (IndexRecord(), 1 << 60),
        (IndexRecord(), (1 << 63) - 1),
        (IndexRecord(before=(1 << 63) - 1), 0),
        (IndexRecord(), -1),
    ],
)
def test_an_index_that_makes_no_sense(index: object, at: int, tmp_path: Path) -> None:
    """It is no error."""
    path = written(tmp_path, ACTS)
    forged(path, index, at)
    with JournalReader(path) as reader:
        assert sum(isinstance(item, Window) for item in reader) == 10
    assert load(path).ranks[0].windows.keys() == set(range(10))


def test_windows_are_listed_without_their_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The list is the same with and without an index, and with it no window is read."""
    path = written(tmp_path / "run", ACTS)
    shutil.copytree(tmp_path / "run", tmp_path / "cut")
    (tmp_path / "cut" / "journal").write_bytes(path.read_bytes()[:-1])
    listed: list[Any] = []
    for name in ("run", "cut"):
        assert main(["windows", str(tmp_path / name), "--json"]) == 0
        listed.append(msgspec.json.decode(capsys.readouterr().out))
    assert listed[0] == listed[1] and len(listed[0]) == 10
    assert load(path, only=()).ranks[0].windows == {}
    assert load(path, only=(3,)).ranks[0].windows.keys() == {3}


@pytest.mark.parametrize("closed", [True, False])
def test_comparisons_of_clocks_are_in_the_index(tmp_path: Path, closed: bool) -> None:
    """A merge of one window aligns ranks without reading the frames of others, also of a run that still writes."""
    place = tmp_path / "streams" / ("a" * 32)
    writer = JournalWriter(place / "journal", segment_bytes=2000)
    writer.open(run_in(tmp_path))
    sent: list[ClockSync] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_index, "INTERVAL_NS", -1)
        patch.setattr(journal_index, "MIN_BYTES", 0)
        for number in range(30):
            sync = ClockSync(
                sent=number, arrived=100 + number, answered=101 + number, returned=5 + number, clock="c" * 32
            )
            writer.write_sync(sync)
            sent.append(sync)
            writer.write_batch(batch_of(number, number))
            writer.write_window(window(number))
    if closed:
        writer.close()
    whole = Recording.of(writer.path, "a")
    one = Recording.of(writer.path, "a", lambda rows: rows["window"] == 7)
    assert one.syncs == whole.syncs == sent and (one.marks == whole.marks).all() and one.events == whole.events
    assert list(one.rows["window"]) == [7] and one.windows(one.rows) == {7: whole.windows(whole.rows)[7]}
    assert (one.run, one.metadata, one.ended, one.damage) == (whole.run, whole.metadata, closed, Damage())
    assert (one.all_rows() == whole.rows).all() and len(whole.rows) == 30
    writer.abandon()


def test_a_minute_with_little_in_it_has_no_index(tmp_path: Path) -> None:
    """Else a run of a week with a small window each minute would have thousands of them."""
    builder = journal_index.IndexBuilder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_index, "INTERVAL_NS", -1)
        assert not builder.is_due(journal_index.MIN_BYTES - 1)
        assert builder.is_due(journal_index.MIN_BYTES) and not builder.is_due(2 * journal_index.MIN_BYTES - 1)
    for number in range(journal_index.MAX_SYNCS):
        assert not builder.is_due(journal_index.MIN_BYTES)
        builder.add_sync(ClockSync(sent=number, arrived=0, answered=0, returned=0, clock="c"))
    assert builder.is_due(journal_index.MIN_BYTES), "no comparison of clocks is left out"


def mapping(fields: dict[str, bytes]) -> bytes:
    """A map in MessagePack whose values are packed."""
    return bytes([0x80 | len(fields)]) + b"".join(
        msgspec.msgpack.encode(name) + value for name, value in fields.items()
    )


def array(count: int, items: bytes) -> bytes:
    """An array in MessagePack."""
    return b"\xdd" + count.to_bytes(4, "big") + items


def lists() -> bytes:
    """4 Mi empty lists, which take 256 MiB in memory."""
    return mapping({"a": array(4 << 20, b"\x90" * (4 << 20))})


def counts(number: int) -> bytes:
    """So many counts by name, which take 14 times as much in memory."""
    packed = (msgspec.msgpack.encode(f"{each:x}") + b"\0" for each in range(number))
    return b"\xdf" + number.to_bytes(4, "big") + b"".join(packed)


def opened(number: int, events: bytes = b"\x80") -> bytes:
    """The open windows of an index."""
    return mapping({"open": array(number, (b"\x95\0\0\0\0" + events) * number)})


def closed(fields: dict[str, bytes]) -> bytes:
    """The end of a window."""
    return mapping({"index": b"\0", "start_ns": b"\0", "end_ns": b"\0"} | fields)


LARGE: dict[str, Callable[[], list[tuple[int, bytes]]]] = {
    "open windows of an index": lambda: [(fmt.FrameType.INDEX, opened(1 << 20))],
    "sources of an index": lambda: [(fmt.FrameType.INDEX, opened(400, counts(5000)))],
    "an index that no other leads to": lambda: [
        (fmt.FrameType.INDEX, opened(1 << 20)),
        (fmt.FrameType.INDEX, mapping({"before": b"\x19"})),
    ],
    "metadata of a window": lambda: [(fmt.FrameType.WINDOW_CLOSED, closed({"metadata": lists()}))],
    "accounts of a window": lambda: [
        (fmt.FrameType.WINDOW_CLOSED, closed({"ledger": mapping({"cut": counts(1_000_000)})}))
    ],
    "metadata": lambda: [(fmt.FrameType.METADATA, mapping({"values": lists()}))],
    "windows": lambda: [
        (fmt.FrameType.EVENTS, fmt.EVENTS_HEADER.pack(0, 0, number, 0, 0, 0)) for number in range(150_000)
    ],
}


@pytest.mark.parametrize("what", LARGE)
def test_no_record_takes_many_times_its_size(what: str, tmp_path: Path) -> None:
    """Where a journal is looked through that anybody may have sent: what an index does not need is not decoded."""
    path, sync = tmp_path / "journal", fmt.new_sync_word()
    frames = [fmt.encode_frame(sync, kind, n, [payload]) for n, (kind, payload) in enumerate(LARGE[what]())]
    path.write_bytes(fmt.encode_file_header(sync) + b"".join(bytes(part) for frame in frames for part in frame))
    reader = FrameReader(path)
    tracemalloc.start()
    try:
        assert (journal_index.read_index(reader) or journal_index.scan(reader)) is not None
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
        reader.close()
