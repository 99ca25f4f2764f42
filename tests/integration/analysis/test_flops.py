"""Floating-point operations: formulas as torch counts, those that a program declares, and their share of a peak."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.findings import Answer, FlopsAnswer
from stepscope.analysis.page.render import report_html
from stepscope.analysis.reading.recording import load
from stepscope.analysis.tables.flops import FlopsTable, human_flops
from tests.support.basics import require
from tests.support.commands import stepscope
from tests.support.messages import refused


def flops_of(answer: Answer) -> FlopsAnswer:
    """Of a run of one process."""
    (rank,) = answer.ranks
    assert rank.flops is not None
    return rank.flops


def network(torch: Any) -> tuple[Any, Any]:
    """Convolutions, also transposed and with strides, attention and matrix products; and its input."""
    functional = torch.nn.functional

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.conv = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=2)
            self.up = torch.nn.ConvTranspose1d(4, 6, 5, stride=2)
            self.linear = torch.nn.Linear(6, 16)

        def forward(self, x: Any) -> Any:
            y = self.up(self.conv(x).flatten(2))
            y = self.linear(y.transpose(1, 2)).unsqueeze(1)
            return torch.bmm(functional.scaled_dot_product_attention(y, y, y)[:, 0], y[:, 0].transpose(1, 2))

    return Network(), torch.ones(2, 3, 14, 14)


@pytest.mark.checklist("D17")
def test_operators_have_the_flops_that_torch_counts(tmp_path: Path) -> None:
    """Forward and backward, of products, convolutions and attention: as torch.utils.flop_counter has it, for the same program."""
    torch = require("torch")
    counter = require("torch.utils.flop_counter")
    model, inputs = network(torch)
    with counter.FlopCounterMode(display=False) as counting:
        model(inputs).sum().backward()
    expected: Counter[str] = Counter()
    for operator, flops in counting.get_flop_counts()["Global"].items():
        expected[f"aten::{str(operator).removeprefix('aten.').partition('.')[0]}"] += flops
    with sc.trace(backends=[sc.TorchBackend(record_shapes=True)], output_dir=tmp_path) as profiler:
        for _ in range(3):
            model(inputs).sum().backward()
            profiler.step()
    table = FlopsTable()
    for batch in load(tmp_path).ranks[0].batches():
        table.update(batch)
    found = {row.name: row.flops for row in table.rows()}
    # torch counts attention on devices only.
    attention = "aten::_scaled_dot_product_flash_attention_for_cpu"
    shapes = [(2, 1, 75, 16)] * 3
    expected[attention] = counter.sdpa_flop_count(*shapes)
    expected[f"{attention}_backward"] = counter.sdpa_backward_flop_count(shapes[0], *shapes)
    assert found == {name: 3 * flops for name, flops in expected.items() if flops}
    assert {"aten::convolution", "aten::convolution_backward", "aten::bmm"} <= found.keys()
    assert len(found) >= 5 and {row.count % 3 for row in table.rows()} == {0}


@pytest.mark.checklist("D17")
def test_torchs_own_estimates(tmp_path: Path) -> None:
    """Count for operators without a formula, and no convolution counts twice."""
    torch = require("torch")
    backend = sc.TorchBackend(with_flops=True)
    inputs, model = torch.ones(2, 3, 8, 8), torch.nn.Conv2d(3, 4, 3, bias=False)
    with sc.trace(backends=[backend], output_dir=tmp_path), torch.no_grad():
        model(inputs)
        torch.mul(inputs, inputs)
    answer = explain(tmp_path)
    assert {row.name: row.flops for row in flops_of(answer).operators} == {
        "aten::convolution": 2 * 2 * 4 * 3 * 9 * 36,
        "aten::mul": inputs.numel(),
    }


@pytest.mark.checklist("D17")
def test_declared_operations_and_a_peak(tmp_path: Path) -> None:
    """Operations that the program declares count alone, large and small; rate and share are of the steps that are judged."""
    with sc.trace(output_dir=tmp_path, metadata={"peak_flops": 1e15}) as profiler:
        for _ in range(20):
            with sc.span("forward", FLOPs=3e9):
                pass
            with sc.span("backward", FLOPs=6_000_000):
                pass
            with sc.span("nothing", FLOPs=0):
                pass
            with sc.span("odd", FLOPs="many", other=1):
                pass
            profiler.step()
    answer = explain(tmp_path)
    flops = flops_of(answer)
    assert [(row.name, row.count, row.flops) for row in flops.operators] == [
        ("forward", 20, 60_000_000_000),
        ("backward", 20, 120_000_000),
    ]
    rank = load(tmp_path).ranks[0]
    steps: Any = rank.steps
    assert flops.declared and flops.a_step == pytest.approx(3_006_000_000)
    assert flops.rate is not None and flops.utilization == flops.rate / 1e15
    slowest, fastest = (float(each(steps["end"] - steps["begin"])) for each in (np.max, np.min))
    assert 3.006e18 / slowest <= flops.rate <= 3.006e18 / fastest
    text = " ".join(str(answer).split())
    assert "FLOPs 3.01 GFLOP a step" in text and "of the declared peak of 1 PFLOP/s; 100% in forward" in text
    other = flops_of(explain(tmp_path, peak_flops=2e15))
    assert other.utilization == pytest.approx(flops.rate / 2e15)
    page = report_html(tmp_path)
    assert "Floating-point operations" in page and "60 GFLOP" in page and "of the declared peak of 1 PFLOP/s" in page
    for wrong, error in ((0, ValueError), (-1.5, ValueError), ("1e12", TypeError), (True, TypeError)):
        with refused(error, "peak_flops"):
            explain(tmp_path, peak_flops=wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.checklist("D17")
def test_a_peak_on_the_command_line(tmp_path: Path) -> None:
    """For the answer and for the page; what is no peak is refused."""
    with sc.trace(output_dir=tmp_path / "run", metadata={"peak_flops": 1e15}) as profiler:
        for _ in range(8):
            with sc.span("forward", FLOPs=5):
                pass
            profiler.step()
    report = json.loads(stepscope("explain", "run", "--json", "--peak-flops", "2e15", cwd=tmp_path).stdout)
    flops = report["ranks"][0]["flops"]
    assert flops["peak"] == 2e15 and flops["a_step"] == 5
    assert stepscope("report", "run", "--peak-flops", "3e15", cwd=tmp_path).returncode == 0
    assert "declared peak of 3 PFLOP/s" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for wrong in ("0", "-1", "fast", "nan", "inf"):
        done = stepscope("explain", "run", f"--peak-flops={wrong}", cwd=tmp_path)
        assert done.returncode == 2 and "must be a number above 0, such as 989e12" in done.stderr


def test_a_run_without_flops_or_without_a_peak(tmp_path: Path) -> None:
    """A run that has none says nothing of it; one without a peak says how to declare it."""
    with sc.trace(output_dir=tmp_path / "none", metadata={"peak_flops": "fast"}) as profiler:
        for _ in range(5):
            with sc.span("forward"):
                pass
            profiler.step()
    answer = explain(tmp_path / "none")
    assert answer.ranks[0].flops is None and "FLOP" not in str(answer)
    assert "Floating-point" not in report_html(tmp_path / "none")
    with sc.trace(output_dir=tmp_path / "some", metadata={"peak_flops": "fast"}) as profiler:
        for _ in range(5):
            with sc.span("forward", FLOPs=7):
                pass
            profiler.step()
    assert flops_of(explain(tmp_path / "some")).peak is None
    assert "--peak-flops" in str(explain(tmp_path / "some"))


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7 FLOP"), (999.6, "1 kFLOP"), (1.234e12, "1.23 TFLOP"), (5e21, "5,000 EFLOP")]
)
def test_three_digits(value: float, text: str) -> None:
    """With the prefix that leaves one to three before the point."""
    assert human_flops(value) == text
