"""A simulated device that knows its kernels, by the times of the process's clock."""

from __future__ import annotations

from typing import Any, NamedTuple

from stepscope.backends.simulated.simulated import SimulatedDevice
from stepscope.backends.simulated.workload import KERNELS
from stepscope.runtime.schedule.action import ProfilerAction


class Kernel(NamedTuple):
    """Times in ns."""

    stream: int
    name: str
    launch_ns: int
    start_ns: int
    dur_ns: int


class KnownDevice(SimulatedDevice):
    """Remembers all its recordings, for small runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._made: list[Any] = []

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        super().transition(before, after, at)
        if self._last is not None and self._last not in self._made[-1:]:
            self._made.append(self._last)

    @property
    def truth(self) -> dict[int, Kernel]:
        """By correlation id, the kernels in all buffers that are closed."""
        kernels: dict[int, Kernel] = {}
        for recording in self._made:
            for stream, closed in enumerate(recording.closed):
                made = self._workload.stretch(stream, recording.origin, recording.base, 0, closed, recording.stop)
                times = (column.tolist() for column in (made.kernels, made.launched, made.started, made.ran))
                for correlation, number, *kernel in zip(
                    self._workload.correlations(made).tolist(), *times, strict=True
                ):
                    kernels[correlation] = Kernel(stream, KERNELS[number], *kernel)
        return kernels
