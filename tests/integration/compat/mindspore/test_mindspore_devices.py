"""Operators of devices, directories of ranks, and the content of the report, in MindSpore's front door."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.backends.simulated.simulated import SimulatedDevice
from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.compat.mindspore.sources import backends as sources
from stepscope.mindspore import Profiler, schedule
from tests.support import mindspore_output as output


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
    told = json.loads(profiler.op_analyse([name, "MatMul-op1"]))
    (kernel,) = told[name]
    (host,) = told["MatMul-op1"]
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
