"""Floating-point operations in the products of MindSpore's front door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.runtime._core import span
from tests.support import mindspore_output as output
from tests.support.basics import require


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
