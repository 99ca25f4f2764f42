"""Real traces of devices, which others recorded, and what others computed of them: they are no part of the project.

`STEPSCOPE_REAL_TRACES` names the folder that has them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.analysis.explain import explain
from stepscope.analysis.findings import DeviceAnswer
from stepscope.analysis.page.render import report_html

WITHIN = 1e-3
PUBLISHED = {
    "h100-bert-small": (0.307198, 0, 0.002240, 0.309438, 3.598387, 3.907825),
    "h100-vit-nsfw": (1.225309, 0, 0, 1.225309, 6.334535, 7.559844),
    "mi300-bert-small": (0.388345, 0, 0.002404, 0.390749, 3.105228, 3.495976),
}
"""ms: computation, exposed communication, exposed copies, busy, idle, all, as TraceLens has published them."""
KERNELS = [
    ("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8", 98.718, 17),
    ("cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2", 41.28, 1),
    ("flash_fwd_kernel", 37.408, 4),
    ("sm90_xmma_gemm_bf16bf16", 33.089, 4),
]
"""Of h100-bert-small: a part of the name, µs, calls."""


def trace(name: str) -> Path:
    """A trace of this name, or the test is skipped: it cannot be installed."""
    folder = os.environ.get("STEPSCOPE_REAL_TRACES")
    if not folder:
        pytest.skip("STEPSCOPE_REAL_TRACES names no folder with real traces of devices")
    path = Path(folder) / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"the folder that STEPSCOPE_REAL_TRACES names has no {path.name}")
    return path


def device_of(name: str) -> DeviceAnswer:
    """The one device that was used."""
    (device,) = explain(trace(name)).ranks[0].devices
    return device


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_figures(name: str) -> None:
    """Within 0.1 %."""
    device = device_of(name)
    found = (
        device.computation_ns,
        device.communication_ns,
        device.copy_ns,
        device.busy_ns,
        device.idle_ns,
        device.total_ns,
    )
    assert [ns / 1e6 for ns in found] == pytest.approx(PUBLISHED[name], rel=WITHIN)


def test_the_published_kernels() -> None:
    """Their order, times, calls, and the share of the first."""
    device = device_of("h100-bert-small")
    for found, (part, us, count) in zip(device.kernels, KERNELS, strict=False):
        assert part in found.name and found.count == count and found.ns / 1e3 == pytest.approx(us, rel=WITHIN)
    assert device.kernels[0].share == pytest.approx(0.3214, abs=2e-4)


@pytest.mark.parametrize(("name", "idle"), [("h100-bert-small", 92), ("h100-vit-nsfw", 84), ("mi300-bert-small", 89)])
def test_the_answer_on_a_step_of_inference(name: str, idle: int) -> None:
    """One step is not judged; that the device idles, and what the host did, is said; a thread that only waits is not meant."""
    answer = explain(trace(name))
    assert answer.refused and "1 step" in answer.refused
    device = answer.ranks[0].devices[0]
    assert round(100 * device.idle) == idle
    meanwhile = {activity.name: activity.share for activity in device.meanwhile}
    assert meanwhile["operators"] + meanwhile["Python"] > 0.8 and meanwhile["launching kernels"] > 0.05
    assert sum(meanwhile.values()) == pytest.approx(1)
    (operators,) = [activity for activity in device.meanwhile if activity.name == "operators"]
    assert operators.names[0].name == "aten::addmm"
    assert not any("threading.py" in one.name for activity in device.meanwhile for one in activity.names)
    assert any("with_stack" in each for each in answer.unknown)
    assert f"idle {idle} % of the time" in report_html(trace(name))


def test_annotations_that_are_no_steps() -> None:
    """A training that names its parts itself: the device is said; it idled while memory was freed and allocated."""
    answer = explain(trace("a100-alexnet"))
    assert answer.refused.startswith("No steps") and answer.ranks[0].rank == 0
    (device,) = answer.ranks[0].devices
    assert device.idle > 0.99 and sum(kernel.count for kernel in device.kernels) <= 79 + 3
    first = device.meanwhile[0]
    assert first.name == "other calls of the device's runtime" and first.share > 0.7
    assert {one.name for one in first.names[:2]} == {"cudaFree", "cudaMalloc"}


@pytest.mark.checklist("D17")
def test_operations_of_an_h100() -> None:
    """Shapes are enough: a BERT of 4 layers, 512 wide, with a sentence of 141 tokens."""
    flops = explain(trace("h100-bert-small"), peak_flops=989e12).ranks[0].flops
    assert flops is not None
    found = {row.name: row for row in flops.operators}
    attention = found["aten::_scaled_dot_product_flash_attention"]
    assert (attention.count, attention.flops) == (4, 4 * 4 * 8 * 141 * 141 * 64)
    assert found["aten::addmm"].flops >= 4 * 2 * 141 * (4 * 512 * 512 + 2 * 512 * 4 * 512)


@pytest.mark.checklist("D15")
def test_memory_of_an_h100() -> None:
    """The modules that allocated the peak."""
    answer = explain(trace("h100-bert-small"))
    device = next(each for each in answer.ranks[0].memory if each.device == "gpu/0")
    assert device.peak >= 91505152
    assert device.allocations > 50 and device.tags and sum(tag.bytes for tag in device.tags) <= device.peak
    assert any(tag.name.startswith("nn.Module: ") for tag in device.tags)
