"""Exporters of Chrome traces and of Perfetto's files alike: limits, full disks, life and misuse."""

from __future__ import annotations

import gzip
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from stepscope.exporters.base import EventBatch, Exporter
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events.record import Flag
from tests.support import pftrace
from tests.support.basics import require
from tests.support.messages import refused
from tests.support.viewers.scene import Scene, make_run, make_window
from tests.unit.exporters.test_chrome_exporter import listing, many, named, read, spans, write

EACH = ("t.json", "t.json.gz", "t.pftrace", "t.pftrace.gz")
PLAIN = ("t.json", "t.pftrace")


def made(path: Path, **settings: Any) -> Any:
    """An exporter of the format that the file's name says."""
    if "pftrace" in path.name:
        return PerfettoExporter(path, **settings)
    form: Any = "object" if path.name.startswith("object") else "array"
    return ChromeTraceExporter(path, **{"form": form} | settings)


def chrome(path: Path, data: bytes | None = None) -> list[dict[str, Any]]:
    """The events of a Chrome trace, whose rows have names; of its bytes, if they are given."""
    found: Any = read(path) if data is None else json.loads(data)
    events: list[dict[str, Any]] = found["traceEvents"] if "traceEvents" in found else found
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
    """Spans that began with the window, in others that are not known yet: Perfetto's begins are held."""
    scene = Scene(make_run(directory))
    for n in range(count):
        scene.span(f"c{n}", 0, count - n, parent=1, flags=Flag.CLIPPED, text=text)
    return scene.batch()


@pytest.mark.parametrize("name", EACH)
async def test_it_is_readable_at_any_time(tmp_path: Path, name: str) -> None:
    """An exported batch is in the file at once, as if the process had been killed there."""
    require_reader(name)
    exporter = made(tmp_path / name)
    await exporter.open(make_run(tmp_path))
    for total, count in ((10, 10), (11, 1), (311, 300)):
        await exporter.export(many(tmp_path, count))
        assert len(so_far(tmp_path / name)) == total
    await exporter.aclose()
    assert len(names(tmp_path / name)) == 311


@pytest.mark.parametrize("name", [*EACH, "object.json", "object.json.gz"])
async def test_rotation(tmp_path: Path, name: str) -> None:
    """No file exceeds the limit, each is a whole trace that names its rows, and together they hold everything in order."""
    exporter = made(tmp_path / name, max_bytes=70_000)
    await write(exporter, tmp_path, many(tmp_path, 16_000))
    files = [tmp_path / found for found in sorted(listing(tmp_path), key=lambda found: (len(found), found))]
    assert len(files) > 2 and files[1].name == name.replace(".", ".1.", 1)
    assert all(path.stat().st_size <= 70_000 for path in files)
    assert [span for path in files for span in names(path)] == [f"n{n}" for n in range(16_000)]
    assert exporter.dropped_cap == 0


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("limit", [1 << 16, 1 << 20])
async def test_large_arguments_keep_the_limit(tmp_path: Path, name: str, limit: int) -> None:
    """Files are no larger where events have arguments of kilobytes, and the metadata at the end are larger than the room for them."""
    scene = Scene(make_run(tmp_path))
    for n in range(800):
        scene.span(f"n{n}", n, 1, text="x" * 4000)
    exporter = made(tmp_path / name, max_bytes=limit)
    await write(exporter, tmp_path, scene.batch(), metadata={"large": "y" * (1 << 17)})
    sizes = [os.stat(tmp_path / found).st_size for found in listing(tmp_path)]
    assert len(sizes) > 2 and max(sizes) <= limit


@pytest.mark.parametrize("name", PLAIN)
async def test_stop_at_the_limit(tmp_path: Path, name: str) -> None:
    """A file that stops says so and counts exactly what is missing."""
    path = tmp_path / name
    exporter = made(path, max_bytes=70_000, on_full="stop")
    await write(exporter, tmp_path, many(tmp_path), many(tmp_path, 7))
    kept = names(path)
    assert kept == [f"n{n}" for n in range(len(kept))]
    assert exporter.dropped_cap == 5007 - len(kept) > 0
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


@pytest.mark.parametrize("name", EACH)
async def test_a_full_disk(small_disk: Path, name: str) -> None:
    """After room was made the file goes on: what was refused is missing whole, and names are known again."""
    path = small_disk / name
    exporter = made(path)
    await exporter.open(make_run(small_disk))
    await exporter.export(many(small_disk, 100))
    await exporter.export(clipped(small_disk, 2))
    filler = fill(small_disk)
    with refused(OutputError, "No space left", name):
        await exporter.export(many(small_disk, 5000))
    if name == "t.pftrace":  # the ends of what is held take next to nothing, compressed
        with refused(OutputError, "No space left", name):
            await exporter.export(clipped(small_disk, 3000))
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
    exporter = made(tmp_path / name)
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
        made(Path(name), **arguments)
