"""Data of machines and devices in the replacement of MindSpore's profiler: counters, floating-point operations, kernels, directories of ranks."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.backends.counters.nvml import refusal
from stepscope.backends.counters.perf import EVENTS, GROUPS, refusals
from stepscope.backends.simulated.simulated import SimulatedDevice
from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.compat.mindspore.sources import backends as sources
from stepscope.compat.mindspore.sources.backends import HARDWARE, HOST, METRICS
from stepscope.mindspore import AicoreMetrics, HostSystem, Profiler, schedule
from stepscope.runtime._core import span
from tests.support import mindspore_output as output
from tests.support import nvml
from tests.support.basics import ROOT, missing, require
from tests.support.launch import run_to_end


@pytest.mark.checklist("C22")
def test_op_analyse_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are counted on their device, apart from operators of the host and of other devices."""

    def choose(*_: object) -> list[SimulatedDevice]:
        return [SimulatedDevice(streams=1, kernels_per_second=20_000)]

    monkeypatch.setattr(sources, "choose", choose)
    profiler = Profiler(output_path=tmp_path, start_profile=False)
    profiler.start()
    with sc.span("MatMul-op1", category="cpu_op"):
        time.sleep(0.1)
    profiler.step()
    profiler.stop()
    kernels = [row for row in profiler.operators() if row.side == "Device"]
    name = kernels[0].name
    analysed = json.loads(profiler.op_analyse([name, "MatMul-op1"]))
    (kernel,) = analysed[name]
    (host,) = analysed["MatMul-op1"]
    assert (kernel["op_side"], host["op_side"]) == ("device", "cpu")
    assert kernel["op_occurrences"] == kernels[0].count and kernel["op_total_time(us)"] > 0
    (kernel_device,) = {row.device for row in kernels}
    assert kernel_device is not None
    assert json.loads(profiler.op_analyse(name, device_id=kernel_device + 7))[name] == []


@pytest.mark.checklist("B4")
def test_each_rank_has_directories_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that record at the same time below one path: each directory says whose it is, and has only that rank's files."""
    profilers: list[Profiler] = []
    for rank in range(3):
        monkeypatch.setenv("RANK_ID", str(rank))
        monkeypatch.setenv("RANK_SIZE", "3")
        profilers.append(Profiler(output_path=tmp_path, profile_framework="time", parallel_strategy=True))
    for step in range(2):
        output.work(step)
        for profiler in profilers:
            profiler.step()
    for profiler in profilers:
        profiler.analyse()
    directories = [profiler.directories[0] for profiler in profilers]
    assert len(set(directories)) == 3 and {directory.parent for directory in directories} == {tmp_path.resolve()}
    for rank, directory in enumerate(directories):
        assert output.info(directory)["rank_id"] == str(rank)
        names = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
        own = {f"profiler_info_{rank}.json", f"parallel_strategy_{rank}.json"}
        assert own | {f"{PRODUCTS}/host_info/host_info_{rank}.csv"} <= names
        others = [other for other in range(3) if other != rank]
        assert not [name for name in names if any(name.endswith((f"_{each}.json", f"_{each}.csv")) for each in others)
                    and "/cpu_" not in name]  # fmt: skip


@pytest.mark.checklist("C25")
def test_the_report_of_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the window's steps, operators, memory and floating-point operations, and asks nobody for anything."""
    monkeypatch.delenv("STEPSCOPE_SIGNALS")
    profiler = Profiler(
        output_path=tmp_path,
        start_profile=False,
        profile_memory=True,
        schedule=schedule(wait=1, active=3, repeat=2),
    )
    profiler.start()
    for step in range(8):
        output.work(step)
        with sc.span(f"declared in {step // 4}", FLOPs=2_000_000):
            pass
        profiler.step()
    profiler.stop()
    analysis = profiler.analyse()
    assert analysis is not None and analysis.complete, analysis
    for window, directory in enumerate(profiler.directories):
        page = (directory / PRODUCTS / "report.html").read_text(encoding="utf-8")
        assert all(row["op_type"] in page for row in output.rows(directory, "cpu_op_type_info_0.csv"))
        assert f"declared in {window}" in page and f"declared in {1 - window}" not in page and "6 MFLOP" in page
        assert "Resident memory" in page and not re.search("(src|href)=.http", page)


HIDDEN = len(refusals(HARDWARE)) == sum(len(GROUPS[group]) for group in HARDWARE)
"""Whether this machine hides all counters of its processor."""


def counters(directory: Path, **options: Any) -> set[str]:
    """Names of the counters of a recording of a few steps."""
    with output.recording(directory, **options) as profiler:
        for _ in range(3):
            time.sleep(0.06)
            profiler.step()
    (window,) = profiler.directories
    return {event["name"] for event in output.events(window) if event.get("ph") == "C"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("cpu", {"host cpu %", "process cpu %"}),
        ("mem", {"host memory used", "process memory"}),
        ("disk", {"disk read B/s", "process disk written B/s"}),
        ("network", {"network received B/s", "network sent B/s"}),
        ("osrt", {"process preempted /s", "process page faults /s"}),
    ],
)
def test_the_host(tmp_path: Path, asked: str, expected: set[str]) -> None:
    """Each part that is asked for, and no other."""
    found = counters(tmp_path, host_sys=[asked])
    assert expected <= found
    others = counters(tmp_path, host_sys=[each for each in HostSystem if each.value != asked])
    assert others and not expected & others


def test_network_cards(tmp_path: Path) -> None:
    """Both options record the same traffic, once."""
    assert counters(tmp_path, sys_io=True) == counters(tmp_path, sys_io=True, host_sys=["network"])
    assert "network sent B/s" in counters(tmp_path, sys_io=True)


@pytest.mark.checklist("A3", "C8", "C9")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"aicore_metrics": "PipeUtilization"}, "instructions per cycle"),
        ({"aicore_metrics": "ResourceConflictRatio"}, "branch misses %"),
        ({"aicore_metrics": 6}, "cache misses %"),
        ({"l2_cache": True}, "cache misses %"),
    ],
)
@pytest.mark.parametrize("stand_in", [False, True])
def test_the_processor(
    tmp_path: Path, options: dict[str, Any], expected: str, stand_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters in place of those of an Ascend core; a machine that hides them is reported when the profiler is made. Where it
    does, processor time, which the kernel counts on any machine, stands for them."""
    if stand_in and (problems := refusals(["software"])):
        missing("perf_event_open", f"{next(iter(problems.values()))}.")
    for event in EVENTS if stand_in else ():
        monkeypatch.setitem(EVENTS, event, EVENTS["processor time"])
    hidden = HIDDEN and not stand_in
    limitations = Profiler(output_path=tmp_path, start_profile=False, **options).limitations
    assert bool(limitations) == hidden
    found = counters(tmp_path, **options)
    if hidden:
        assert "gives nothing on CPU: instructions: " in limitations[0] and not found
    else:
        assert expected in found


def test_every_member_has_counters() -> None:
    """None is ignored silently."""
    assert set(METRICS) == set(AicoreMetrics) - {AicoreMetrics.AiCoreNone}
    assert set(HOST) == set(HostSystem)


@pytest.mark.checklist("C9")
def test_devices(tmp_path: Path) -> None:
    """Rates of PCIe and the use of memory come of the driver, where there is one; else a message says that there is none."""
    program = """
import sys; sys.path.append(sys.argv[1])
import stepscope as sc
from stepscope.compat.mindspore.sources.backends import limits
from stepscope.compat.mindspore.sources.backends import choose
from stepscope.compat.mindspore.options.options import read_options
from stepscope.compat.mindspore.sources.device import DeviceTarget
options, target = read_options({"pcie": True, "hbm_ddr": True, "sys_interconnection": True}, "test"), DeviceTarget(device="GPU")
print(len(limits(options.requested(), target)))
memory = sc.exporters.MemoryExporter()
with sc.trace(backends=choose(options, target), exporters=[memory], options=sc.Options(journal=False)):
    import time; time.sleep(0.3)
print(*sorted(set(memory.names(kind=sc.exporters.Kind.COUNTER))), sep=",")
"""
    nvml.build(tmp_path)
    names = [f"gpu{number} {what}busy %" for number in (0, 1) for what in ("", "memory ")]
    names += [f"gpu0 {link} {way} B/s" for link in ("pcie", "nvlink") for way in ("received", "sent")]
    for path, printed in ((str(tmp_path), f"0\n{','.join(sorted(names))}\n"), ("", "3\n\n")):
        if not path and not refusal():
            continue  # this machine has a driver of its own
        environment = {**os.environ, "LD_LIBRARY_PATH": path}
        done = run_to_end(
            [sys.executable, "-c", program, str(ROOT)], environment=environment, timeout=100, cwd=tmp_path
        )
        assert (done.returncode, done.stdout) == (0, printed), done.stderr


def table(directory: Path, name: str) -> list[list[str]]:
    """A table of MindSpore's older files: cells between commas."""
    text = (directory / PRODUCTS / name).read_text(encoding="utf-8")
    return [line.split(", ") for line in text.splitlines()]


@pytest.mark.checklist("D17")
def test_flops_of_torch(tmp_path: Path) -> None:
    """A declared peak has torch's operators keep their operations: by operator, in a step, and as a share, step by step."""
    torch = require("torch")
    with output.recording(tmp_path, peak_flops=1e12) as profiler:
        for number in range(3):
            for _ in range(number):
                torch.mm(torch.ones(8, 16), torch.ones(16, 4))
            profiler.step()
    profiler.raise_errors()
    (directory,) = profiler.directories
    head, *rows = table(directory, "flops_0.txt")
    assert head == ["op_full_name", "MFLOPs(10^6)", "GFLOPS(10^9)", "FLOPS utilization(%)"]
    ((name, flops, rate, share),) = [row for row in rows if row[0] == "aten::mm"]
    assert (name, float(flops)) == ("aten::mm", 2 * 8 * 16 * 4 / 1e6)
    assert float(rate) > 0 and float(share) == pytest.approx(float(rate) * 1e9 / 1e12 * 100, rel=1e-4)
    summary = json.loads((directory / PRODUCTS / "flops_summary_0.json").read_text())
    assert summary["FLOPs"] == pytest.approx(3 * 1024 / 3 / 1e6, abs=5e-4)
    assert set(summary) == {"FLOPs", "FLOPS", "FLOPS_Utilization"}
    head, *steps = table(directory, "flops_utilization_step_0.json")
    assert head == ["steps", "FLOPS_Utilization %"]
    assert [number for number, _ in steps] == ["0", "1", "2"]
    assert float(steps[0][1]) == 0 < float(steps[1][1])
    assert "aten::mm" in (directory / PRODUCTS / "report.html").read_text()
    assert not (directory / PRODUCTS / "flops_scope_0.json").exists(), "torch's names have no scopes"


@pytest.mark.checklist("D17")
def test_declared_flops(tmp_path: Path) -> None:
    """Without torch and without a peak there are operations and rates, and no shares; without operations there is no file."""
    with output.recording(tmp_path) as profiler:
        for _ in range(2):
            with span("Default/network/MatMul-op1", FLOPs=5_000_000):
                pass
            profiler.step()
    (directory,) = profiler.directories
    scopes = json.loads((directory / PRODUCTS / "flops_scope_0.json").read_text())
    assert scopes["max_scope_num"] == 2
    assert scopes["data"] == {
        "nodes": [{"name": "Total"}, {"name": "Default"}, {"name": "network(1_Default)"}],
        "links": [
            {"source": "Total", "target": "Default", "value": 5.0},
            {"source": "Default", "target": "network(1_Default)", "value": 5.0},
        ],
    }
    ((name, flops, rate, share),) = table(directory, "flops_0.txt")[1:]
    assert (name, flops, share) == ("Default/network/MatMul-op1", "5", "") and float(rate) > 0
    summary = json.loads((directory / PRODUCTS / "flops_summary_0.json").read_text())
    assert (summary["FLOPs"], summary["FLOPS_Utilization"]) == (5.0, None)
    assert not (directory / PRODUCTS / "flops_utilization_step_0.json").exists()
    nothing = output.recorded(tmp_path / "none")
    nothing.analyse()
    assert not list((nothing.directories[0] / PRODUCTS).glob("flops*"))
