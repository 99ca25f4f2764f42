"""Producers of events, one source per file. `base.py` is the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

if __name__ != "stepscope.backends":
    raise ImportError(f"{__name__} is a folder of stepscope's sources: import stepscope.backends")

if TYPE_CHECKING:
    from stepscope.backends.base import Backend as Backend
    from stepscope.backends.base import BackendReport as BackendReport
    from stepscope.backends.base import Sink as Sink
    from stepscope.backends.host import HostBackend as HostBackend
    from stepscope.backends.nvml import NvmlBackend as NvmlBackend
    from stepscope.backends.perf import PerfBackend as PerfBackend
    from stepscope.backends.replay import ReplayBackend as ReplayBackend
    from stepscope.backends.scripted import ScriptedBackend as ScriptedBackend
    from stepscope.backends.simulated import SimulatedDevice as SimulatedDevice
    from stepscope.backends.torch import TorchBackend as TorchBackend
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
            "stepscope.backends.host": ("HostBackend",),
            "stepscope.backends.nvml": ("NvmlBackend",),
            "stepscope.backends.perf": ("PerfBackend",),
            "stepscope.backends.replay": ("ReplayBackend",),
            "stepscope.backends.scripted": ("ScriptedBackend",),
            "stepscope.backends.simulated": ("SimulatedDevice",),
            "stepscope.backends.torch": ("TorchBackend",),
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
