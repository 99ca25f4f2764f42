"""Producers of events, a folder for each kind. `base.py` is the contract, `conformance.py` tests it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if __name__ != "stepscope.backends":
    raise ImportError(f"{__name__} is a folder of stepscope's sources: import stepscope.backends")

if TYPE_CHECKING:
    from stepscope.backends.base import Backend as Backend
    from stepscope.backends.base import BackendReport as BackendReport
    from stepscope.backends.base import Sink as Sink
    from stepscope.backends.counters.host import HostBackend as HostBackend
    from stepscope.backends.counters.nvml import NvmlBackend as NvmlBackend
    from stepscope.backends.counters.perf import PerfBackend as PerfBackend
    from stepscope.backends.simulated.replay import ReplayBackend as ReplayBackend
    from stepscope.backends.simulated.scripted import ScriptedBackend as ScriptedBackend
    from stepscope.backends.simulated.simulated import SimulatedDevice as SimulatedDevice
    from stepscope.backends.torch.backend import TorchBackend as TorchBackend
else:
    from stepscope.runtime.lazy import lazy as _lazy

    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "stepscope.backends.base": (
                "Backend",
                "BackendReport",
                "Sink",
            ),
            "stepscope.backends.counters.host": ("HostBackend",),
            "stepscope.backends.counters.nvml": ("NvmlBackend",),
            "stepscope.backends.counters.perf": ("PerfBackend",),
            "stepscope.backends.simulated.replay": ("ReplayBackend",),
            "stepscope.backends.simulated.scripted": ("ScriptedBackend",),
            "stepscope.backends.simulated.simulated": ("SimulatedDevice",),
            "stepscope.backends.torch.backend": ("TorchBackend",),
        },
    )

__all__ = [
    "Backend",
    "BackendReport",
    "HostBackend",
    "NvmlBackend",
    "PerfBackend",
    "ReplayBackend",
    "ScriptedBackend",
    "SimulatedDevice",
    "Sink",
    "TorchBackend",
]
