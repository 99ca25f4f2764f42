"""The exporters for TensorBoard, seen by its own reader, by the PyTorch profiler plugin and by its page."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.exporters.base import Exporter
from stepscope.exporters.files.scalars import DURATION, LONGEST, PHASE_GROUP, StepScalarExporter
from stepscope.exporters.tensorboard import TensorBoardExporter, tensorboard_trace_handler
from stepscope.runtime.errors import ClosedError, ExporterError, OutputError
from tests.support.basics import require
from tests.support.messages import refused
from tests.support.viewers.scene import NAMES, PID, Scene, device_work, everything, make_run, make_window, training
from tests.support.viewers.tensorboard import average_step, load_run, open_tensorboard, operators, switch_view

NAME = f"machine_{PID}"


def listing(directory: Path) -> list[str]:
    """Names of the files in a directory."""
    return sorted(entry.name for entry in directory.iterdir())


async def write(directory: Path, fill: Callable[[Scene], object], exporter: Exporter | None = None) -> None:
    """A run of one window."""
    exporter = exporter or tensorboard_trace_handler(directory)
    run = make_run(directory)
    scene = Scene(run)
    fill(scene)
    await exporter.open(run)
    await exporter.export(scene.batch())
    await exporter.close_window(make_window())
    await exporter.aclose()


async def write_rank(directory: Path, rank: int, windows: int) -> None:
    """A run of some windows on a rank of two with a device each."""
    exporter = tensorboard_trace_handler(directory, use_gzip=rank == 1)
    run = make_run(directory, rank)
    scene = Scene(run)
    await exporter.open(run)
    for window in range(windows):
        start = 10_000 * window
        training(scene, start, (7 + 10 * window, 8 + 10 * window, 9 + 10 * window))
        device_work(scene, rank, start)
        await exporter.export(scene.batch(window))
        await exporter.close_window(make_window(window))
    await exporter.aclose()


def nodes(profile: Any) -> Counter[str]:
    """How often each name is in the plugin's operator trees."""
    found: Counter[str] = Counter()

    def walk(node: Any) -> None:
        found[node.name] += 1
        for child in node.children:
            walk(child)

    for root in profile.tid2tree.values():
        walk(root)
    return found


def test_plugin_loads_a_run(tmp_path: Path) -> None:
    """Steps, data loading, operators, memory and modules are what they were, also across forward and backward."""
    asyncio.run(write(tmp_path, training))
    run = load_run(tmp_path)
    assert [view.display_name for view in run.views] == ["Overview", "Operator", "Trace", "Memory", "Module"]
    assert run.workers == [NAME]
    (profile,) = run.profiles.values()
    assert [row[0] for row in profile.overview["steps"]["rows"]] == ["7", "8", "9"]
    assert average_step(profile) == {"DataLoader": 100, "CPU Exec": 600, "Other": 300}
    assert "high time cost on input data loading" in profile.overview["recommendations"]
    table = operators(profile)
    assert (table["aten::linear"]["calls"], table["aten::linear"]["host_total_duration"]) == (3, 300)
    assert table["forward"]["host_self_duration"] == 600
    memory = profile.memory_snapshot.get_memory_statistics(profile.tid2tree)["CPU"]
    assert memory["aten::addmm"][:3] == [12288, 12288, 3]
    (module,) = profile.module_stats
    assert (module.name, module.occurences, module.host_duration) == ("Linear_0", 3, 900)
    assert nodes(profile)["nn.Module: Linear_0.backward"] == 3


def test_plugin_loads_two_ranks_and_windows(tmp_path: Path) -> None:
    """Windows are spans, ranks are workers; kernels belong to their operators, and the ranks are compared."""
    for rank in (0, 1):
        asyncio.run(write_rank(tmp_path, rank, windows=2))
    run = load_run(tmp_path)
    views = ["Overview", "Operator", "Kernel", "Trace", "Distributed", "Memory", "Module"]
    assert [view.display_name for view in run.views] == views
    assert run.workers == ["All", f"machine_{PID}", f"machine_{PID + 1}"]
    assert run.get_spans(f"machine_{PID + 1}") == ["1", "2"]
    profile = run.get_profile(f"machine_{PID + 1}", "2")
    assert [row[0] for row in profile.overview["steps"]["rows"]] == ["17", "18", "19"]
    step = average_step(profile)
    assert (step["Kernel"], step["Memcpy"], step["Communication"], step["DataLoader"]) == (150, 40, 220, 100)
    spliced = profile.append_gpu_metrics(gzip.decompress(Path(profile.trace_file_path).read_bytes()))
    assert {"C", "X"} <= {event["ph"] for event in json.loads(gzip.decompress(spliced))["traceEvents"]}
    table = operators(profile)
    assert (table["aten::mm"]["device_total_duration"], table["nccl:all_reduce"]["device_total_duration"]) == (570, 600)
    waiting = run.get_profile("All", "1").steps_to_wait["data"]["all"]
    assert waiting == {f"machine_{PID}": [220, 0], f"machine_{PID + 1}": [220, 0]}


def test_plugin_loads_everything(tmp_path: Path) -> None:
    """No kind of event and no name keeps the plugin from loading the rest."""
    asyncio.run(write(tmp_path, everything))
    profile = load_run(tmp_path).get_profile(NAME, "1")
    assert [row[0] for row in profile.overview["steps"]["rows"]] == ["7", "8", "9"]
    found = nodes(profile)
    assert {name.encode("utf-8", "backslashreplace").decode()[:1024] for name in NAMES} <= set(found)
    assert found["touching child"] == found["touching next"] == 1


def test_page_renders(tmp_path: Path) -> None:
    """The page shows steps, operators, memory and the trace in a real browser."""
    asyncio.run(write(tmp_path / "run", training))
    with open_tensorboard(tmp_path) as page:
        page.get_by_text("Step Time Breakdown").wait_for()
        page.get_by_text("high time cost on input data loading").wait_for()
        charts = page.evaluate("window.drawnCharts")
        breakdown = next(chart for chart in charts if chart["kind"] == "SteppedAreaChart" and chart["rows"])
        assert breakdown["labels"] == ["Step", "DataLoader", "CPU Exec", "Other"]
        assert breakdown["rows"] == [[step, 100, 600, 300] for step in ("7", "8", "9")]
        switch_view(page, "Overview", "Operator")
        page.get_by_role("cell", name="aten::linear").first.wait_for()
        switch_view(page, "Operator", "Memory")
        page.get_by_text("Allocation Time (ms)").first.wait_for()
        page.get_by_role("cell", name="aten::addmm").first.wait_for()
        switch_view(page, "Memory", "Trace")
        page.frame_locator("iframe").get_by_text("MainThread").first.wait_for()


def test_page_finds_windows_that_are_runs(tmp_path: Path) -> None:
    """With a directory per window each is a run of its own."""
    exporter = TensorBoardExporter(tmp_path / "exp", layout="runs")
    asyncio.run(write(tmp_path, training, exporter))
    assert listing(tmp_path / "exp") == ["window_0"]
    (profile,) = load_run(tmp_path / "exp" / "window_0").profiles.values()
    assert average_step(profile)["DataLoader"] == 100


async def test_file_appears_complete(tmp_path: Path) -> None:
    """Until its window is closed a file has a name that the plugin does not match; windows may overlap."""
    pattern = require("torch_tb_profiler.consts").WORKER_PATTERN
    exporter = tensorboard_trace_handler(tmp_path, "worker", use_gzip=True)
    run = make_run(tmp_path)
    scene = Scene(run)
    await exporter.open(run)
    assert listing(tmp_path) == []
    for window in (0, 1, 0):
        scene.span(f"in {window}", 0, 1)
        await exporter.export(scene.batch(window))
    assert [pattern.match(name) for name in listing(tmp_path)] == [None, None]
    await exporter.close_window(make_window(1))
    (done,) = filter(pattern.match, listing(tmp_path))
    match = pattern.match(done)
    assert (match.group(1), len(match.group(2))) == ("worker", 20)
    events = json.loads(gzip.decompress((tmp_path / done).read_bytes()))["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["in 1"]
    assert events[-1]["args"]["ledger"]["sources"]["recorder"]["produced"] == 100
    await exporter.aclose()
    assert all(map(pattern.match, listing(tmp_path)))
    assert listing(tmp_path)[1] == done


async def test_empty_window_leaves_nothing(tmp_path: Path) -> None:
    """A window without events makes no file, for the plugin could not show it."""
    exporter = tensorboard_trace_handler(tmp_path)
    await exporter.open(make_run(tmp_path))
    await exporter.close_window(make_window(0, ()))
    await exporter.aclose()
    assert listing(tmp_path) == []


async def test_misuse(tmp_path: Path) -> None:
    """Names that would choose a path, unusable directories and calls out of order are named."""
    for name in ("a/b", "", "..\\x"):
        with refused(ValueError, "worker_name"):
            tensorboard_trace_handler(tmp_path, name)
    with refused(ValueError, "layout", "spans", "runs", "files"):
        TensorBoardExporter(tmp_path, layout="files")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    exporter = tensorboard_trace_handler(tmp_path / "file" / "below")
    with refused(OutputError, "below"):
        await exporter.open(make_run(tmp_path))
    with refused(ClosedError, "below"):
        await exporter.export(Scene(make_run(tmp_path)).batch())
    assert isinstance(exporter, Exporter)


STEPS = 5


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """The points of each chart, as TensorBoard has them: step and value."""
    reader: Any = require("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(directory)).Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def train(output_dir: Path, exporter: StepScalarExporter, rank: int | None = None) -> None:
    """Steps that wait for data."""
    with sc.trace(output_dir=output_dir, exporters=[exporter], rank=rank) as profiler:
        for _ in range(STEPS):
            with sc.span("batch", category="data"):
                sum(range(10_000))
            profiler.step()


def test_tensorboard_reads_them(tmp_path: Path) -> None:
    """A point has the means over the steps that have ended, and the longest of them."""
    train(tmp_path / "run", StepScalarExporter(tmp_path / "tb"))
    facts = sc.load(tmp_path / "run").ranks[0].steps
    durations = (facts["end"] - facts["begin"])[:STEPS] / 1e6
    found = scalars(tmp_path / "tb")
    assert found.keys() == {DURATION, LONGEST, PHASE_GROUP + "data"}
    (last, mean), (_, longest), (_, data) = (found[tag][-1] for tag in (DURATION, LONGEST, PHASE_GROUP + "data"))
    assert last == STEPS - 1 and len(found[DURATION]) == 1
    assert mean == pytest.approx(durations.mean(), rel=1e-6) and longest == pytest.approx(durations.max(), rel=1e-6)
    assert 0 < data <= mean


def test_each_rank_has_a_directory(tmp_path: Path) -> None:
    """So that TensorBoard shows them as runs."""
    train(tmp_path / "run", StepScalarExporter(tmp_path / "tb"), rank=3)
    assert scalars(tmp_path / "tb" / "rank3")


def test_a_cut_file_has_the_points_before(tmp_path: Path) -> None:
    """As a killed process leaves it."""
    exporter = StepScalarExporter(tmp_path / "tb")
    train(tmp_path / "run", exporter)
    (file,) = (tmp_path / "tb").iterdir()
    content = file.read_bytes()
    file.write_bytes(content + content[-200:][:50])
    assert len(scalars(tmp_path / "tb")[DURATION]) == 1


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """The run goes on; the error names the place."""
    (tmp_path / "tb").write_text("a file")
    with sc.trace(output_dir=tmp_path / "run", exporters=[StepScalarExporter(tmp_path / "tb")]) as profiler:
        profiler.step()
    with pytest.raises(ExceptionGroup) as raised:
        profiler.raise_errors()
    assert raised.group_contains(ExporterError, match="create files in the directory")


def test_a_directory_that_is_no_path() -> None:
    """It is refused by the call that gets it."""
    with pytest.raises(TypeError, match="dir_name"):
        StepScalarExporter(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
