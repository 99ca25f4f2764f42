"""Files in Perfetto's native format: their life, limits and faults."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepscope
from stepscope.exporters.base import EventBatch, Exporter
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.exporters.perfetto_file import PerfettoFile
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events.record import Flag
from stepscope.runtime.export.formats import exporter_for
from tests.support import pftrace
from tests.support.basics import require
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.viewers.scene import PID, START, Scene, make_run, make_window
from tests.unit.exporters.test_chrome_exporter import listing, many, write


def names(path: Path) -> list[str]:
    """Names of the spans of a file, all of which have ended."""
    slices = pftrace.load(path).slices()
    assert all(drawn.dur >= 0 for drawn in slices)
    return [drawn.name for drawn in slices]


def said(path: Path, name: str) -> dict[str, Any]:
    """Arguments of the only instant of this name."""
    (found,) = (event for event in pftrace.load(path).of(pftrace.INSTANT) if event.name == name)
    return found.args


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
    about = said(path, "run")
    assert (about["rank"], about["world_size"], about["host_name"]) == (1, 2, "machine")
    assert about["clock"] == {"monotonic_ns": START, "wall_ns": run.anchor.wall_ns, "error_ns": 100}
    assert said(path, "window 0")["ledger"]["sources"]["recorder"]["dropped"] == {"overflow": 2}
    end = said(path, "stepscope")
    assert end["metadata"] == {"lr": 0.1, "layers": [1, {"of": "x"}]}
    assert (end["dropped by size limit"], "ledger" in end) == (0, True)


async def test_it_is_readable_at_any_time(tmp_path: Path) -> None:
    """What was exported is in the file, plain or compressed, while it is written."""
    require("perfetto")
    for name in ("t.pftrace", "t.pftrace.gz"):
        exporter = PerfettoExporter(tmp_path / name)
        await exporter.open(make_run(tmp_path))
        for n in range(1, 4):
            await exporter.export(many(tmp_path, 5))
            assert len(names(tmp_path / name)) == 5 * n
        await exporter.aclose()


async def test_a_file_per_window(tmp_path: Path) -> None:
    """Each window's file stands alone, and goes when its window is discarded."""
    require("perfetto")
    exporter = PerfettoExporter(tmp_path / "w{window}.pftrace")
    await exporter.open(make_run(tmp_path))
    for window in (0, 1):
        await exporter.export(msgspec.structs.replace(many(tmp_path, 3), window=window))
        await exporter.close_window(make_window(window))
    assert names(tmp_path / "w1.pftrace") == ["n0", "n1", "n2"]
    assert said(tmp_path / "w1.pftrace", "stepscope")["window"] == 1
    await exporter.discard_window(0)
    await exporter.aclose()
    assert listing(tmp_path) == ["w1.pftrace"]


@pytest.mark.parametrize("name", ["t.pftrace", "t.pftrace.gz"])
async def test_rotation(tmp_path: Path, name: str) -> None:
    """No file exceeds the limit, each can be read alone, all together hold everything in order."""
    exporter = PerfettoExporter(tmp_path / name, max_bytes=70_000)
    await write(exporter, tmp_path, many(tmp_path, 16_000))
    files = [tmp_path / name for name in sorted(listing(tmp_path), key=lambda name: (len(name), name))]
    assert len(files) > 2
    assert files[1].name == name.replace("t.", "t.1.")
    assert all(path.stat().st_size <= 70_000 for path in files)
    assert sorted(name for path in files for name in names(path)) == sorted(f"n{n}" for n in range(16_000))
    assert exporter.dropped_cap == 0


async def test_stop_at_the_limit(tmp_path: Path) -> None:
    """A file that stops says so and counts exactly what is missing."""
    path = tmp_path / "t.pftrace"
    exporter = PerfettoExporter(path, max_bytes=70_000, on_full="stop")
    await write(exporter, tmp_path, many(tmp_path), many(tmp_path, 7))
    kept = names(path)
    assert kept == [f"n{n}" for n in range(len(kept))]
    assert exporter.dropped_cap == 5007 - len(kept) > 0
    assert said(path, "stopped: the file is full") == {"limit": 70_000}
    assert said(path, "stepscope")["dropped by size limit"] == exporter.dropped_cap
    assert said(path, "window 0")["steps"] == [7, 8, 9]
    assert path.stat().st_size <= 70_000


def clipped(directory: Path, count: int, text: str = "") -> EventBatch:
    """Spans that began with the window, in others that are not known yet."""
    scene = Scene(make_run(directory))
    for n in range(count):
        scene.span(f"c{n}", 0, count - n, parent=1, flags=Flag.CLIPPED, text=text)
    return scene.batch()


async def test_held_spans_count(tmp_path: Path) -> None:
    """Begins that are held are written at the window's end; where the limit leaves no room, they are counted."""
    path = tmp_path / "t.pftrace"
    await write(PerfettoExporter(path), tmp_path, clipped(tmp_path, 5))
    assert names(path) == [f"c{n}" for n in range(5)]
    exporter = PerfettoExporter(tmp_path / "full.pftrace", max_bytes=70_000)
    await write(exporter, tmp_path, clipped(tmp_path, 40, "x" * 4000))
    kept = names(tmp_path / "full.pftrace")
    assert exporter.dropped_cap == 40 - len(kept) > 0
    assert said(tmp_path / "full.pftrace", "stepscope")["dropped by size limit"] == exporter.dropped_cap


async def test_a_full_disk(small_disk: Path) -> None:
    """After room was made the file goes on: what was refused is missing whole, and names are known again."""
    for name in ("t.pftrace", "t.pftrace.gz"):
        path = small_disk / name
        exporter = PerfettoExporter(path)
        await exporter.open(make_run(small_disk))
        await exporter.export(many(small_disk, 100))
        await exporter.export(clipped(small_disk, 2))
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(os.urandom(4096))
        with refused(OutputError, "No space left", "t.pftrace"):
            await exporter.export(many(small_disk, 5000))
        if not name.endswith(".gz"):  # their ends take next to nothing, compressed
            with refused(OutputError, "No space left", "t.pftrace"):
                await exporter.export(clipped(small_disk, 3000))
        filler.unlink()
        await exporter.export(many(small_disk, 5000))
        await exporter.aclose()
        assert sorted(names(path)) == sorted([f"n{n}" for n in (*range(100), *range(5000))] + ["c0", "c1"])
        path.unlink()


async def test_cancelled_at_any_moment(tmp_path: Path) -> None:
    """A cancelled export is there whole or not at all, and what follows it is right."""
    outcomes: set[int] = set()
    for turns in range(12):
        path = tmp_path / f"{turns}.pftrace"
        exporter = PerfettoExporter(path)
        await exporter.open(make_run(tmp_path))
        task = asyncio.ensure_future(exporter.export(clipped(tmp_path, 3)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await exporter.export(many(tmp_path, 4))
        await exporter.close_window(make_window())
        await exporter.aclose()
        found = names(path)
        assert [name for name in found if name[0] == "n"] == ["n0", "n1", "n2", "n3"]
        outcomes.add(len(found) - 4)
    assert outcomes <= {0, 3}


async def test_cancelled_close(tmp_path: Path) -> None:
    """However far a cancelled `aclose` came, the file is complete, and nothing is there twice."""
    for turns in range(1, 12):
        path = tmp_path / f"{turns}.pftrace"
        exporter = PerfettoExporter(path)
        await exporter.open(make_run(tmp_path))
        await exporter.export(clipped(tmp_path, 3))
        task = asyncio.ensure_future(exporter.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await exporter.aclose()
        assert names(path) == ["c0", "c1", "c2"]
        assert said(path, "stepscope")["run"] == "scene"


async def test_life_and_misuse(tmp_path: Path) -> None:
    """It is an exporter; before `open` and after `aclose` it takes nothing; wrong arguments and places are named."""
    exporter = PerfettoExporter(tmp_path / "t.pftrace")
    assert isinstance(exporter, Exporter)
    with refused(ClosedError, "t.pftrace"):
        await exporter.export(many(tmp_path, 1))
    with refused(ValueError, "max_bytes", "65536", "100"):
        PerfettoExporter("t.pftrace", max_bytes=100)
    with refused(ValueError, "on_full", "rotate", "stop", "wrap"):
        PerfettoExporter("t.pftrace", on_full="wrap")  # type: ignore[arg-type]
    (tmp_path / "link.pftrace").symlink_to(tmp_path / "elsewhere")
    with refused(OutputError, "link.pftrace"):
        await PerfettoExporter(tmp_path / "link.pftrace").open(make_run(tmp_path))
    assert not (tmp_path / "elsewhere").exists()


async def test_larger_than_a_file(tmp_path: Path) -> None:
    """An event that no file can hold is counted, and what follows is written."""
    scene = Scene(make_run(tmp_path))
    scene.span("large", 0, 1, **{key * 1000: "\x01" * 4096 for key in "abc"}, **{f"k{n}": "x" * 1000 for n in range(9)})
    scene.span("small", 1, 1)
    whole = PerfettoExporter(tmp_path / "whole.pftrace", max_bytes=65_536)
    await write(whole, tmp_path, scene.batch())
    assert names(tmp_path / "whole.pftrace") == ["large", "small"]


def test_formats_know_it(tmp_path: Path) -> None:
    """Endings and the format's name lead to it."""
    for name in ("t.pftrace", "t.pftrace.gz", "t.perfetto-trace"):
        assert isinstance(exporter_for(tmp_path / name), PerfettoExporter)
    assert isinstance(exporter_for(tmp_path / "t", "perfetto"), PerfettoExporter)


PROGRAM = """
import os, signal, sys, time
import stepscope
exporter = stepscope.PerfettoExporter(sys.argv[1] + "/trace.pftrace")
profiler = stepscope.trace(exporters=[exporter], output_dir=sys.argv[1])
profiler.start()
for _ in range(50):
    with stepscope.span("work", key="value"):
        pass
    profiler.step()
profiler.flush()
with stepscope.span("open at the end"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process(tmp_path: Path) -> None:
    """What was flushed is in the trace of a process that is killed; `recover` brings the rest, and `convert` has it."""
    killed = run_to_end([sys.executable, "-c", PROGRAM, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL
    trace = pftrace.load(tmp_path / "trace.pftrace")
    assert sum(drawn.name == "work" for drawn in trace.slices()) == 50
    command = [sys.executable, "-m", "stepscope"]
    told = run_to_end([*command, "recover", str(tmp_path)], check=True, server="command").stdout
    assert "written anew" in told and "left as it is" not in told
    assert sum(drawn.name == "open at the end" for drawn in pftrace.load(tmp_path / "trace.pftrace").slices()) == 1
    made = tmp_path / "all.pftrace"
    run_to_end([*command, "convert", str(tmp_path), str(made)], check=True, server="command")
    slices = {drawn.name: drawn for drawn in pftrace.load(made).slices()}
    assert slices["open at the end"].args["had not ended"] is True
    assert slices["work"].args["key"] == "value"


async def test_a_real_run(tmp_path: Path) -> None:
    """Spans of tasks, steps inside of what was open before, counters and flows of a program that runs."""
    path = tmp_path / "t.pftrace"

    async def work(number: int) -> None:
        with stepscope.span("task work", number=number):
            await asyncio.sleep(0.001)

    async with stepscope.trace(exporters=[PerfettoExporter(path)], output_dir=tmp_path) as profiler:
        with stepscope.span("epoch"):
            for _ in range(3):
                with stepscope.span("forward"):
                    stepscope.flow("link", 1, "start")
                await asyncio.gather(*(asyncio.create_task(work(n), name=f"w{n}") for n in range(3)))
                stepscope.counter("loss", 0.5)
                profiler.step()
    trace = pftrace.load(path)
    found = [drawn.name for drawn in trace.slices()]
    assert (found.count("task work"), found.count("forward"), found.count("epoch")) == (9, 3, 1)
    assert all(drawn.dur >= 0 for drawn in trace.slices())
    assert len(trace.of(pftrace.COUNTER)) >= 3
    rows = {trace.tracks[drawn.track].name for drawn in trace.slices() if drawn.name == "task work"}
    assert rows == {"w0", "w1", "w2"}
    assert PerfettoFile.__doc__
