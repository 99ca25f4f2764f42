"""The table of allocations of `stepscope.mxnet`: requested and actual sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.compat.mxnet.memory import Allocations, requested_sizes
from stepscope.runtime.events.record import Kind
from tests.support.viewers.scene import Scene, make_run


def block(address: int, size: int, requested: int, state: str = "active_allocated") -> dict[str, Any]:
    """A block as `torch.cuda.memory_snapshot()` describes it."""
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": []}


SEGMENTS = [
    {
        "device": 0,
        "address": 4096,
        "blocks": [block(4096, 1024, 1000), block(5120, 512, 12), block(5632, 512, 0, "inactive")],
    },
    {"device": 1, "address": 4096, "blocks": [block(4096, 1024, 900), block(5120, 2048, 2000)]},
]


@pytest.mark.checklist("E16")
async def test_requested_sizes_of_blocks_that_are_allocated(tmp_path: Path) -> None:
    """Of those the allocator knows the requested size; of freed ones, of an address that serves another block now, and on a
    CPU, the actual size is all that is known."""
    scene = Scene(make_run(tmp_path))
    changes = [
        (1, 0, 4096, 1024),  # freed, and the address is used again
        (1, 0, 4096, -1024),
        (1, 0, 4096, 1024),
        (1, 0, 5120, 512),  # freed; what has the address now was not recorded
        (1, 0, 5120, -512),
        (1, 1, 4096, 1024),  # on another device
        (1, 1, 5120, 512),  # has another size now: its release was not recorded
        (0, -1, 4096, 1000),  # on the CPU
    ]
    for at, (kind, number, address, size) in enumerate(changes):
        scene.add(Kind.MEMORY, "memory", at, id=address, Bytes=size, Device_Type=kind, Device_Id=number)
    allocations = Allocations()
    await allocations.export(scene.batch())
    assert [row[1:] for row in allocations.rows(requested_sizes(SEGMENTS))] == [
        (1024, "gpu/0", 1024), (1000, "gpu/0", 1024), (512, "gpu/0", 512), (900, "gpu/1", 1024), (512, "gpu/1", 512),
        (1000, "cpu/0", 1000),
    ]  # fmt: skip
