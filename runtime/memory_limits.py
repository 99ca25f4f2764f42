"""Divides `Options.memory_bytes` among rings, inbox and queues."""

from __future__ import annotations

import msgspec

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.options import Options

SHARES = {"ring_bytes": 4, "inbox_bytes": 2, "queue_bytes": 2}
"""Weights of the settings that are not set: half of the memory is for the recorder's events, a quarter for those of backends, and
a quarter for exporters."""
LEAST = 32
"""A setting that is not set has at least this fraction of the memory for what it bounds."""
MIB = 1 << 20


class MemoryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one profiler, in bytes, which together are at most `Options.memory_bytes`.

    Drained events that are not passed on yet take `ring_bytes + queue_bytes` at most. So all limits together are
    twice `ring_bytes`, `inbox_bytes`, and `queue_bytes` for each exporter and once more.
    """

    ring_bytes: int
    """All rings of the process."""
    worker_ring_bytes: int
    """All rings of a process that joins. They come on top: they are memory of that process."""
    inbox_bytes: int
    """Events of backends."""
    queue_bytes: int
    """The queue of one exporter; also the drained events with which the loop drains no more."""

    @property
    def drained_bytes(self) -> int:
        """Limit of drained events that are not passed on yet."""
        return self.ring_bytes + self.queue_bytes


def worker_ring_bytes(options: Options) -> int:
    """Limit of the rings of each process that joins."""
    limit = options.worker_ring_bytes
    return options.memory_bytes // 4 if limit is None else limit


def memory_limits(options: Options, exporters: int) -> MemoryLimits:
    """Returns the limits of a profiler with so many exporters. Settings that are not set divide the rest.

    Raises:
        ValueError: if the given settings need more than `Options.memory_bytes`.
    """
    memory = options.memory_bytes
    times = {"ring_bytes": 2, "inbox_bytes": 1, "queue_bytes": exporters + 1}
    values: dict[str, int | None] = {name: getattr(options, name) for name in SHARES}
    configured = {name: value for name, value in values.items() if value is not None}
    used = sum(times[name] * value for name, value in configured.items())
    open_ = [name for name in SHARES if name not in configured]
    if used + len(open_) * (memory // LEAST) > memory:
        needed = -(-used * LEAST // (LEAST - len(open_)) // MIB) * MIB
        parts = " + ".join(f"{times[name]} * {name} ({value:,})" for name, value in configured.items())
        others = f", and {' and '.join(open_)} must have some, too" if open_ else ""
        raise ValueError(
            f"Options.memory_bytes is {memory:,}, and with {human_count(exporters, 'exporter')} {parts} is {used:,}{others}: "
            f"set Options.memory_bytes={needed >> 20} << 20 or more, or lower the others"
        )
    weights = sum(SHARES[name] for name in open_)
    shares = {name: (memory - used) * SHARES[name] // weights // times[name] for name in open_}
    return MemoryLimits(worker_ring_bytes=worker_ring_bytes(options), **configured, **shares)
