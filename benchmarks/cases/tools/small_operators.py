"""The smallest operators that torch has, many of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.cases.tools.timing import Loop
from benchmarks.harness.peers import peer

if TYPE_CHECKING:
    from stepscope.backends.torch.backend import TorchBackend


def additions() -> Loop:
    """A loop of `aten::add` on four numbers, without autograd."""
    torch: Any = peer("torch")
    add, a, b = torch.add, torch.ones(4), torch.ones(4)

    def loop(n: int) -> None:
        for _ in range(n):
            add(a, b)

    return loop


def live_operators() -> Callable[[], TorchBackend]:
    """Makes backends in stream mode; arms torch, which must not have been imported before."""
    from stepscope.backends.torch.arm import arm

    arm()
    peer("torch")
    from stepscope.backends.torch.backend import TorchBackend

    return lambda: TorchBackend("stream")
