"""The device on which the program trains, and the rank of this process."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import msgspec

from stepscope.runtime.session.job import rank_from_environment
from stepscope.runtime.settings.validation import did_you_mean

DEVICES: Final = ("CPU", "GPU", "Ascend")


class DeviceTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The device, the rank, and the frameworks of the program."""

    device: str = "CPU"
    """One of `DEVICES`."""
    device_id: int = 0
    rank: int = 0
    rank_size: int = 1
    size_known: bool = False
    """True if the number of ranks was set; else there may be more."""
    frameworks: tuple[str, ...] = ()
    """Frameworks, of MindSpore and torch, that the program has imported."""
    mode: str = ""
    """MindSpore's execution mode: `graph`, `pynative`, or empty where it is not imported."""
    version: str = ""
    """MindSpore's."""
    notes: tuple[str, ...] = ()
    """A variable that cannot be read, and the value that is used instead."""

    @property
    def memory(self) -> str:
        """The name of the device whose memory training needs, as allocators report it."""
        return f"gpu/{self.device_id}" if self.device == "GPU" else "cpu/0"


def detect_target() -> DeviceTarget:
    """Asks the frameworks that are imported, then the environment. Imports none. Raises `RuntimeError` if MindSpore is
    set to a device that nobody knows."""
    mindspore, torch = _imported("mindspore"), _imported("torch")
    device, mode, version = "CPU", "", ""
    if mindspore is not None:
        name = str(mindspore.get_context("device_target"))
        devices = {device.lower(): device for device in DEVICES}
        if name.lower() not in devices:
            raise RuntimeError(
                f"MindSpore's device_target is {name!r}, which no profiler knows{did_you_mean(name, DEVICES)}"
            )
        device = devices[name.lower()]
        mode = "graph" if mindspore.get_context("mode") == mindspore.GRAPH_MODE else "pynative"
        version = str(getattr(mindspore, "__version__", ""))
    elif torch is not None and torch.cuda.is_available():
        device = "GPU"
    rank, size, size_known = _rank_and_size(mindspore, torch)
    text = os.environ.get("DEVICE_ID", "").strip()
    return DeviceTarget(
        device=device,
        device_id=_device_id(mindspore, device, text),
        rank=rank,
        rank_size=size,
        size_known=size_known,
        frameworks=tuple(name for name, module in (("mindspore", mindspore), ("torch", torch)) if module is not None),
        mode=mode,
        version=version,
        notes=(f"DEVICE_ID is {text!r}, which is no number: 0 is taken unless somebody else says",)
        if text and not text.isdecimal()
        else (),
    )


def _imported(name: str) -> Any:
    """A module that was imported to its end; a profiler may be made while it is imported."""
    module = sys.modules.get(name)
    return module if hasattr(module, "Tensor") else None


def _device_id(mindspore: Any, device: str, text: str) -> int:
    if mindspore is not None and device != "CPU":
        return int(mindspore.get_context("device_id"))
    return int(text) if text.isdecimal() else 0


def _rank_and_size(mindspore: Any, torch: Any) -> tuple[int, int, bool]:
    """Rank and number of ranks, and whether that is known: from a framework that has joined its peers, else from the
    environment, else 0 of 1."""
    if mindspore is not None:
        management: Any = sys.modules.get("mindspore.communication.management")
        if management is not None and getattr(management.GlobalComm, "INITED", False):
            return int(management.get_rank()), int(management.get_group_size()), True
    if torch is not None:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size()), True
    rank, size = rank_from_environment()
    rank = rank or 0
    return rank, max(size or 1, rank + 1), size is not None
