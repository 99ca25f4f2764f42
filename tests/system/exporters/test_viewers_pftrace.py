"""Chrome traces and native ones as Perfetto's trace processor and Catapult understand them: everything there, exact, nothing refused."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepscope as sc
from stepscope.cli.main import main
from stepscope.control import WindowRequest
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.files.chrome_file import Dialect, base_of
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Flag, Kind
from stepscope.runtime.export.run import Run
from tests.support.viewers import catapult, perfetto
from tests.support.viewers.perfetto import PROBLEMS, SLICES
from tests.support.viewers.scene import NAMES, PID, START, Scene, everything, make_run, make_window

CHROME_COUNTERS = """
select t.name, c.ts, c.value, p.pid
from counter c join process_counter_track t on c.track_id = t.id join process p using (upid) order by c.ts"""

CHROME_FLOWS = """
select a.name as source, b.name as target from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id"""

ARGUMENTS = """
select s.name, a.key, a.int_value, a.real_value, a.string_value from slice s join args a using (arg_set_id)"""


OVERLAPS = "select value from stats where name = 'slice_drop_overlapping_complete_event'"
STEPS = "select name from slice where name like 'ProfilerStep#%' order by ts"


def chrome_batch(directory: Path) -> EventBatch:
    """Every kind of event as one batch."""
    scene = Scene(make_run(directory))
    everything(scene)
    return scene.batch()


def write_chrome(path: Path, batch: EventBatch, dialect: Dialect = "kineto") -> None:
    """Writes a trace of one window."""

    async def life() -> None:
        exporter = ChromeTraceExporter(path, dialect=dialect)
        await exporter.open(make_run(path.parent))
        await exporter.export(batch)
        await exporter.close_window(make_window())
        await exporter.aclose()

    asyncio.run(life())


@pytest.mark.parametrize("dialect", ["kineto", "tensorboard"])
def test_all_events_are_in_chrome_traces(tmp_path: Path, dialect: Dialect) -> None:
    """Counts of slices, counters, flows and arguments are exact, times to the nanosecond, without any problem."""
    batch = chrome_batch(tmp_path)
    path = tmp_path / "trace.json"
    write_chrome(path, batch, dialect)
    problems, slices, counters, flows, arguments = perfetto.query(
        path, PROBLEMS, SLICES, CHROME_COUNTERS, CHROME_FLOWS, ARGUMENTS
    )
    assert problems == []
    base = base_of(make_run(tmp_path))
    complete = batch.events[(batch.events["kind"] == Kind.SPAN) & (batch.events["flags"] & Flag.ASYNC == 0)]
    wanted = sorted((int(ts) - base, int(dur)) for ts, dur in zip(complete["ts"], complete["dur"], strict=True))
    on_threads = [row for row in slices if row["tid"] is not None and (row["dur"] or row["name"] == "touching next")]
    assert sorted((row["ts"], row["dur"]) for row in on_threads) == wanted
    by_name = {row["name"]: row for row in slices}
    # It decodes escaped quotes and shows other escapes as they are written.
    in_file = re.findall(r'"ph":"X","cat":"cpu_op","name":"((?:[^"\\\\]|\\\\.)*)"', path.read_text())
    assert len(set(in_file)) > len(NAMES)
    assert {name.replace(r"\"", '"') or "[No name]" for name in in_file} <= set(by_name)
    assert (by_name["touching parent"]["depth"], by_name["touching child"]["depth"]) == (0, 1)
    assert by_name["touching next"]["depth"] == 0
    assert [row["dur"] for row in slices if row["name"] == "request"] == [30_000] * 3
    assert (by_name["download"]["dur"], by_name["dropped"]["dur"], by_name["paused"]["dur"]) == (
        60_000,
        100_000,
        100_000,
    )
    assert {"checkpoint", "batch size", "loss is NaN", "loss is Infinity", "window 0", "stepscope", "run"} <= set(
        by_name
    )
    assert by_name["in a task"]["thread"] == "task 3"
    assert {(row["process"], row["pid"]) for row in slices if row["name"] == "sgemm_128x64"} == {
        ("device 0", 0),
        ("device 1", 1),
    }
    assert counters == [
        {"name": "loss value", "ts": START - base + 5_100_000 + n * 1000, "value": 1.5 * n, "pid": PID}
        for n in range(3)
    ]
    assert flows == [{"source": "aten::addmm", "target": "AddmmBackward0"}] * 3
    found = {(row["name"], row["key"]): row for row in arguments}
    for n, name in enumerate(NAMES[:1] + NAMES[2:3]):
        assert found[name, "args.text"]["string_value"] == name
        assert found[name, "args.number"]["int_value"] == (0, 2)[n]
        assert found[name, "args.ratio"]["real_value"] == (0, 2)[n] + 0.5
    assert found["dropped", "args.count"]["int_value"] == 17
    lost = "args.ledger.sources.recorder.dropped.overflow"
    assert found["window 0", lost]["int_value"] == 2


def test_catapult(tmp_path: Path) -> None:
    """Catapult imports the same file without a warning, in both forms of times."""
    for dialect in ("kineto", "tensorboard"):
        path = tmp_path / f"{dialect}.json"
        write_chrome(path, chrome_batch(tmp_path), dialect)
        model = catapult.load(path)
        assert model["warnings"] == []
        assert [PID, "scene"] in model["processes"]
        threads = {(pid, tid): name for pid, tid, name, _ in model["threads"]}
        assert threads[PID, PID] == "MainThread"
        assert threads[0, 7] == threads[1, 7] == "stream 7"
        assert ["loss", 3] in [[name.removesuffix(".value"), count] for name, count in model["counters"]]
        assert model["flows"] == 3


def train_epochs(profiler: sc.Profiler, output_dir: Path) -> Path:
    """Runs two epochs of five steps, and returns the trace."""
    with profiler:
        for _ in range(2):
            with sc.span("epoch"):
                for _ in range(5):
                    with sc.span("train"):
                        pass
                    profiler.step()
    profiler.raise_errors()
    return output_dir / "trace.json"


def test_every_step_of_a_loop_with_epochs(tmp_path: Path) -> None:
    """A window's last step, which begins in one epoch and ends in the next, is drawn as well: of a schedule and of an armed window,
    in a trace, a converted journal and TensorBoard's file."""
    scheduled, armed = tmp_path / "scheduled", tmp_path / "armed"
    profiler = sc.trace(
        schedule=sc.schedule(wait=1, warmup=1, active=4, repeat=1),
        output_dir=scheduled,
        exporters=[ChromeTraceExporter(scheduled / "trace.json"), sc.tensorboard_trace_handler(scheduled / "tb")],
    )
    paths = [train_epochs(profiler, scheduled), *(scheduled / "tb").iterdir(), scheduled / "converted.json"]
    assert main(["convert", str(scheduled), str(paths[-1])]) == 0
    exporter = ChromeTraceExporter(armed / "trace.json")
    profiler = sc.trace(output_dir=armed, exporters=[exporter], control=sc.Control())
    profiler.arm(WindowRequest(start_step=2, steps=4))
    paths.append(train_epochs(profiler, armed))
    for path in paths:
        problems, overlaps, steps = perfetto.query(path, PROBLEMS, OVERLAPS, STEPS)
        assert problems == [] and overlaps == [{"value": 0}]
        assert [row["name"] for row in steps] == [f"ProfilerStep#{number}" for number in range(2, 6)]


COUNTERS = """
select t.name, c.ts, c.value, p.pid
from counter c join process_counter_track t on c.track_id = t.id join process p using (upid) order by p.pid, c.ts"""

FLOWS = """
select a.name as source, b.name as target, a.ts from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id
order by a.ts"""

PLACES = "select distinct t.name, p.name as parent from slice s join track t on s.track_id = t.id left join track p on t.parent_id = p.id"

CLOCKS = "select clock_name, clock_value from clock_snapshot where ts > 0 order by clock_name"


async def write(path: Path, run: Run, *batches: EventBatch, close: bool = True) -> bytes:
    """Writes a trace of one window; what the file holds before its end, if that is left out."""
    exporter = PerfettoExporter(path)
    await exporter.open(run)
    for batch in batches:
        await exporter.export(batch)
    if close:
        await exporter.close_window(make_window())
    left = path.read_bytes()  # noqa: ASYNC240
    await exporter.aclose()
    return left


def up_to_nul(name: str) -> str:
    """A name as its queries answer: up to a NUL."""
    return name.partition("\0")[0]


def spans_of(batch: EventBatch) -> list[tuple[int, int]]:
    """Times of the spans that nest."""
    chosen = batch.events[(batch.events["kind"] == Kind.SPAN) & (batch.events["flags"] & Flag.ASYNC == 0)]
    return sorted((int(ts), int(dur)) for ts, dur in zip(chosen["ts"], chosen["dur"], strict=True))


@pytest.mark.parametrize("name", ["trace.pftrace", "trace.pftrace.gz"])
def test_all_events_are_in_native_traces(tmp_path: Path, name: str) -> None:
    """Slices, counters, flows and arguments are all there, times to the nanosecond, without any problem."""
    run = make_run(tmp_path)
    scene = Scene(run)
    everything(scene)
    batch = scene.batch()
    path = tmp_path / name
    asyncio.run(write(path, run, batch))
    problems, slices, counters, flows, arguments, places, clocks = perfetto.query(
        path, PROBLEMS, SLICES, COUNTERS, FLOWS, ARGUMENTS, PLACES, CLOCKS
    )
    assert problems == []
    points = {"run", "window 0", "stepscope", "[memory]", "checkpoint", "batch size", "loss is NaN", "loss is Infinity"}
    apart = {"request", "download", "dropped", "paused"}
    nested = [row for row in slices if row["name"] not in points | apart]
    assert sorted((row["ts"], row["dur"]) for row in nested) == spans_of(batch)
    by_name = {row["name"]: row for row in slices}
    assert points | apart <= set(by_name)
    assert {
        up_to_nul(strings.text(int(name))) for name in batch.events["name"][batch.events["kind"] == Kind.SPAN]
    } <= set(by_name)
    assert [by_name[f"touching {which}"]["depth"] for which in ("parent", "child", "next")] == [0, 1, 0]
    assert [row["dur"] for row in slices if row["name"] == "request"] == [30_000] * 3
    assert [by_name[name]["dur"] for name in ("download", "dropped", "paused")] == [60_000, 100_000, 100_000]
    assert (by_name["forward"]["thread"], by_name["forward"]["process"]) == ("MainThread", "scene")
    assert {(row["name"], row["parent"]) for row in places} >= {
        ("task 3", None), ("stream 7", "device 0"), ("stream 7", "device 1"), ("stream 20", "device 0"),
    }  # fmt: skip
    assert counters == [
        {"name": "loss", "ts": START + 5_100_000 + n * 1000, "value": 1.5 * n, "pid": PID} for n in range(3)
    ]
    assert [(flow["source"], flow["target"]) for flow in flows] == [("aten::addmm", "AddmmBackward0")] * 3
    found = {(row["name"], row["key"]): row for row in arguments}
    for n, text in enumerate(NAMES[:1] + NAMES[2:3]):
        assert found[text, "debug.text"]["string_value"] == text
        assert found[text, "debug.number"]["int_value"] == (0, 2)[n]
        assert found[text, "debug.ratio"]["real_value"] == (0, 2)[n] + 0.5
    assert found["aten::linear", "debug.Input Dims[1][0]"]["int_value"] == 32
    assert found["dropped", "debug.count"]["int_value"] == 17
    assert found["window 0", "debug.ledger.sources.recorder.dropped.overflow"]["int_value"] == 2
    assert clocks == [
        {"clock_name": "MONOTONIC", "clock_value": START},
        {"clock_name": "REALTIME", "clock_value": run.anchor.wall_ns},
    ]


def test_files_of_several_processes(tmp_path: Path) -> None:
    """Files of two ranks, one behind the other, are one trace: rows, counters, flows and tasks of both, apart."""
    joined = b""
    wanted: dict[int, list[tuple[int, int]]] = {}
    for rank in range(2):
        run = msgspec.structs.replace(make_run(tmp_path, rank), name=f"rank {rank}")
        scene = Scene(run)
        everything(scene)
        batch = scene.batch()
        wanted[run.pid] = spans_of(batch)
        path = tmp_path / f"{rank}.pftrace"
        asyncio.run(write(path, run, batch))
        joined += path.read_bytes()
    path = tmp_path / "both.pftrace"
    path.write_bytes(joined)
    problems, slices, counters, flows, processes = perfetto.query(
        path, PROBLEMS, SLICES, COUNTERS, FLOWS, "select pid, name from process where name is not null order by pid"
    )
    assert problems == []
    assert processes == [{"pid": PID, "name": "rank 0"}, {"pid": PID + 1, "name": "rank 1"}]
    for pid in wanted:
        rows: list[dict[str, Any]] = [row for row in slices if row["pid"] == pid and row["dur"]]
        devices = {"sgemm_128x64", "Memcpy HtoD (Pinned -> Device)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}
        on_threads = [(row["ts"], row["dur"]) for row in rows if row["name"] not in devices]
        assert set(on_threads) <= set(wanted[pid])
        assert len(on_threads) > 50
    assert [counter["pid"] for counter in counters] == [PID] * 3 + [PID + 1] * 3
    assert [(flow["source"], flow["target"]) for flow in flows] == [("aten::addmm", "AddmmBackward0")] * 6
