"""The cause comes first in recordings of a training on an H200 with a planted fault; the healthy ones have no finding."""

from __future__ import annotations

import msgspec
import pytest

from stepscope.analysis.rules.devices import check_device_idle
from stepscope.analysis.rules.evidence import Job
from tests.planted import gpu, recordings

SAID = {
    "none": ("GPU 0 computes", "Quicker kernels"),
    "beside": ("GPU 0 computes",),
    "slow-items": ("Text.__getitem__",),
    "norms": ("aten::item",),
    "pageable": ("Pageable -> Device", "pin_memory=True"),
    "emptied": ("cudaFree", "cudaMalloc"),
    "for-each-parameter": ("one parameter after the other", "fused=True"),
    "graphs": ("launching kernels",),
}
"""Words that must be in the verdict, or in the first finding."""


@pytest.mark.parametrize("fault", gpu.WANTED)
def test_the_fault_is_found_first(fault: str) -> None:
    """With what it is that takes the time, and what to try."""
    answer = gpu.answer(fault)
    assert [finding.id for finding in answer.findings][:1] == [gpu.WANTED[fault]] * bool(gpu.WANTED[fault]), answer
    first = answer.findings[0] if answer.findings else None
    said = " ".join([answer.verdict, *(first.evidence if first else ()), first.action if first else ""])
    assert all(word in said for word in SAID[fault]), said


@pytest.mark.parametrize(("busy", "workers"), [(60.0, True), (98.0, False)])
def test_a_device_that_idles_for_a_loader(busy: float, workers: bool) -> None:
    """More workers are advised where there are processors for them."""
    (rank,) = recordings.ranks_of(gpu.PLACE / "slow-items.msgpack.xz")
    summary = recordings.summary_of(msgspec.structs.replace(rank, counter_means={"host cpu %": busy}))
    (found,) = check_device_idle(Job([summary]))
    assert ("num_workers" in found.action) is workers and ("98% busy" in found.action) is not workers
