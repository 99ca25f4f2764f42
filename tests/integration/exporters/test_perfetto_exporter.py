"""Files in Perfetto's native format: their life, limits and faults."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.runtime.errors import OutputError
from stepscope.runtime.export.formats import exporter_for
from tests.support import pftrace
from tests.support.messages import refused
from tests.support.pftrace import arguments_of, names
from tests.support.viewers.scene import PID, START, make_run, make_window
from tests.unit.exporters.test_chrome_exporter import many, write
from tests.unit.exporters.test_trace_exporters import clipped


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
    """Begins that are held are written at the window's end, also where they exceed the limit."""
    path = tmp_path / "t.pftrace"
    await write(PerfettoExporter(path), tmp_path, clipped(tmp_path, 5))
    assert names(path) == [f"c{n}" for n in range(5)]
    exporter = PerfettoExporter(tmp_path / "full.pftrace", max_bytes=70_000)
    await write(exporter, tmp_path, clipped(tmp_path, 40, "x" * 4000))
    assert len(names(tmp_path / "full.pftrace")) == 40 and exporter.dropped_cap == 0


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
