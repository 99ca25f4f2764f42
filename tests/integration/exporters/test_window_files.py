"""Trace files: what one of a window shows lies in that window, and one that is made of a recording has its name when it is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.cli.main import main
from stepscope.exporters.files.output import whole_file
from stepscope.runtime.errors import INCOMPLETE, OutputError
from stepscope.runtime.export.formats import staged
from stepscope.runtime.windows.window import Window
from tests.support import pftrace
from tests.support.basics import require
from tests.support.chrome_traces import events_of
from tests.support.messages import check_messages, refused

NAME = "Lauf 日本 é"


class Windows:
    """Keeps the windows of a run."""

    def __init__(self) -> None:
        self.found: list[Window] = []

    def __call__(self, window: Window) -> None:
        self.found.append(window)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Window]]]:
    """Two windows, long after the run's begin and far apart, through every exporter of trace files."""
    directory = tmp_path_factory.mktemp("windows")
    windows = Windows()
    names = ("t.json", "t-{window}.json", "t-{window}.json.gz", "t.pftrace", "t-{window}.pftrace", "o-{window}.json")
    exporters: list[sc.exporters.Exporter] = [
        sc.PerfettoExporter(directory / name)
        if "pftrace" in name
        else sc.ChromeTraceExporter(directory / name, form="object" if name.startswith("o") else "array")
        for name in names
    ]
    exporters.append(sc.tensorboard_trace_handler(directory / "tb"))
    cycle = sc.schedule(wait=200, warmup=0, active=2, repeat=2)
    with sc.trace(
        name=NAME, schedule=cycle, exporters=exporters, output_dir=directory / "run", on_trace_ready=windows
    ) as profiler:
        for _ in range(404):
            with sc.span("work ü"):
                sum(range(1000))
            profiler.step()
    yield directory, windows.found


@pytest.mark.parametrize("name", ["t-{}.json", "t-{}.json.gz", "o-{}.json", "tb"])
def test_a_chrome_file_of_one_window_has_its_bounds(recorded: tuple[Path, list[Window]], name: str) -> None:
    """Nothing is earlier than the window's begin or later than its end; rows and names have no time at all."""
    directory, windows = recorded
    files = sorted((directory / "tb").iterdir()) if name == "tb" else [directory / name.format(n) for n in (0, 1)]
    assert len(files) == len(windows) == 2
    for path, window in zip(files, windows, strict=True):
        events = events_of(path)
        times = [(event["ts"], event["ts"] + event.get("dur", 0)) for event in events if "ts" in event]
        first, last = min(begin for begin, _ in times), max(end for _, end in times)
        assert abs((last - first) * 1000 - (window.end_ns - window.start_ns)) < 10
        assert {event["ph"] for event in events if "ts" not in event} == {"M"}


def test_a_file_of_the_run_begins_with_its_first_event(recorded: tuple[Path, list[Window]]) -> None:
    """Earlier steps, which are not recorded, do not shift it."""
    directory, windows = recorded
    times = [event["ts"] for event in events_of(directory / "t.json") if "ts" in event]
    assert abs((max(times) - min(times)) * 1000 - (windows[1].end_ns - windows[0].start_ns)) < 10
    stamps = [each.ts for each in pftrace.load(directory / "t.pftrace").sorted()]
    assert (min(stamps), max(stamps)) == (windows[0].start_ns, windows[1].end_ns)


def test_a_native_file_of_one_window_has_its_bounds(recorded: tuple[Path, list[Window]]) -> None:
    """Its clock snapshot included."""
    directory, windows = recorded
    for number, window in enumerate(windows):
        stamps = [event.ts for event in pftrace.load(directory / f"t-{number}.pftrace").sorted()]
        assert (min(stamps), max(stamps)) == (window.start_ns, window.end_ns)


FORMATS = ["trace.json.gz", "trace.kineto.json", "trace.pftrace", "trace.parquet"]


def record(directory: Path, steps: int = 30) -> None:
    """A journal that makes larger files than a small disk takes."""
    with sc.trace(output_dir=directory, name="demo") as profiler:
        for step in range(steps):
            for number in range(2000):
                with sc.span("work", text=f"{step * 7919 * number:x}"):
                    pass
            profiler.step()


def leave(disk: Path, room: int) -> None:
    """Fills a file system but for so many bytes."""
    about = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(about.f_bavail * about.f_frsize - room))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run whose traces are larger than what a small disk has room for."""
    directory = tmp_path_factory.mktemp("recorded") / "run"
    record(directory)
    return directory


@pytest.mark.parametrize(("command", "name"), [*(("convert", name) for name in FORMATS), ("merge", "trace.json")])
def test_a_full_disk_leaves_nothing(
    run: Path, small_disk: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a broken file nor a shorter one; what had the name before is there still."""
    if name.endswith("parquet"):
        require("pyarrow")
    target = small_disk / name
    target.write_text("from before")
    leave(small_disk, 65_536)
    arguments = [str(run), *(["--out"] if command == "merge" else []), str(target)]
    assert main([command, *arguments]) == 1
    check_messages(capsys.readouterr().err, "No space left on device")
    assert sorted(path.name for path in small_disk.iterdir()) == sorted(["ballast", name])
    assert target.read_text() == "from before"


def test_outputs_that_are_no_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link is not replaced and not written through, and the message says what it is."""
    record(tmp_path / "run", 1)
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "elsewhere.json")
    assert main(["convert", str(tmp_path / "run"), str(link)]) == 1
    check_messages(capsys.readouterr().err, "link")
    assert link.is_symlink() and not (tmp_path / "elsewhere.json").exists()
    (tmp_path / "directory.json").mkdir()
    with refused(OutputError, "directory.json"), staged(tmp_path / "directory.json"):
        pass


def test_a_window_is_exported_whole(tmp_path: Path) -> None:
    """`Window.export` leaves one file, and nothing of the place where it was made."""
    windows: list[sc.Window] = []
    with sc.trace(output_dir=tmp_path / "run", on_trace_ready=windows.append) as profiler:
        with sc.span("x"):
            pass
        profiler.step()
        assert profiler.flush()
    (tmp_path / "out").mkdir()
    windows[0].export(tmp_path / "out" / "window.json")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["window.json"]
    assert json.loads((tmp_path / "out" / "window.json").read_text())


def test_small_files(tmp_path: Path) -> None:
    """One that could not be written keeps what was there."""
    path = tmp_path / "table.csv"
    path.write_text("before")
    with pytest.raises(RuntimeError), whole_file(path) as place:
        place.write_text("half")
        raise RuntimeError
    assert path.read_text() == "before" and len(list(tmp_path.iterdir())) == 1
    with whole_file(path) as place:
        place.write_text("after")
    assert path.read_text() == "after" and len(list(tmp_path.iterdir())) == 1


def test_a_parquet_file_that_cannot_be_completed_counts_as_dropped(tmp_path: Path, small_disk: Path) -> None:
    """All of its events: nothing of it can be read. The report says so, and no part stays."""
    require("pyarrow")
    leave(small_disk, 8192)
    path = small_disk / "live.parquet"
    with sc.trace(output_dir=tmp_path / "run", exporters=[sc.exporters.ParquetExporter(path)]) as profiler:
        for number in range(9000):
            with sc.span("work", text=f"{number * 7919:x}"):
                pass
        profiler.step()
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    output = next(one for one in pipeline.exporters if one.name.startswith("parquet"))
    assert output.ledger.exported == 0
    assert output.ledger.dropped == {"error": output.ledger.offered} and output.ledger.offered >= 9000
    report = str(profiler.report())
    assert f"{output.ledger.offered:,} at parquet:{path} (error)" in report and "No space left" in report
    assert [one.name for one in small_disk.iterdir()] == ["ballast"]


def test_converted_files_have_the_ledger_of_the_run(tmp_path: Path) -> None:
    """As the journal has it."""
    record(tmp_path / "run", 1)
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "trace.json")]) == 0
    last = json.loads((tmp_path / "trace.json").read_text())[-1]
    assert last["name"] == "stepscope" and last["args"]["ledger"]["sources"]["recorder"]["accepted"] >= 2000


def test_an_empty_journal_is_reported_as_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It converts, with a word."""
    (tmp_path / "journal").write_bytes(b"")
    assert main(["convert", str(tmp_path / "journal"), str(tmp_path / "trace.json")]) == 0
    check_messages(capsys.readouterr().err, tmp_path / "journal")


def test_merge_names_its_output_and_unreadable_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal replaces no other: its new name is printed. A rank that cannot be read is missing, also by the exit code."""
    record(tmp_path / "job" / "rank0", 1)
    (tmp_path / "job" / "rank1").mkdir()
    (tmp_path / "job" / "rank1" / "journal").write_bytes(b"no journal" * 100)
    existing = tmp_path / "out.journal"
    existing.write_bytes(b"taken")
    assert main(["merge", str(tmp_path / "job"), "--out", str(existing)]) == INCOMPLETE
    output = capsys.readouterr()
    assert f"written to {tmp_path / 'out-2.journal'}" in output.out + output.err
    assert (tmp_path / "out-2.journal").exists() and existing.read_bytes() == b"taken"
    assert "the result is not whole: 1 recording could not be read" in output.err and "rank1" in output.err
    unread = str(tmp_path / "job" / "rank1" / "journal")
    assert f"not merged: {unread}" in output.out and f"not read: {unread}" in output.err
    assert main(["merge", str(tmp_path / "job"), "--out", str(tmp_path / "merged.json"), "--json"]) == INCOMPLETE
    report = json.loads(capsys.readouterr().out)
    assert [journal["path"] for journal in report["unreadable"]] == [unread]
    assert unread in report["unreadable"][0]["reason"] and not report["notes"]
    names = {
        event["args"]["name"]
        for event in json.loads((tmp_path / "merged.json").read_text())
        if event["name"] == "process_name"
    }
    assert any(name.endswith(": demo") for name in names) and not any(name.endswith(": process") for name in names)


def test_merge_names_an_unreadable_journal_of_any_name(tmp_path: Path) -> None:
    """A name that is not UTF-8 is in the report's file, escaped."""
    record(tmp_path / "job" / "rank0", 1)
    odd = tmp_path / "job" / os.fsdecode(b"rank\xff")
    odd.mkdir()
    (odd / "journal").write_bytes(b"no journal" * 100)
    report = tmp_path / "report.json"
    arguments = ["merge", str(tmp_path / "job"), "--out", str(tmp_path / "merged.json"), "--report", str(report)]
    assert main(arguments) == INCOMPLETE
    (journal,) = json.loads(report.read_text())["unreadable"]
    assert journal["path"].endswith(r"rank\udcff/journal")
