"""`Options.memory_bytes` is divided among what a profiler holds."""

from __future__ import annotations

import pytest

from stepscope.runtime.memory_limits import MemoryLimits, memory_limits
from stepscope.runtime.options import Options
from tests.support.messages import refused

MIB = 1 << 20


def total(limits: MemoryLimits, exporters: int) -> int:
    """What all of it holds together."""
    return limits.ring_bytes + limits.drained_bytes + limits.inbox_bytes + exporters * limits.queue_bytes


@pytest.mark.parametrize("exporters", [0, 1, 2, 7])
@pytest.mark.parametrize(
    "given",
    [
        Options(),
        Options(memory_bytes=16 * MIB),
        Options(ring_bytes=96 * MIB),
        Options(queue_bytes=1),
        Options(inbox_bytes=10 * MIB, queue_bytes=10 * MIB),
        Options(ring_bytes=4096, inbox_bytes=1, queue_bytes=1),
    ],
)
def test_all_together_fit(given: Options, exporters: int) -> None:
    """Whatever is given; and nothing is left without room."""
    limits = memory_limits(given, exporters)
    assert total(limits, exporters) <= given.memory_bytes
    assert min(limits.ring_bytes, limits.inbox_bytes, limits.queue_bytes) > 0
    for name in ("ring_bytes", "inbox_bytes", "queue_bytes"):
        assert getattr(given, name) in (None, getattr(limits, name))


def test_shares_without_settings() -> None:
    """A quarter each; exporters and what is drained divide theirs."""
    limits = memory_limits(Options(), 1)
    assert (limits.ring_bytes, limits.inbox_bytes, limits.queue_bytes) == (64 * MIB, 64 * MIB, 32 * MIB)
    assert limits.worker_ring_bytes == 64 * MIB and total(limits, 1) == 256 * MIB


def test_too_much_is_refused_with_what_is_needed() -> None:
    """The sum is told, and the setting that would do is taken."""
    given = Options(ring_bytes=100 * MIB, queue_bytes=20 * MIB)
    with refused(ValueError, "Options.memory_bytes", "memory_bytes=269 << 20"):
        memory_limits(given, 2)
    enough = Options(memory_bytes=269 << 20, ring_bytes=100 * MIB, queue_bytes=20 * MIB)
    assert memory_limits(enough, 2).inbox_bytes == 9 * MIB
