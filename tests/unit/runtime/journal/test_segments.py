"""A journal of several files is read as one; each can be read alone, and what is missing costs itself only."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope as sc
from stepscope.analysis.reading.recording import load
from stepscope.cli.main import main
from stepscope.exporters.specimens import run_in
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import writer as journal_writer
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.segments import MAX_DESCRIPTORS, segment_paths
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.recovery.journals import Journals
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.windows.window import Window
from tests.support.commands import python
from tests.support.journals import Described, batch_with_arguments, described, events_of, write_journal
from tests.support.messages import refused
from tests.support.native import COMPILER, require_compiler
from tests.unit.runtime.journal import segment_reader
from tests.unit.runtime.journal.test_journal_index import ACT_LISTS, Act, window, write

SIZES = st.integers(1, 4_000)


def written(directory: Path, acts: Sequence[Act], segment_bytes: int) -> Path:
    """A journal that was closed normally, in files of about so many bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    writer = JournalWriter(directory / "journal", segment_bytes=segment_bytes)
    writer.open(run_in(directory))
    for index in sorted(write(writer, acts)):
        writer.write_window(window(index))
    writer.close()
    return writer.path


def many(directory: Path, **settings: Any) -> Path:
    """A journal of one window in many small files."""
    batches = [batch_with_arguments([f"n{at}"], [{"at": at}], start_ns=1000 * (at + 1)) for at in range(40)]
    return write_journal(directory / "journal", batches, segment_bytes=1, **settings)


def contents(path: Path, only: int | None = None) -> tuple[list[Described], list[Window], dict[str, Any]]:
    """Events, windows and metadata of a journal without damage."""
    with JournalReader(path) as reader:
        items = list(reader.items(only))
        assert not reader.damage
        events = [row for item in items if isinstance(item, EventBatch) for row in described(item)]
        return events, [item for item in items if isinstance(item, Window)], reader.metadata


@given(ACT_LISTS, SIZES)
def test_several_files_are_one_journal(
    tmp_path_factory: pytest.TempPathFactory, acts: Sequence[Act], segment_bytes: int
) -> None:
    """All of it, and each of its windows; its files in one; and each file alone."""
    place = tmp_path_factory.mktemp("journal")
    one, several = written(place / "one", acts, 0), written(place / "several", acts, segment_bytes)
    whole = contents(one)
    assert contents(several) == whole
    for number in {index for index, *_ in acts}:
        assert contents(several, number) == contents(one, number)
    files = segment_paths(several)
    joined = place / "joined"
    joined.write_bytes(several.read_bytes() + b"".join(path.read_bytes()[fmt.MAX_FILE_HEADER :] for path in files[1:]))
    assert contents(joined) == whole
    with JournalReader(several) as reader, JournalReader(joined) as other:
        assert list(reader.own_index().windows()) == list(other.own_index().windows())
    if len(files) > 1:
        several.rename(place / "several" / "first")
        alone = [contents(path) for path in (place / "several" / "first", *files[1:])]
        assert [row for events, _, _ in alone for row in events] == whole[0]
        assert [each for _, windows, _ in alone for each in windows] == whole[1]
        assert all(metadata == whole[2] or not events for events, _, metadata in alone[-1:])


@given(ACT_LISTS, SIZES, st.sets(st.integers(0, 20)), st.floats(0, 1))
def test_missing_and_cut_files_cost_themselves_only(
    tmp_path_factory: pytest.TempPathFactory, acts: Sequence[Act], segment_bytes: int, missing: set[int], rest: float
) -> None:
    """The rest is read in its order; a missing beginning is no damage, a missing middle is."""
    path = written(tmp_path_factory.mktemp("journal"), acts, segment_bytes)
    files = segment_paths(path)
    alone: list[list[Described]] = []
    for at, file in enumerate(files):
        moved = file.rename(path.with_name(f"alone-{at}"))
        alone.append(contents(moved)[0])
        moved.rename(file)
    missing &= set(range(len(files)))
    missing -= {len(files) - 1} if len(missing) == len(files) else set()
    for at in missing:
        files[at].unlink()
    left = [row for at, events in enumerate(alone) if at not in missing for row in events]
    with JournalReader(path) as reader:
        assert [row for item in reader if isinstance(item, EventBatch) for row in described(item)] == left
        beginning = next(at for at in range(len(files)) if at not in missing)
        middle = [at for at in missing if beginning < at < max(set(range(len(files))) - missing)]
        assert bool(reader.damage.lost_frames) == bool(middle)
    last = segment_paths(path)[-1]
    last.write_bytes(last.read_bytes()[: int(last.stat().st_size * rest)])
    with JournalReader(path) as reader:
        rows = [row for item in reader if isinstance(item, EventBatch) for row in described(item)]
    assert rows == left[: len(rows)]


def test_a_window_without_its_beginning_is_listed_as_incomplete(tmp_path: Path) -> None:
    """One that lies in deleted files is not listed. `explain` says that files are missing."""
    acts = [(0, False)] * 4 + [(0, True)] + [(1, False)] * 4 + [(1, True)] + [(2, False)] * 4 + [(2, True)]
    path = written(tmp_path, acts, 400)
    with JournalReader(path) as reader:
        assert [row.complete for row in reader.own_index().windows()] == [True, True, True]
        begins = {row.window: row.begin for row in reader.own_index().windows()}
    files = segment_paths(path)
    while True:
        files.pop(0).unlink()
        with JournalReader(path) as reader:
            listed = {row.window: row.complete for row in reader.own_index().windows()}
            first = reader.frames.position[1]
        if 0 not in listed:
            break
        assert listed[0] == (begins[0] >= first)
    assert listed == {number: begins[number] >= first for number in listed}
    assert listed[2] is True
    (rank,) = load(tmp_path).ranks
    assert rank.path == path
    assert rank.notes == (f"the beginning of journal is missing: its files before {files[0].name} were deleted",)
    assert not load(files[-1]).ranks[0].notes, "it was asked for alone"


def test_the_file_of_another_run_is_passed_over(tmp_path: Path) -> None:
    """By the writer, which takes the next number, and by readers."""
    other = written(tmp_path / "other", [(0, False), (0, True)], 1)
    for number in (1, 3):
        other.with_name("journal.1").rename(tmp_path / f"journal.{number}")
        other = written(tmp_path / f"other-{number}", [(0, False), (0, True)], 1)
    (tmp_path / "journal.4").write_bytes(b"something else")
    theirs = [(tmp_path / f"journal.{number}").read_bytes() for number in (1, 3, 4)]
    path = many(tmp_path)
    assert len(contents(path)[0]) == 40
    assert [(tmp_path / f"journal.{number}").read_bytes() for number in (1, 3, 4)] == theirs


def test_a_later_file_of_another_version_is_refused(tmp_path: Path) -> None:
    """If it is the last one, its events would be missing otherwise, and nothing would say so."""
    path = many(tmp_path)
    later = segment_paths(path)[-1]
    data = bytearray(later.read_bytes())
    data[8] = fmt.VERSION + 1
    data[16:20] = zlib.crc32(data[:16]).to_bytes(4, "little")
    later.write_bytes(data)
    with refused(FormatError, f"version {fmt.VERSION + 1}"):
        contents(path)


def test_where_no_file_can_be_made_the_last_one_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost, and it is logged."""
    (tmp_path / "run").mkdir()
    writer = JournalWriter(tmp_path / "run" / "journal", segment_bytes=100)
    writer.open(run_in(tmp_path))
    (tmp_path / "run").rename(tmp_path / "moved")
    with caplog.at_level(logging.WARNING, "stepscope"):
        for at in range(20):
            writer.write_batch(batch_with_arguments([f"n{at}"], [{}], start_ns=at + 1))
    writer.close()
    assert "goes on in a file larger than" in caplog.text
    assert segment_paths(tmp_path / "moved" / "journal") == [tmp_path / "moved" / "journal"]
    assert len(contents(tmp_path / "moved" / "journal")[0]) == 20


def test_a_reader_goes_on_in_the_next_file(tmp_path: Path) -> None:
    """While the journal grows."""
    writer = JournalWriter(tmp_path / "journal", segment_bytes=300)
    writer.open(run_in(tmp_path))
    found: list[str] = []
    with JournalReader(writer.path) as reader:
        for at in range(30):
            writer.write_batch(batch_with_arguments([f"n{at}"], [{}], start_ns=at + 1))
            found += [described(item)[0][2] for item in reader if isinstance(item, EventBatch)]
            assert len(found) == at + 1
        assert not reader.damage
    writer.close()
    assert found == [f"n{at}" for at in range(30)] and len(segment_paths(writer.path)) > 3


def test_an_old_file_is_followed_by_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is small."""
    monkeypatch.setattr(journal_writer, "SEGMENT_AGE_S", -1)
    path = write_journal(tmp_path / "journal", [batch_with_arguments(["x"], [{}])], segment_bytes=1 << 20)
    assert len(segment_paths(path)) > 1


def test_an_irregular_file_among_many_costs_itself_only(tmp_path: Path) -> None:
    """A FIFO, a directory, a link to nothing and an empty file in the places of early segments, which do not stay open."""
    path = many(tmp_path)
    files = segment_paths(path)
    assert len(files) > MAX_DESCRIPTORS + 8
    for place in files[2:6]:
        place.unlink()
    os.mkfifo(files[2])
    files[3].mkdir()
    files[4].symlink_to(tmp_path / "nothing")
    files[5].touch()
    with JournalReader(path) as reader:
        found = sum(len(item) for item in reader if isinstance(item, EventBatch))
        assert reader.damage.lost_frames and not reader.damage.header
    for place in (files[2], files[4], files[5]):
        place.unlink()
    files[3].rmdir()
    with JournalReader(path) as reader:
        assert found == sum(len(item) for item in reader if isinstance(item, EventBatch))
    assert 0 < found < 40


def test_few_descriptors_are_open(tmp_path: Path) -> None:
    """However many files a journal has."""
    path = many(tmp_path)
    assert len(segment_paths(path)) > MAX_DESCRIPTORS + 8
    with JournalReader(path) as reader:
        before = len(os.listdir("/proc/self/fd"))
        for _ in reader:
            assert len(os.listdir("/proc/self/fd")) <= before + MAX_DESCRIPTORS


@given(ACT_LISTS, SIZES)
def test_recovery_completes_the_last_file(
    tmp_path_factory: pytest.TempPathFactory, acts: Sequence[Act], segment_bytes: int
) -> None:
    """Closed files do not change; a copy is one file with the same content."""
    place = tmp_path_factory.mktemp("journal")
    writer = JournalWriter(place / "journal", segment_bytes=segment_bytes)
    writer.open(run_in(place))
    unfinished = write(writer, acts)
    writer.abandon()
    before = events_of(writer.path)
    files = {path: path.read_bytes() for path in segment_paths(writer.path)}
    with open(list(files)[-1], "ab") as file:
        file.write(b"torn")
    copied = recover(place, place / "copy" / "journal").journal
    assert segment_paths(copied) == [copied]
    assert recover(place).unfinished == len(unfinished)
    assert {path for path in files if path.read_bytes() != files[path]} <= {list(files)[-1]}
    assert segment_paths(writer.path) == list(files)
    for path in (writer.path, copied):
        events, windows, _ = contents(path)
        assert [row for row in events if row in before] == before
        assert len(windows) == len({index for index, *_ in acts})


def test_the_oldest_files_give_way_to_new_ones(tmp_path: Path) -> None:
    """All of them stay within the limit; every event is in a file or counted, in its window."""
    options = sc.Options(journal_max_bytes=1 << 16, journal_when_full="delete_oldest", signals=())
    with sc.trace(
        output_dir=tmp_path / "run", exporters=[], options=options, schedule=sc.schedule(wait=0, warmup=0, active=100)
    ) as profiler:
        for step in range(3_000):
            with sc.span("work", text=os.urandom(64).hex(), number=step):
                pass
            profiler.step()
    path = tmp_path / "run" / "journal"
    assert not path.exists()
    assert sum(file.stat().st_size for file in segment_paths(path)) <= 1 << 16
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    ledger = next(each.ledger for each in pipeline.exporters if each.name == "journal")
    events, windows, _ = contents(path)
    assert ledger.dropped["cap"] > 2_000 and ledger.offered == ledger.exported + ledger.dropped["cap"]
    assert len(events) == ledger.exported
    assert windows[-1].index == 29


@pytest.mark.parametrize(
    ("limit", "batch", "segment_bytes"), [(1 << 16, 20, 1 << 20), (1 << 16, 200, 1 << 20), (1 << 17, 20, 4096)]
)
def test_one_endless_window_keeps_its_last_events(tmp_path: Path, limit: int, batch: int, segment_bytes: int) -> None:
    """However large batches are compared with segments."""
    writer = JournalWriter(
        tmp_path / "journal", max_bytes=limit, segment_bytes=segment_bytes, when_full="delete_oldest"
    )
    writer.open(run_in(tmp_path))
    noise = random.Random(0)
    total = limit // 20 // batch * batch
    for first in range(0, total, batch):
        arguments = [{"at": at, "noise": noise.randbytes(16).hex()} for at in range(first, first + batch)]
        writer.write_batch(batch_with_arguments(["x"] * batch, arguments, start_ns=1000 * first + 1))
        assert sum(path.stat().st_size for path in segment_paths(writer.path)) <= limit
    writer.close()
    assert writer.dropped == 0 and writer.deleted_oldest == sum(writer.take_deleted_oldest().values()) > 0
    events, _, _ = contents(writer.path)
    assert len(events) == total - writer.deleted_oldest > total // 10
    assert f"'at': {total - 1}" in events[-1][4]


def test_segments_become_shorter_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the next write on, but never longer, nor shorter than the least; a journal in one file stays in one."""
    monkeypatch.setattr(journal_writer, "MIN_BYTES", 2000)
    for segment_bytes in (1 << 20, 0):
        (tmp_path / str(segment_bytes)).mkdir()
        writer = JournalWriter(tmp_path / str(segment_bytes) / "journal", segment_bytes=segment_bytes)
        writer.open(run_in(tmp_path))
        for number in range(60):
            if number in (20, 30):
                writer.limit_segments(1 if number == 20 else 1 << 30)
            writer.write_batch(batch_with_arguments(["x"] * 20, [{"at": at} for at in range(20)], window=number))
        writer.close()
        sizes = [path.stat().st_size for path in segment_paths(writer.path)]
        if segment_bytes:
            assert len(sizes) > 5 and sizes[0] > max(sizes[1:]) and min(sizes[1:-1]) >= 2000
        else:
            assert len(sizes) == 1


def test_sent_segments_are_deleted_at_the_limit(tmp_path: Path) -> None:
    """They count as nothing lost; a follower that has sent less keeps them, and events are left out until there is room."""
    writer = JournalWriter(tmp_path / "journal", max_bytes=1 << 16, segment_bytes=4000)
    writer.open(run_in(tmp_path))
    fast, slow = object(), object()
    for follower in (fast, slow):
        writer.follow(follower)

    def fill() -> None:
        for number in range(100):
            writer.write_batch(
                batch_with_arguments(["x"] * 50, [{"at": os.urandom(20).hex()} for _ in range(50)], window=number)
            )

    fill()
    dropped = writer.dropped
    assert dropped and (tmp_path / "journal").exists()
    writer.advance(fast, writer.end)
    fill()
    assert writer.dropped == dropped + 5000 and (tmp_path / "journal").exists()
    dropped = writer.dropped
    writer.advance(slow, writer.end)
    writer.write_batch(batch_with_arguments(["y"] * 50, [{"at": 1}] * 50, window=0))
    assert writer.dropped == dropped and not (tmp_path / "journal").exists()
    assert not writer.take_deleted_oldest() and writer.deleted_oldest
    writer.advance(fast, writer.end, delete=True)
    writer.advance(slow, writer.end, delete=True)
    writer.close()
    with JournalReader(tmp_path / "journal") as reader:
        rows = [row for item in reader if isinstance(item, EventBatch) for row in described(item)]
        assert reader.end is not None and len(rows) == reader.end.events and not reader.damage


def test_a_run_whose_first_file_was_deleted_keeps_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A later run in its directory takes another one; commands find both, and a file of it leads to all of it."""
    writer = JournalWriter(tmp_path / "journal", segment_bytes=1)
    writer.open(run_in(tmp_path))
    for at in range(40):
        writer.write_batch(batch_with_arguments([f"n{at}"], [{}], start_ns=at + 1))
    writer.abandon()
    path = writer.path
    path.unlink()
    second = written(tmp_path, [(0, False), (0, True)], 0)
    assert second == tmp_path / "journal-2"
    assert [found for found, _ in Journals.of(tmp_path).found] == [second, path]
    assert main(["convert", str(path), str(tmp_path / "out.json")]) == 0
    assert "39 events" in capsys.readouterr().err
    before = {each: each.read_bytes() for each in segment_paths(path)[:-1]}
    recover(segment_paths(path)[3], tmp_path / "copy")
    assert len(contents(tmp_path / "copy")[0]) == 39
    recover(segment_paths(path)[3])
    assert {each: each.read_bytes() for each in segment_paths(path)[:-1]} == before
    assert len(contents(path)[0]) == 39


def test_a_damaged_header_of_a_later_file_hides_nothing(tmp_path: Path) -> None:
    """It is damage of the header alone."""
    path = many(tmp_path)
    whole = events_of(path)
    for file in (segment_paths(path)[5], segment_paths(path)[-1]):
        intact = file.read_bytes()
        for at in (0, 9, 14, 22, 30):
            file.write_bytes(intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
            with JournalReader(path) as reader:
                assert [row for item in reader if isinstance(item, EventBatch) for row in described(item)] == whole
                assert reader.damage.header and not reader.damage.harm()
        file.write_bytes(intact)


@pytest.mark.parametrize(
    "setting", [{"when_full": "wait"}, {"segment_bytes": "64 MB"}, {"when_full": "delete_oldest", "segment_bytes": 0}]
)
def test_settings_that_make_no_sense(setting: dict[str, Any]) -> None:
    """They are refused."""
    with pytest.raises((ValueError, TypeError), match=next(iter(setting))):
        sc.exporters.JournalExporter(**setting)


def test_the_page_says_how_to_read_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reader that was written from docs/segment-format.md finds what `stepscope convert` does, in all files."""
    exporter = sc.exporters.JournalExporter(segment_bytes=1_000)
    settings: dict[str, Any] = {
        "output_dir": tmp_path / "run",
        "options": sc.Options(journal=False),
        "metadata": {"model": "m"},
    }
    with sc.trace(exporters=[exporter], **settings) as profiler:
        for step in range(400):
            with sc.span("outer", step_number=step, text="é" * (step % 9)), sc.span("inner"):
                sc.instant("now")
            profiler.step()
    assert len(segment_paths(exporter.path)) > 1
    assert main(["convert", str(exporter.path), str(tmp_path / "trace.json")]) == 0
    shown = [row for row in json.loads((tmp_path / "trace.json").read_text()) if row["ph"] == "X"]
    events, windows, metadata = segment_reader.read(exporter.path)
    spans = [event for event in events if event["kind"] == Kind.SPAN]

    def names(rows: Iterable[tuple[str, float]]) -> Counter[tuple[str, int]]:
        return Counter((name, round(duration)) for name, duration in rows)

    assert names((row["name"].partition("#")[0], row["dur"] * 1000) for row in shown) == names(
        (event["name"].partition("#")[0], event["dur"]) for event in spans
    )
    outer = [event for event in spans if event["name"] == "outer"]
    assert [dict((key, value) for key, _, value in event["arguments"])["text"].decode() for event in outer] == [
        "é" * (step % 9) for step in range(400)
    ]
    assert [window["index"] for window in windows] == [0]
    assert metadata["model"] == "m"


INTERRUPTED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/types.h>
static int opened = 1, read_from = 1;
int open64(const char *path, int flags, mode_t mode) {
    if (strstr(path, "journal.") && opened++ % 2) return errno = EINTR, -1;
    return ((int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, "open64"))(path, flags, mode);
}
ssize_t pread64(int file, void *to, size_t size, long at) {
    if (read_from++ % 2) return errno = EINTR, -1;
    return ((ssize_t (*)(int, void *, size_t, long))dlsym(RTLD_NEXT, "pread64"))(file, to, size, at);
}
"""
"""Each second call is interrupted, as by a signal while a program that is a file system answers."""


def test_heads_of_files_are_read_in_spite_of_signals(tmp_path: Path) -> None:
    """As Python's own calls, which go on after each."""
    require_compiler()
    (tmp_path / "interrupted.c").write_text(INTERRUPTED)
    library = tmp_path / "interrupted.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, tmp_path / "interrupted.c", "-ldl"], check=True)
    for number in (1, 2):
        (tmp_path / f"journal.{number}").write_bytes(bytes([number]) * 9)
    script = "from stepscope.runtime import _core; print(_core.file_heads(b'journal', [1, 2, 3], 2, 0))"
    done = python("-c", script, cwd=tmp_path, env={"LD_PRELOAD": str(library)}, server=None)
    assert done.stdout.strip() == r"[(9, b'\x01\x01'), (9, b'\x02\x02'), None]"
