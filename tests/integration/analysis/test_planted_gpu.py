"""The cause comes first in recordings of a training on an H200 with a planted fault; the healthy ones have no finding."""

from __future__ import annotations

import pytest

from tests.planted import gpu

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
