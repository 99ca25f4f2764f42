"""Memory: allocations, the peak, and by which span the bytes of the peak were allocated."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.page.render import report_html
from stepscope.analysis.tables.allocations import AllocationLog, human_bytes
from stepscope.backends.counters.process_memory import capacities
from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.mindspore import Profiler
from tests.support.basics import require
from tests.support.launch import run_to_end

MIB = 1 << 20


def allocate(torch: Any, mib: int) -> Any:
    """Times of torch's profiler are mapped to ours with an error, so there is some time around it."""
    time.sleep(0.02)
    made = torch.zeros(mib * MIB // 4)
    time.sleep(0.02)
    return made


def train(torch: Any, step: Any) -> None:
    """Three steps: 8 MiB stay, in the second one there are 16 more for a moment."""
    tensors: list[Any] = []
    for number in range(3):
        with sc.span("forward"):
            if number == 0:
                with sc.span("embedding"):
                    tensors.append(allocate(torch, 8))
            if number == 1:
                big = allocate(torch, 16)
                del big
                time.sleep(0.02)
        step()


@pytest.mark.checklist("D15")
def test_the_peak_and_the_spans_that_allocated_it(tmp_path: Path) -> None:
    """By innermost span; what was released before the peak is not in it. The terminal and the page say it."""
    torch = require("torch")
    metadata = {"memory_capacity": {"cpu/0": 64 * MIB}}
    backend = sc.TorchBackend(profile_memory=True)
    with sc.trace(backends=[backend], output_dir=tmp_path, metadata=metadata) as profiler:
        train(torch, profiler.step)
    answer = explain(tmp_path)
    (memory,) = answer.ranks[0].memory
    assert (memory.device, memory.capacity, memory.step) == ("cpu/0", 64 * MIB, 1)
    assert memory.peak >= 24 * MIB and memory.allocations >= 2 and memory.deallocations >= 1
    assert memory.allocated >= 24 * MIB
    sizes = {tag.name: tag.bytes for tag in memory.tags}
    assert sizes["forward"] >= 16 * MIB and 8 * MIB <= sizes["embedding"] < 9 * MIB
    assert sum(sizes.values()) == memory.peak
    text = " ".join(str(answer).split())
    # torch may hold some more: the shares are about two thirds and one third.
    peaks = re.escape(f"Memory cpu/0 peaks at {human_bytes(memory.peak)} of 64 MiB in step 1:")
    assert re.search(rf"{peaks} 6\d% forward, 3\d% embedding", text)
    page = report_html(tmp_path)
    assert "Allocations on cpu/0" in page and '<th scope="row">embedding</th>' in page


@pytest.mark.checklist("D15", "C5")
def test_files_of_mindspore(tmp_path: Path) -> None:
    """Capacity, allocations, deallocations, peak and breakdown, with MindSpore's keys; only with `profile_memory`."""
    torch = require("torch")
    profiler = Profiler(output_path=tmp_path, start_profile=False, profile_memory=True)
    profiler.start()
    train(torch, profiler.step)
    profiler.stop()
    analysis = profiler.analyse()
    assert analysis is not None and analysis.complete, analysis
    profiler.raise_errors()
    products = profiler.directories[0] / PRODUCTS
    summary = json.loads((products / "memory_usage_summary_0.json").read_text())
    assert summary["capacity"] == capacities()["cpu/0"] / 2**30
    assert summary["peak_mem"] * 1024 >= 24 and summary["allocations"] >= 2 and summary["deallocations"] >= 1
    assert [row["name"] for row in summary["breakdowns"][:2]] == ["forward", "embedding"]
    assert summary["breakdowns"][0]["size"] * 1024 >= 16
    details = json.loads((products / "memory_usage_details_0.json").read_text())
    assert [row["device"] for row in details["devices"]] == ["cpu/0"] and details["peaks"]["process"] > 24 * MIB


@pytest.mark.checklist("D15")
def test_without_allocations(tmp_path: Path) -> None:
    """Where no backend records any, the peak is that of the process, and numbers of allocations are not known."""
    profiler = Profiler(
        output_path=tmp_path, start_profile=False, profile_memory=True, op_time=True, activities=["NPU"]
    )
    profiler.start()
    profiler.step()
    profiler.stop()
    profiler.analyse()
    summary = json.loads((profiler.directories[0] / PRODUCTS / "memory_usage_summary_0.json").read_text())
    assert summary["allocations"] is None and summary["deallocations"] is None and summary["breakdowns"] == []
    assert 0 < summary["peak_mem"] < summary["capacity"]


@pytest.mark.checklist("D15")
def test_devices_of_a_saved_trace(tmp_path: Path) -> None:
    """Have their capacity from the head of the file; what was allocated before it is apart."""
    each = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7}

    def event(ts: float, size: int, total: int, address: int) -> dict[str, Any]:
        device = {"Device Type": 1, "Device Id": 0, "Addr": address, "Bytes": size, "Total Allocated": total}
        return {**each, "ts": ts, "args": device}

    span = {"ph": "X", "cat": "user_annotation", "pid": 7, "tid": 7}
    events = [
        {**span, "name": "forward", "ts": 10.0, "dur": 50.0},
        {**span, "name": "layer", "ts": 20.0, "dur": 10.0},
        event(15, 100, 1100, 1),
        event(25, 50, 1150, 2),
        event(35, -100, 1050, 1),
        event(40, 400, 1450, 1),
        event(70, 7, 1457, 3),
        event(80, -400, 1057, 1),
        event(90, 100, 1157, 4),
    ]
    devices = [{"id": 0, "name": "H200", "totalGlobalMem": 4000}, {"id": "odd"}, "odd"]
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events}))
    (memory,) = explain(path).ranks[0].memory
    assert (memory.device, memory.capacity, memory.peak, memory.step) == ("gpu/0", 4000, 1457, None)
    assert (memory.allocations, memory.deallocations, memory.allocated) == (5, 2, 657)
    assert [(tag.shown, tag.bytes, tag.count) for tag in memory.tags] == [
        ("before the window", 1000, 0),
        ("forward", 400, 1),
        ("layer", 50, 1),
        ("in no span", 7, 1),
    ]


SHARED = """
import sys, torch, stepscope as sc
from stepscope.analysis.explain import explain

class Data:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((1 << 18,), index)

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1)
    with sc.trace(backends=[sc.TorchBackend(profile_memory=True)], output_dir=sys.argv[1]) as profiler:
        for batch in loader:
            batch + 1
            profiler.step()
    (memory,) = explain(sys.argv[1]).ranks[0].memory
    print(memory.peak, sum(tag.bytes for tag in memory.tags))
"""


@pytest.mark.checklist("D15")
def test_batches_of_workers_are_in_the_peak(tmp_path: Path) -> None:
    """They lie in shared memory, which torch's total does not have: 4 MiB of a batch, and as many of the sum."""
    require("torch")
    (tmp_path / "shared.py").write_text(SHARED)
    done = run_to_end([sys.executable, "shared.py", "out"], cwd=tmp_path, check=True)
    peak, tagged = map(int, done.stdout.splitlines()[-1].split())
    assert 8 * MIB <= peak == tagged


@pytest.mark.checklist("D15")
def test_the_peak_of_several_windows(tmp_path: Path) -> None:
    """Is that of the window with the most, and broken down by its spans."""
    torch = require("torch")
    backend = sc.TorchBackend(profile_memory=True)
    plan = sc.schedule(wait=0, warmup=0, active=1, repeat=3)
    with sc.trace(schedule=plan, backends=[backend], output_dir=tmp_path) as profiler:
        for number, size in enumerate((2, 16, 4)):
            with sc.span(f"window {number}"):
                allocate(torch, size)
            profiler.step()
    (memory,) = explain(tmp_path).ranks[0].memory
    assert memory.step == 1 and memory.peak >= 16 * MIB and memory.allocated >= 22 * MIB
    assert [tag.name for tag in memory.tags if tag.bytes > MIB] == ["window 1"]


def test_allocations_beyond_the_limit(tmp_path: Path) -> None:
    """Allocations and spans beyond the limit are counted, and the log stays small."""
    torch = require("torch")
    backend = sc.TorchBackend(profile_memory=True)
    with sc.trace(backends=[backend], output_dir=tmp_path) as profiler:
        for _ in range(20):
            with sc.span("forward"):
                torch.zeros(1 << 16)
        profiler.step()
    log, whole = AllocationLog(most=8), AllocationLog()
    for batch in sc.load(tmp_path).ranks[0].batches():
        assert log.update(batch) == whole.update(batch)
    assert len(log.allocations) == 8 and whole.left_out == 0
    assert log.left_out == len(whole.allocations) - 8 + 20 - 8
    assert len(list(log.labelled())) == 8


@pytest.mark.parametrize(
    ("size", "text"), [(7, "7 B"), (1000, "0.977 KiB"), (24 * MIB, "24 MiB"), (80 << 30, "80 GiB"), (1e16, "9,095 TiB")]
)
def test_bytes_with_three_digits(size: float, text: str) -> None:
    """With the unit that leaves at most three before the point."""
    assert human_bytes(size) == text
