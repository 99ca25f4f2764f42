"""Files that the replacement of MindSpore's profiler writes for a window: tables, timeline, memory, stacks, and answers about operators."""

from __future__ import annotations

import json
import logging
import mmap
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.page.content import content_of
from stepscope.analysis.reading.recording import load
from stepscope.analysis.tables.rank_summary import RankSummary
from stepscope.backends.counters.process_memory import COUNTER
from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.compat.mindspore.output_layout import RAW
from stepscope.mindspore import Profiler, ProfilerActivity, ProfilerLevel, schedule
from stepscope.runtime._core import span
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.windows.router import RECORDER
from tests.support import mindspore_output as output
from tests.support.basics import require
from tests.support.messages import refused


@pytest.mark.checklist("C20")
def test_pretty(tmp_path: Path) -> None:
    """The same events, over several lines each."""
    profiler = output.recorded(tmp_path, data_simplification=False)
    profiler.analyse()
    profiler.analyse(pretty=True)
    (directory,) = profiler.directories
    assert output.events(directory, f"{PRODUCTS}-2") == output.events(directory)
    lines = [
        len((directory / each / "trace_view.json").read_text().splitlines()) for each in (PRODUCTS, f"{PRODUCTS}-2")
    ]
    assert lines[1] > 5 * lines[0]


@pytest.mark.checklist("C22")
def test_op_analyse(tmp_path: Path) -> None:
    """By kind of operator: JSON text as MindSpore's, on every device, and the same as data."""
    profiler = output.recorded(tmp_path)
    answer = json.loads(profiler.op_analyse("MatMul"))
    (row,) = answer["MatMul"]
    assert list(row) == ["op_side", "input_shape", "op_occurrences", "op_total_time(us)", "op_avg_time(us)"]
    assert (row["op_side"], row["op_occurrences"], answer["device_id"]) == ("cpu", 6, "0")
    assert row["op_total_time(us)"] == pytest.approx(6 * row["op_avg_time(us)"])
    assert set(json.loads(profiler.op_analyse(["MatMul", "Add"]))) == {"MatMul", "Add", "device_id"}
    profiler.analyse()
    assert json.loads(profiler.op_analyse("MatMul")) == answer
    rows = profiler.operators("MatMul")
    assert {(each.name, each.subgraph, each.count) for each in rows} == {
        ("Default/network/MatMul-op1", "Default", 3),
        ("Gradients/Default/MatMul-op3", "Gradients", 3),
    }
    assert sum(each.total_ns for each in rows) / 1000 == pytest.approx(row["op_total_time(us)"])


@pytest.mark.checklist("C22")
def test_op_analyse_refuses_wrong_arguments(tmp_path: Path) -> None:
    """Types are checked, unknown operators are named with the nearest, and other devices have none."""
    profiler = output.recorded(tmp_path, data_simplification=False)
    for wrong in (3, None, [1], []):
        with refused(TypeError, "op_name"):
            profiler.op_analyse(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "device_id", "'0'"):
        profiler.op_analyse("MatMul", "0")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with refused(RuntimeError, "MatMull", "'MatMul'"):
        profiler.op_analyse("MatMull")
    assert json.loads(profiler.op_analyse("MatMul", device_id=3)) == {"MatMul": [], "device_id": "3"}
    assert [row.count for row in profiler.operators("Add", steps=[0, 2])] == [2]
    profiler.analyse()
    assert [row.count for row in profiler.operators("Add", steps=[1])] == [1]


@pytest.mark.checklist("C22")
def test_operators_of_steps_need_raw_data(tmp_path: Path) -> None:
    """Once these are deleted, a message says what to do."""
    profiler = output.recorded(tmp_path)
    profiler.analyse()
    with refused(FileNotFoundError, "data_simplification=False"):
        profiler.operators("Add", steps=[1])


@pytest.mark.checklist("D11", "D14")
def test_tables(tmp_path: Path) -> None:
    """The tables have MindSpore's columns, and numbers that add up; so has the summary of the timeline. Nothing is written of
    what was not asked for."""
    directory = output.analysed(tmp_path, steps=4)
    detail = output.rows(directory, "cpu_op_detail_info_0.csv")
    assert {row["full_op_name"]: (row["op_type"], row["op_name"], row["op_occurrences"]) for row in detail} == {
        "Default/network/MatMul-op1": ("MatMul", "MatMul-op1", "4"),
        "Default/network/Add-op2": ("Add", "Add-op2", "4"),
        "Gradients/Default/MatMul-op3": ("MatMul", "MatMul-op3", "4"),
        "AllReduce-op4": ("AllReduce", "AllReduce-op4", "4"),
    }
    assert sum(float(row["total_proportion"]) for row in detail) == pytest.approx(1, abs=1e-4)
    kinds = {row["op_type"]: row for row in output.rows(directory, "cpu_op_type_info_0.csv")}
    assert kinds["MatMul"]["type_occurrences"] == "8"
    assert kinds["MatMul"]["execution_frequency(per-step)"] == "2"
    for row in output.rows(directory, "step_trace_time.csv"):
        times = {name: float(value) for name, value in row.items()}
        assert times["Stage"] == pytest.approx(
            times["Computing"] + times["Communication(Not Overlapped)"] + times["Free"], abs=0.01
        )
        assert times["Communication"] > 0
        assert times["Overlapped"] == 0
    found = json.loads((directory / PRODUCTS / "cpu_timeline_summary_0.json").read_text())
    total = found.pop("total_time")
    assert total == pytest.approx(sum(float(row["op_total_time(ms)"]) for row in detail), abs=1e-5)
    assert found == {"num_of_streams": 1, "num_of_ops": 4, "op_exe_times": 16, "max_scope_name_num": 2}
    for pattern in ("minddata*", "dataset.csv", "communication.json"):
        assert not list((directory / PRODUCTS).glob(pattern)), pattern


@pytest.mark.checklist("D14", "C25")
def test_one_clock_for_all_products(tmp_path: Path) -> None:
    """Times are Unix time in every file, those of the timeline as text, as MindSpore writes them."""
    before = time.time_ns() // 1000
    profiler = output.recorded(tmp_path, profile_framework="all", profile_memory=True)
    profiler.analyse()
    after = time.time_ns() // 1000
    (directory,) = profiler.directories
    host = output.rows(directory, "host_info/host_info_0.csv")
    timeline = [event for event in output.events(directory) if event.get("ph") == "X" and "-op" in event["name"]]
    assert sorted(event["ts"] for event in timeline) == sorted(
        row["start_time(us)"] for row in host if "-op" in row["name"]
    )
    memory = [row["Timestamp(us)"] for row in output.rows(directory, "memory_record.csv")]
    times = [event["ts"] for event in output.events(directory) if "ts" in event]
    assert len(times) > 12 and memory
    assert all(before - 1000 <= float(at) <= after + 1000 for at in (*times, *memory))


def test_names_of_any_kind(tmp_path: Path) -> None:
    """Quotes, separators and line breaks in a name break no product."""
    name = 'a,"b";c\n</td><script>\t\\é\ud800'
    profiler = Profiler(output_path=tmp_path, profile_framework="time", start_profile=False)
    profiler.start()
    with span(name):
        pass
    profiler.step()
    profiler.stop()
    analysis = profiler.analyse()
    assert analysis is not None
    assert analysis.complete, analysis
    (directory,) = profiler.directories
    (row,) = output.rows(directory, "cpu_op_detail_info_0.csv")
    assert row["full_op_name"].startswith('a,"b";c\n</td>')
    assert "</td><script>" not in (directory / PRODUCTS / "report.html").read_text(encoding="utf-8")


@pytest.mark.checklist("B13", "C12", "D14")
def test_the_timeline_is_capped(tmp_path: Path) -> None:
    """At the limit the file ends, is valid, says so, and what was left out is counted."""
    profiler = Profiler(output_path=tmp_path, timeline_limit=1, start_profile=False)
    profiler.start()
    for number in range(20_000):
        with span(f"operator number {number % 100} with a rather long name"):
            pass
    profiler.stop()
    analysis = profiler.analyse()
    assert analysis is not None
    (window,) = analysis.windows
    assert window.complete
    assert window.dropped > 1000
    assert f"{window.dropped:,} events were kept out by timeline_limit" in str(analysis)
    path = window.directory / "trace_view.json"
    assert path.stat().st_size <= 1 << 20
    found = json.loads(path.read_text(encoding="utf-8"))
    assert any(event["name"].startswith("stopped: the file is full") for event in found)
    assert sum(event.get("ph") == "X" for event in found) + window.dropped >= 20_000
    # Tables have all.
    assert sum(row.count for row in profiler.operators()) == 20_000


@pytest.mark.checklist("B16", "C13", "C5", "B10")
def test_host_info_and_memory(tmp_path: Path) -> None:
    """Host data are a table of spans with the memory in further columns; without memory if only times are wanted."""
    wanted = [("all", True), ("time", False)]
    for value, memory in wanted:
        profiler = Profiler(output_path=tmp_path / value, profile_framework=value, start_profile=False)
        profiler.start()
        if memory:
            output.until_sampled(profiler, "process memory")
        output.work(0)
        profiler.step()
        profiler.stop()
        profiler.analyse()
        (directory,) = profiler.directories
        host = output.rows(directory, "host_info/host_info_0.csv")
        assert [row["name"] for row in host if "-op" in row["name"]] == [
            "Default/network/Add-op2",
            "Default/network/MatMul-op1",
            "Gradients/Default/MatMul-op3",
            "AllReduce-op4",
        ]
        assert (directory / PRODUCTS / "memory_record.csv").exists() is memory
        if memory:
            record = output.rows(directory, "memory_record.csv")
            assert all(float(row["Total Allocated(MB)"]) > 1 for row in record)
    nothing = output.recorded(tmp_path / "none", profile_framework=None)
    nothing.analyse()
    assert not (nothing.directories[0] / PRODUCTS / "host_info").exists()


@pytest.mark.checklist("C14", "A8")
def test_flame_graph(tmp_path: Path) -> None:
    """Stacks are in the timeline, and folded for flame graphs."""
    with output.recording(tmp_path, with_stack=True) as profiler:
        output.until_sampled(profiler, "python stacks")
        profiler.step()
    (directory,) = profiler.directories
    folded = (directory / PRODUCTS / "stacks_0.folded").read_text(encoding="utf-8").splitlines()
    assert any("test_flame_graph (" in line and ";" in line and line.split()[-1].isdigit() for line in folded)
    assert any("test_flame_graph (" in event["name"] for event in output.events(directory))


@pytest.mark.checklist("A7", "B15", "C6", "D18")
@pytest.mark.parametrize("declared", [False, True])
def test_the_layout_of_a_device_mesh(tmp_path: Path, declared: bool) -> None:
    """Sizes and groups are in the JSON, and `explain` and the report show them; what the program declares goes before."""
    torch = require("torch")
    fake = require("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", rank=3, world_size=8, store=fake.FakeStore())
    try:
        torch.distributed.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        profiler = Profiler(
            output_path=tmp_path, start_profile=False, parallel_strategy=True, data_simplification=False
        )
        if declared:
            profiler.add_metadata("parallel_layout", {"data": 4, "tensor": 2})
        profiler.start()
        output.loop(3, lambda _: None, lambda _: profiler.step())
        profiler.stop()
        profiler.analyse()
    finally:
        torch.distributed.destroy_process_group()
    (directory,) = profiler.directories
    found = json.loads((directory / "parallel_strategy_3.json").read_text())["layout"]
    sizes = {"data": 4, "tensor": 2} if declared else {"pipeline": 2, "data": 2, "tensor": 2}
    assert found["sizes"] == sizes and found["from"] == (["declared", "torch"] if declared else ["torch"])
    groups = {group["kind"]: group["ranks"] for group in found["groups"]}
    assert groups == {"all": list(range(8)), "pipeline": [3, 7], "data": [1, 3], "tensor": [2, 3]}
    answer = explain(directory / RAW)
    assert answer.layout is not None and answer.layout.sizes == sizes
    shown = " × ".join(f"{kind} {size}" for kind, size in sizes.items())
    assert f"Layout  {shown}" in str(answer)
    recording = load(directory / RAW)
    page = content_of(recording, [RankSummary(rank) for rank in recording.ranks], answer)
    del groups["all"]
    assert {group.kind: list(group.ranks) for group in page.groups} == groups


def test_batches_of_any_loader(tmp_path: Path) -> None:
    """How long the loop waits for each batch of `watch_data` is a span, whatever the options say."""
    with output.recording(tmp_path) as profiler:
        batches = [batch for batch in profiler.watch_data(iter(range(3)))]
        assert batches == [0, 1, 2]
    names = [event["name"] for event in output.events(profiler.directories[0]) if event.get("ph") == "X"]
    assert names.count("data_wait") == 4


@pytest.mark.checklist("C2", "A4", "A6")
@pytest.mark.parametrize(
    ("level", "activities", "expected"),
    [
        (ProfilerLevel.LevelNone, None, (False, False, False)),
        (ProfilerLevel.Level0, None, (True, False, False)),
        (ProfilerLevel.Level1, None, (True, True, False)),
        (ProfilerLevel.Level2, None, (True, True, True)),
        (ProfilerLevel.Level0, [ProfilerActivity.CPU], (True, False, False)),
        (ProfilerLevel.Level0, [ProfilerActivity.NPU], (False, False, False)),
    ],
)
def test_levels_and_activities_choose_the_recorded_data(
    tmp_path: Path, level: ProfilerLevel, activities: list[ProfilerActivity] | None, expected: tuple[bool, bool, bool]
) -> None:
    """Operators, memory and stacks: each level has those of the one before, and operators only of what is active."""
    torch = require("torch")
    with output.recording(tmp_path, profiler_level=level, activities=activities) as profiler:
        for wanted, source in zip(expected[1:], ("process memory", "python stacks"), strict=True):
            if wanted:
                output.until_sampled(profiler, source)
        output.work(0)
        assert float((torch.ones(4) + torch.ones(4)).sum()) == 8
        profiler.step()
    profiler.raise_errors()
    (directory,) = profiler.directories
    products = directory / PRODUCTS
    names = {event["name"] for event in output.events(directory)}
    found = "aten::add" in names, (products / "memory_record.csv").exists(), (products / "stacks_0.folded").exists()
    assert found == expected
    assert "AllReduce-op4" in names


@pytest.mark.checklist("B20")
def test_the_cost_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the likely cost of a recording when it starts, by the recordings of the profiler so far."""
    with caplog.at_level(logging.INFO, "stepscope"):
        profiler = Profiler(output_path=tmp_path, start_profile=False, data_simplification=False)
        profiler.start()
        assert "nothing was recorded so far: about " in caplog.messages[-1]
        assert profiler.estimate.ns_per_event > 0
        output.loop(100, lambda _: None, lambda _: profiler.step())
        profiler.stop()
        estimate = profiler.estimate
        profiler.start()
        profiler.step()
        profiler.stop()
    first, second = profiler.directories
    size = (first / RAW / "journal").stat().st_size
    assert size / 100 > 5  # four spans and a step's mark in each step, and the names of all that this process recorded
    begin_line = (
        f"Profiler: recording begins; by 100 steps recorded so far: about {size / 100:,.0f} bytes of raw data and "
    )
    assert any(message.startswith(begin_line) for message in caplog.messages)
    assert estimate.steps == 100
    assert estimate.ns_per_step > 0
    assert output.info(second)["estimate"]["bytes_per_step"] == size / 100


@pytest.mark.checklist("B20")
def test_a_budget(tmp_path: Path) -> None:
    """Recording may have a share of the time; a number that is no share is refused."""
    profiler = output.recorded(tmp_path, overhead_budget=0.02)
    profiler.analyse()
    assert "budget 2.00%" in str(profiler.trust_report())
    wrong: list[tuple[Any, type[Exception]]] = [(2, ValueError), (0, ValueError), ("1%", TypeError), (True, TypeError)]
    for value, error in wrong:
        with refused(error, "overhead_budget"):
            Profiler(output_path=tmp_path, start_profile=False, overhead_budget=value)


@pytest.mark.checklist("C5", "B10", "C25", "D15")
def test_memory_by_step(tmp_path: Path) -> None:
    """Each step has the peak, what there was at its end, and by how much that grew; without the option nobody has."""
    profiler = Profiler(output_path=tmp_path / "with", start_profile=False, profile_memory=True)
    profiler.start()
    for step in range(4):
        # Memory of its own: the allocator of this process may have as much that is free.
        with mmap.mmap(-1, 64 << 20) as pages:
            if step == 2:
                pages.write(bytes(len(pages)))
            profiler.step()
    profiler.stop()
    profiler.analyse()
    rows = output.rows(profiler.directories[0], "memory_by_step.csv")
    by_step = {int(row["Step"]): row for row in rows if row["Component"] == "process"}
    assert sorted(by_step) == [0, 1, 2, 3]
    assert float(by_step[2]["Change(MB)"]) > 48
    assert float(by_step[2]["Peak Allocated(MB)"]) - float(by_step[1]["Allocated(MB)"]) > 48
    assert float(by_step[3]["Change(MB)"]) < -48
    assert float(by_step[3]["Peak Allocated(MB)"]) - float(by_step[3]["Allocated(MB)"]) > 48
    for row in rows:
        assert float(row["Peak Allocated(MB)"]) >= float(row["Allocated(MB)"]) > 1
        assert int(row["Samples"]) >= 1
    nothing = output.recorded(tmp_path / "without")
    nothing.analyse()
    assert not (nothing.directories[0] / PRODUCTS / "memory_by_step.csv").exists()


@pytest.mark.checklist("C5", "B10")
def test_every_window_has_its_memory(tmp_path: Path) -> None:
    """Also one that is over before anybody looks: at the start, and at the end of each step or of all."""
    planned = schedule(wait=0, active=1)
    profiler = Profiler(output_path=tmp_path, start_profile=False, profile_memory=True, schedule=planned)
    profiler.start()
    for _ in range(3):
        profiler.step()
    profiler.stop()
    assert read_by_loop(profiler.directories[0] / RAW / "journal") == {0: 2, 1: 1, 2: 1}
    alone = Profiler(output_path=tmp_path / "alone", start_profile=False, profile_memory=True)
    alone.start()
    alone.stop()
    assert read_by_loop(alone.directories[0] / RAW / "journal") == {0: 2}
    analysis = alone.analyse()
    assert analysis is not None and "window 0, 1 step: " in str(analysis)
    assert len(output.rows(alone.directories[0], "memory_record.csv")) >= 2


def read_by_loop(journal: Path) -> Counter[int]:
    """How often the thread of the loop has read the memory, by window; samples of the other thread do not count."""
    found: Counter[int] = Counter()
    with JournalReader(journal) as reader:
        for item in reader:
            if isinstance(item, EventBatch) and item.source == RECORDER:
                found[item.window] += int((item.events["name"] == strings.intern(COUNTER)).sum())
    return +found


class SlowItems:
    """A data set of which each item takes 5 ms."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> float:
        time.sleep(0.005)
        return float(index)


@pytest.mark.checklist("D12", "D13", "B14", "C11")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_pipeline_of_a_torch_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """With `data_process` a DataLoader and its workers are a pipeline: how many batches are ready, and advice; the loop's waiting for
    batches is in the phases."""
    torch = require("torch")
    monkeypatch.delenv("STEPSCOPE_SIGNALS")
    with output.recording(tmp_path, data_process=True) as profiler:
        for _ in torch.utils.data.DataLoader(SlowItems(), batch_size=2, num_workers=workers):
            profiler.step()
    (directory,) = profiler.directories
    raw = output.rows(directory, "minddata_pipeline_raw_0.csv")
    summary = json.loads((directory / PRODUCTS / "minddata_pipeline_summary_0.json").read_text())
    # Twelve batches of 10 ms, and the end at once; a worker makes the next one meanwhile.
    assert summary["per_pipeline_time"][0] >= (3 if workers else 9)
    if workers:
        assert [row["op_type"] for row in raw] == ["DataLoader", f"{__name__}.SlowItems"]
        assert len(json.loads(raw[1]["output_queue_size"])) == 13  # twelve batches, and the end
        assert summary["queue_utilization_pct"][1] < 50
        assert summary["bottleneck_warning"] == [f"{__name__}.SlowItems(id=1)"]
        # More workers are advised unless something else keeps this machine busy.
        assert re.search("num_workers above 1|while the processors are .* busy", summary["bottleneck_suggestion"][0])
    else:
        assert [row["op_type"] for row in raw] == ["DataLoader"] and "bottleneck_warning" not in summary
    table = (directory / PRODUCTS / "minddata_pipeline_summary_0.csv").read_text().splitlines()
    assert table[0] == f"op_ids,{','.join(map(str, summary['op_ids']))}"
    found = {row["Operation"].partition("#")[0]: row for row in output.rows(directory, "dataset.csv")}
    assert found.keys() == {"enumerate(DataLoader)", *(("start workers",) if workers else ())}
    assert {row["Stage"] for row in found.values()} == {"wait"}
    assert int(found["enumerate(DataLoader)"]["Occurrences"]) == 13
    assert phases_of(directory)["percent"]["data"] > 3  # the first step starts the worker


@pytest.mark.checklist("D13", "B14", "C11")
def test_use_of_processors(tmp_path: Path) -> None:
    """With `data_process` the processors' use over time is in MindSpore's file: of the machine and of the process."""
    profiler = Profiler(output_path=tmp_path, start_profile=False, data_process=True)
    begin_ms = time.time_ns() // 1_000_000
    profiler.start()
    for _ in range(3):
        ending = time.thread_time() + 0.1
        while time.thread_time() < ending:
            pass
        profiler.step()
    profiler.stop()
    profiler.analyse()
    found = json.loads((profiler.directories[0] / PRODUCTS / "minddata_cpu_utilization_0.json").read_text())
    assert (found["cpu_processor_num"], found["op_info"]) == (os.cpu_count(), []) and found["sampling_interval"] > 0
    times = found["time_stamp"]
    assert times == sorted(times) and begin_ms <= times[0] and times[-1] <= time.time_ns() // 1_000_000
    parts = {name: set(found[name]) for name in found if isinstance(found[name], dict)}
    use = {"sys_utilization", "user_utilization"}
    assert parts == {
        "device_info": {*use, "context_switch_count", "idle_utilization", "io_utilization", "runnable_process"},
        "process_info": use,
        "process_memory_info": {"rss_mbytes"},
        "system_memory_info": {f"{kind}_sys_memory_mbytes" for kind in ("available", "total", "used")},
    }
    assert all(len(values) == len(times) for name in parts for values in found[name].values())
    assert max(found["process_info"]["user_utilization"]) > 0
    assert found["process_memory_info"]["rss_mbytes"][0] < found["system_memory_info"]["total_sys_memory_mbytes"][0]


@pytest.mark.checklist("D13")
def test_use_of_processors_by_operators(tmp_path: Path) -> None:
    """Each operator of MindSpore's pipeline that was sampled has its use; what was not recorded is left out."""
    with sc.trace(output_dir=tmp_path / "run") as profiler:
        for user in (40, 60):
            for name, value in (("host processors", 4), ("host user %", user)):
                sc.counter(name, value, category="host")
            for name, value in (("Map(id=2) processor", 90), ("Map(id=2) system", 30)):
                sc.counter(name, value, category="data pipeline")
            profiler.step()
    Profiler.offline_analyse(tmp_path)
    found = json.loads((tmp_path / "run" / PRODUCTS / "minddata_cpu_utilization_0.json").read_text())
    assert found["op_info"] == [{"metrics": {"sys_utilization": [30, 30], "user_utilization": [60, 60]}, "op_id": 2}]
    assert found["device_info"] == {"user_utilization": [40, 60]} and found["process_info"] == {}


def phases_of(directory: Path) -> dict[str, Any]:
    """The JSON of the phases."""
    found: dict[str, Any] = json.loads((directory / PRODUCTS / "step_phases.json").read_text())
    return found


def slept(name: str, category: str = "") -> None:
    """A span that takes 2 ms."""
    with span(name, category=category):
        time.sleep(0.002)


@pytest.mark.checklist("D8", "D9")
def test_phases_of_steps(tmp_path: Path) -> None:
    """Each step has the time of each phase, also of those that the program names; they add up, and the last rows are a median
    step, as `explain` shows it, the average and percent."""
    with output.recording(tmp_path, data_simplification=False) as profiler:
        for number in range(3):
            for _ in range(number + 1):
                slept("data_wait", "dataloader")
            with span("my phase"):
                slept("aten::mm", "cpu_op")
                slept("Gradients/Default/MatMul-op1", "cpu_op")
            slept("Gradients/Default/grad_fc/AllReduce-op2", "cpu_op")
            slept("Default/optimizer-Momentum/ApplyMomentum-op3", "cpu_op")
            profiler.step()
    (directory,) = profiler.directories
    found = phases_of(directory)
    assert [step["step"] for step in found["steps"]] == [0, 1, 2]
    for number, step in enumerate(found["steps"]):
        assert sum(step["phases"].values()) == pytest.approx(step["total"], abs=0.01)
        assert all(step["phases"][name] >= 2000 for name in ("forward", "backward", "communication", "optimizer"))
        assert step["phases"]["data"] >= 2000 * (number + 1)
        assert step["spans"]["my phase"] >= 4000  # with what is in it, which is of other phases
    rows = output.rows(directory, "step_phases.csv")
    assert [row["step"] for row in rows] == ["0", "1", "2", "median", "average", "percent"]
    assert list(rows[0])[:2] == ["step", "total(us)"]
    average, percent = ({name: float(text) for name, text in row.items() if name != "step"} for row in rows[-2:])
    for name, mean in average.items():
        assert mean == pytest.approx(sum(float(row[name]) for row in rows[:3]) / 3, abs=0.002)
        assert percent[name] == pytest.approx(100 * mean / average["total(us)"], abs=0.01)
    assert percent["total(us)"] == 100
    (answer,) = explain(directory).ranks
    for share in answer.shares:
        assert "not covered" in share.name or float(rows[3][f"{share.name}(us)"]) == pytest.approx(
            share.ns / 1000, abs=0.002
        )
    assert sum(value for name, value in percent.items() if "span: " not in name) == pytest.approx(200, abs=0.1)
    assert "my phase" in (directory / PRODUCTS / "report.html").read_text()
    some = profiler.analyse(step_list=[0, 2])
    assert some is not None
    (window,) = some.windows
    again = json.loads((window.directory / "step_phases.json").read_text())
    assert again["steps"] == [found["steps"][0], found["steps"][2]]


@pytest.mark.checklist("D9")
@pytest.mark.parametrize("trains", [True, False])
def test_points_of_steps(tmp_path: Path, trains: bool) -> None:
    """MindSpore's file of the points where forward begins and backward ends; operators of a loader or an optimizer are not."""
    with output.recording(tmp_path) as profiler:
        for _ in range(3):
            with span("data_wait", category="dataloader"):
                slept("aten::stack", "cpu_op")
            with span("Optimizer.zero_grad#SGD.zero_grad"):
                slept("aten::zero_", "cpu_op")
            slept("aten::mm", "cpu_op")
            slept("aten::add", "cpu_op")
            if trains:
                slept("Gradients/Default/MatMul-op1", "cpu_op")
            slept("Default/ApplyMomentum-op3", "cpu_op")
            profiler.step()
    (directory,) = profiler.directories
    rows = output.rows(directory, "step_trace_raw_0_detail_time.csv")
    assert [row["step_num"] for row in rows] == ["0", "1", "2", "-"]
    parts = ("iteration_interval", "fp_and_bp", "tail") if trains else ("iteration_interval", "fp")
    points = ("start_point", "end_point", "total", "fp_point")
    assert set(rows[0]) == {"step_num", *points, *parts} | ({"bp_point"} if trains else set())
    numbers = [{name: int(text) for name, text in row.items() if name != "step_num"} for row in rows]
    tick = 10
    for row in numbers[:3]:
        assert sum(row[part] for part in parts) == row["total"] == row["end_point"] - row["start_point"]
        assert row["fp_point"] == row["start_point"] + row["iteration_interval"]
        assert row["iteration_interval"] * tick >= 4e6 and row[parts[1]] * tick >= 4e6
        assert abs(row["start_point"] * tick - time.time_ns()) < 3600 * 10**9, "Unix time"
        if trains:
            assert row["tail"] * tick >= 2e6 and row["bp_point"] == row["end_point"] - row["tail"]
    assert numbers[3]["total"] == sum(row["total"] for row in numbers[:3]) // 3
    without = output.recorded(tmp_path / "none")
    without.analyse()
    assert not list((without.directories[0] / PRODUCTS).glob("step_trace_raw*")), "no operators, so no points"
