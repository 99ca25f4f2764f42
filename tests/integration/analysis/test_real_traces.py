"""Real traces of devices, which others recorded, and what others computed of them: they are no part of the project.

`STEPSCOPE_REAL_TRACES` names the folder that has them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.analysis.explain import explain
from stepscope.analysis.findings import DeviceAnswer

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
