"""Exporters of Chrome traces and of Perfetto's files alike, and what Perfetto's alone have: limits, full disks, life and misuse."""

from __future__ import annotations

import gzip
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.exporters.base import EventBatch, Exporter
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events.record import Flag
from stepscope.runtime.export.formats import exporter_for
from tests.support import pftrace
from tests.support.basics import require
from tests.support.chrome_traces import events_of
from tests.support.messages import refused
from tests.support.viewers.scene import PID, START, Scene, make_run, make_window
from tests.unit.exporters.test_chrome_exporter import listing, many, named, spans, write

EACH = ("t.json", "t.json.gz", "t.pftrace", "t.pftrace.gz")
PLAIN = ("t.json", "t.pftrace")


def exporter_of(path: Path, **settings: Any) -> Any:
    """An exporter of the format that the file's name says."""
    if "pftrace" in path.name:
        return PerfettoExporter(path, **settings)
    form: Any = "object" if "object" in path.name else "array"
    values: dict[str, Any] = {"form": form, "closed": "closed" in path.name} | settings
    return ChromeTraceExporter(path, **values)


def chrome(path: Path, data: bytes | None = None) -> list[dict[str, Any]]:
    """The events of a Chrome trace, whose rows have names; of its bytes, if they are passed."""
    events: list[dict[str, Any]] = events_of(path) if data is None else json.loads(data)
    assert any(event["name"] == "thread_name" for event in events)
    return events


def names(path: Path) -> list[str]:
    """Names of the spans of a whole file, in their order."""
    return pftrace.names(path) if "pftrace" in path.name else spans(chrome(path))


def arguments_of(path: Path, name: str) -> dict[str, Any]:
    """Arguments of the only event of a name."""
    return pftrace.arguments_of(path, name) if "pftrace" in path.name else named(chrome(path), name)


def require_reader(name: str) -> None:
    """Skips the test where a file of this name cannot be read."""
    if "pftrace" in name:
        require("perfetto")


def so_far(path: Path) -> list[str]:
    """Names of the spans of a file that is still written: an array is merely not closed, and ends with a whole line."""
    if "pftrace" in path.name:
        return pftrace.names(path)
    text = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    assert text.endswith(b",\n")
    return spans(chrome(path, text[:-2] + b"]"))


def clipped(directory: Path, count: int, text: str = "") -> EventBatch:
    """Spans that began with the window, in others that are not known yet: Perfetto's begins wait."""
    scene = Scene(make_run(directory))
    for n in range(count):
        scene.span(f"c{n}", 0, count - n, parent=1, flags=Flag.CLIPPED, text=text)
    return scene.batch()


@pytest.mark.parametrize("name", EACH)
async def test_it_is_readable_at_any_time(tmp_path: Path, name: str) -> None:
    """An exported batch is in the file at once, as if the process had been killed there."""
    require_reader(name)
    exporter = exporter_of(tmp_path / name)
    await exporter.open(make_run(tmp_path))
    for total, count in ((10, 10), (11, 1), (311, 300)):
        await exporter.export(many(tmp_path, count))
        assert len(so_far(tmp_path / name)) == total
    await exporter.aclose()
    assert len(names(tmp_path / name)) == 311


@pytest.mark.parametrize("name", [*EACH, "object.json", "object.json.gz", "closed.json", "closed-object.json"])
async def test_rotation(tmp_path: Path, name: str) -> None:
    """No file exceeds the limit, each is a whole trace that names its rows, and together they hold everything in order."""
    exporter = exporter_of(tmp_path / name, max_bytes=70_000)
    await write(exporter, tmp_path, many(tmp_path, 16_000))
    files = [tmp_path / found for found in sorted(listing(tmp_path), key=lambda found: (len(found), found))]
    assert len(files) > 2 and files[1].name == name.replace(".", ".1.", 1)
    assert all(path.stat().st_size <= 70_000 for path in files)
    assert [span for path in files for span in names(path)] == [f"n{n}" for n in range(16_000)]
    assert exporter.dropped_cap == 0


@pytest.mark.parametrize("name", PLAIN)
async def test_large_arguments_keep_the_limit(tmp_path: Path, name: str) -> None:
    """Files are no larger where events have arguments of kilobytes, and the metadata at the end are larger than the room for them."""
    scene = Scene(make_run(tmp_path))
    for n in range(800):
        scene.span(f"n{n}", n, 1, text="x" * 4000)
    limit = 1 << 16
    exporter = exporter_of(tmp_path / name, max_bytes=limit)
    await write(exporter, tmp_path, scene.batch(), metadata={"large": "y" * (1 << 17)})
    sizes = [os.stat(tmp_path / found).st_size for found in listing(tmp_path)]
    assert len(sizes) > 2 and max(sizes) <= limit


@pytest.mark.parametrize("name", PLAIN)
async def test_stop_at_the_limit(tmp_path: Path, name: str) -> None:
    """A file that stops says so and counts exactly what is missing."""
    path = tmp_path / name
    exporter = exporter_of(path, max_bytes=70_000, on_full="stop")
    await write(exporter, tmp_path, many(tmp_path), many(tmp_path, 7))
    recorded = names(path)
    assert recorded == [f"n{n}" for n in range(len(recorded))]
    assert exporter.dropped_cap == 5007 - len(recorded) > 0
    assert arguments_of(path, "stopped: the file is full") == {"limit": 70_000}
    assert arguments_of(path, "stepscope")["dropped by size limit"] == exporter.dropped_cap
    assert arguments_of(path, "window 0")["steps"] == [7, 8, 9]
    assert path.stat().st_size <= 70_000


def fill(disk: Path) -> Path:
    """Fills a disk by a file."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(os.urandom(4096))
    return filler


@pytest.mark.parametrize("name", [*EACH, "closed.json", "closed-object.json"])
async def test_a_full_disk(small_disk: Path, name: str) -> None:
    """After room was made the file goes on: what was refused is missing whole, and names are known again."""
    path = small_disk / name
    exporter = exporter_of(path)
    await exporter.open(make_run(small_disk))
    await exporter.export(many(small_disk, 100))
    await exporter.export(clipped(small_disk, 2))
    filler = fill(small_disk)
    with refused(OutputError, "No space left", name):
        await exporter.export(many(small_disk, 5000))
    if name == "t.pftrace":  # the ends of waiting begins take next to nothing, compressed
        with refused(OutputError, "No space left", name):
            await exporter.export(clipped(small_disk, 3000))
    if "closed" in name:
        assert len(names(path)) >= 102, "the file is whole at any time"
    filler.unlink()
    await exporter.close_window(make_window())
    await exporter.export(many(small_disk, 5000))
    await exporter.aclose()
    assert sorted(names(path)) == sorted([f"n{n}" for n in (*range(100), *range(5000))] + ["c0", "c1"])


async def test_a_group_that_is_refused(small_disk: Path) -> None:
    """Its events count as lost, those of the next one are in the file, with the names of their rows."""
    exporter = ChromeTraceExporter(small_disk / "t.json")
    await exporter.open(make_run(small_disk))
    filler = fill(small_disk)
    for count in (200, 20):
        exporter.begin_group()
        await exporter.export(many(small_disk, count))
        with refused(OutputError, "No space left", "t.json") if count == 200 else nullcontext():
            await exporter.end_group()
        assert sum(lost.events for lost in exporter.take_lost()) == (200 if count == 200 else 0)
        filler.unlink(missing_ok=True)
    await exporter.aclose()
    assert names(small_disk / "t.json") == [f"n{n}" for n in range(20)]
    rows = [event["args"]["name"] for event in chrome(small_disk / "t.json") if event["name"] == "thread_name"]
    assert rows == ["run and windows", "MainThread"]


@pytest.mark.parametrize("name", PLAIN)
async def test_life(tmp_path: Path, name: str) -> None:
    """It is an exporter; before `open` and after `aclose` it takes nothing, and closing twice is nothing."""
    exporter = exporter_of(tmp_path / name)
    assert isinstance(exporter, Exporter)
    with refused(ClosedError, name):
        await exporter.export(many(tmp_path, 1))
    await write(exporter, tmp_path)
    await exporter.aclose()
    with pytest.raises(ClosedError):
        await exporter.export(many(tmp_path, 1))


@pytest.mark.parametrize(
    ("name", "arguments", "facts"),
    [
        ("t.json", {"dialect": "chrome"}, ["dialect", "kineto", "tensorboard", "mxnet", "chrome"]),
        ("t.json", {"form": "list"}, ["form", "array", "object", "list"]),
        *((name, {"on_full": "wrap"}, ["on_full", "rotate", "stop", "wrap"]) for name in PLAIN),
        *((name, {"max_bytes": 100}, ["max_bytes", "65536", "100"]) for name in PLAIN),
    ],
)
def test_misuse_is_named(name: str, arguments: dict[str, Any], facts: list[str]) -> None:
    """A wrong argument is named."""
    with refused(ValueError, *facts):
        exporter_of(Path(name), **arguments)


@pytest.mark.parametrize("name", ["trace.pftrace", "trace.pftrace.gz"])
async def test_a_file(tmp_path: Path, name: str) -> None:
    """The file has the events, the run, its clock, its windows and its accounts."""
    run = msgspec.structs.replace(make_run(tmp_path, rank=1), metadata=lambda: {"lr": 0.1, "layers": [1, {"of": "x"}]})
    path = tmp_path / "made" / name
    exporter = PerfettoExporter(path)
    await exporter.open(run)
    await exporter.export(many(tmp_path, 10))
    await exporter.close_window(make_window())
    await exporter.aclose()
    assert names(path) == [f"n{n}" for n in range(10)]
    trace = pftrace.load(path)
    assert trace.anchor == {1: run.anchor.wall_ns, 3: START}
    (process,) = (track.process for track in trace.tracks.values() if track.process.pid == PID + 1)
    assert (process.process_name, process.process_labels[0]) == ("scene", "rank 1 on machine")
    about = arguments_of(path, "run")
    assert (about["rank"], about["world_size"], about["host_name"]) == (1, 2, "machine")
    assert about["clock"] == {"monotonic_ns": START, "wall_ns": run.anchor.wall_ns, "error_ns": 100}
    assert arguments_of(path, "window 0")["ledger"]["sources"]["recorder"]["dropped"] == {"overflow": 2}
    end = arguments_of(path, "stepscope")
    assert end["metadata"] == {"lr": 0.1, "layers": [1, {"of": "x"}]}
    assert (end["dropped by size limit"], "ledger" in end) == (0, True)


async def test_held_spans_count(tmp_path: Path) -> None:
    """Waiting begins are written at the window's end, also where they exceed the limit."""
    path = tmp_path / "t.pftrace"
    await write(PerfettoExporter(path), tmp_path, clipped(tmp_path, 5))
    assert names(path) == [f"c{n}" for n in range(5)]
    exporter = PerfettoExporter(tmp_path / "full.pftrace", max_bytes=70_000)
    await write(exporter, tmp_path, clipped(tmp_path, 40, "x" * 4000))
    assert len(names(tmp_path / "full.pftrace")) == 40 and exporter.dropped_cap == 0


async def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Nothing is written where it leads."""
    (tmp_path / "link.pftrace").symlink_to(tmp_path / "elsewhere")
    with refused(OutputError, "link.pftrace"):
        await PerfettoExporter(tmp_path / "link.pftrace").open(make_run(tmp_path))
    assert not (tmp_path / "elsewhere").exists()


def test_formats_know_it(tmp_path: Path) -> None:
    """Endings and the format's name lead to it."""
    for name in ("t.pftrace", "t.pftrace.gz", "t.perfetto-trace"):
        assert isinstance(exporter_for(tmp_path / name), PerfettoExporter)
    assert isinstance(exporter_for(tmp_path / "t", "perfetto"), PerfettoExporter)
