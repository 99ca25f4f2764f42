"""Chrome traces as Perfetto's trace processor and Catapult understand them: everything there, exact, nothing refused."""

from __future__ import annotations

import asyncio
import gzip
import re
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.cli.main import main
from stepscope.control import WindowRequest
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.files.chrome_file import Dialect, base_of
from stepscope.runtime.events.record import EventBatch, Flag, Kind
from tests.support.viewers import catapult, perfetto
from tests.support.viewers.perfetto import PROBLEMS, SLICES
from tests.support.viewers.scene import NAMES, PID, START, Scene, everything, make_run, make_window

COUNTERS = """
select t.name, c.ts, c.value, p.pid
from counter c join process_counter_track t on c.track_id = t.id join process p using (upid) order by c.ts"""

FLOWS = """
select a.name as source, b.name as target from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id"""

ARGUMENTS = """
select s.name, a.key, a.int_value, a.real_value, a.string_value from slice s join args a using (arg_set_id)"""


OVERLAPS = "select value from stats where name = 'slice_drop_overlapping_complete_event'"
STEPS = "select name from slice where name like 'ProfilerStep#%' order by ts"


def made(directory: Path) -> EventBatch:
    """Every kind of event as one batch."""
    scene = Scene(make_run(directory))
    everything(scene)
    return scene.batch()


def write(path: Path, batch: EventBatch, dialect: Dialect = "kineto") -> None:
    """Writes a trace of one window."""

    async def life() -> None:
        exporter = ChromeTraceExporter(path, dialect=dialect)
        await exporter.open(make_run(path.parent))
        await exporter.export(batch)
        await exporter.close_window(make_window())
        await exporter.aclose()

    asyncio.run(life())


@pytest.mark.parametrize("dialect", ["kineto", "tensorboard"])
def test_everything_is_there(tmp_path: Path, dialect: Dialect) -> None:
    """Counts of slices, counters, flows and arguments are exact, times to the nanosecond, without any problem."""
    batch = made(tmp_path)
    path = tmp_path / "trace.json"
    write(path, batch, dialect)
    problems, slices, counters, flows, arguments = perfetto.query(path, PROBLEMS, SLICES, COUNTERS, FLOWS, ARGUMENTS)
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


def test_files_that_were_cut(tmp_path: Path) -> None:
    """An array, plain or compressed, loads wherever it was cut, but for the event that was cut."""
    batch = made(tmp_path)
    for name in ("cut.json", "cut.json.gz"):
        path = tmp_path / name

        async def leave(path: Path = path) -> bytes:
            exporter = ChromeTraceExporter(path)
            await exporter.open(make_run(tmp_path))
            await exporter.export(batch)
            left = path.read_bytes()  # noqa: ASYNC240
            await exporter.aclose()
            return left

        left = asyncio.run(leave())
        path.write_bytes(left if name.endswith(".gz") else left[: left.rindex(b'"name":"in a task"')])
        problems, slices = perfetto.query(path, PROBLEMS, SLICES)
        assert problems == []
        names = [row["name"] for row in slices]
        assert names.count("aten::linear") == 3
        assert ("in a task" in names) == name.endswith(".gz")


def test_catapult(tmp_path: Path) -> None:
    """Catapult imports the same file without a warning, in both forms of times."""
    for dialect in ("kineto", "tensorboard"):
        path = tmp_path / f"{dialect}.json"
        write(path, made(tmp_path), dialect)
        model = catapult.load(path)
        assert model["warnings"] == []
        assert [PID, "scene"] in model["processes"]
        threads = {(pid, tid): name for pid, tid, name, _ in model["threads"]}
        assert threads[PID, PID] == "MainThread"
        assert threads[0, 7] == threads[1, 7] == "stream 7"
        assert ["loss", 3] in [[name.removesuffix(".value"), count] for name, count in model["counters"]]
        assert model["flows"] == 3


def test_gzip_of_a_whole_trace(tmp_path: Path) -> None:
    """The compressed file holds the same bytes."""
    batch = made(tmp_path)
    write(tmp_path / "a.json", batch)
    write(tmp_path / "a.json.gz", batch)
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()


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
