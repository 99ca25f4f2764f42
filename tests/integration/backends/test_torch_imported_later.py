"""`stepscope run`: what is asked of torch's backend reaches it, though torch may be imported later."""

from __future__ import annotations

import pytest

from stepscope.backends.collecting import CollectingSink
from stepscope.backends.torch.backend import TorchBackend
from stepscope.cli.programs.torch_program import LateTorch
from stepscope.runtime.events import clock
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import FULL, Detail
from tests.support.block_contents import texts
from tests.support.operators import torch

NONE, _, RECORD, _ = ProfilerAction


def test_the_waiting_backend_has_every_method_of_torchs_backend() -> None:
    """The backend that waits for torch has every method that a profiler calls."""
    public = {name for name in dir(TorchBackend) if not name.startswith("_")}
    assert public - {"beyond_stream", "toggle"} <= set(dir(LateTorch))


@pytest.mark.parametrize("early", [False, True])
async def test_detail_reaches_torch(early: bool) -> None:
    """Of a level of detail without operators, before torch was opened and after it, none are recorded."""
    sink, late = CollectingSink(), LateTorch(TorchBackend("kineto"))
    assert late.can_choose("stacks", True) == ""
    if early:
        late.set_detail(Detail("without operators", operators=False))
        late.choose({"shapes": True})
    late.open(sink)
    counts: list[int] = []
    for detail in (None, FULL, Detail("without operators", operators=False)):
        if detail is not None:
            late.set_detail(detail)
        late.transition(NONE, RECORD, clock.now())
        torch.add(torch.ones(2), 1)
        late.transition(RECORD, NONE, end := clock.now())
        assert sink.wait_past(end, 20)
        counts.append(texts(sink.events).count("aten::add"))
    late.orphaned()
    await late.aclose()
    assert counts == ([0, 1, 1] if early else [1, 2, 2])
