"""Chooses the backends that record what the options ask for, counters of the host and of devices among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from stepscope.backends.base import Backend
from stepscope.backends.counters.host import HostBackend, HostPart
from stepscope.backends.counters.nvml import NvmlBackend, NvmlPart
from stepscope.backends.counters.nvml import refusal as nvml_refusal
from stepscope.backends.counters.perf import GROUPS, PerfBackend, PerfGroup, refusals
from stepscope.backends.counters.process_memory import ProcessMemoryBackend
from stepscope.backends.mindspore.backend import MindSporeBackend
from stepscope.backends.mindspore.data_pipeline import MindDataBackend
from stepscope.backends.python_stacks import PythonStacksBackend
from stepscope.backends.torch.backend import TorchBackend
from stepscope.compat.mindspore.options.enums import AicoreMetrics, HostSystem
from stepscope.compat.mindspore.options.options import ProfilerOptions
from stepscope.compat.mindspore.sources.device import DeviceTarget

HARDWARE: Final[tuple[PerfGroup, ...]] = ("ipc", "cache", "branch")
"""Groups that the processor counts."""

METRICS: Final[Mapping[AicoreMetrics, PerfGroup]] = {
    AicoreMetrics.PipeUtilization: "ipc",
    AicoreMetrics.ArithmeticUtilization: "ipc",
    AicoreMetrics.Memory: "cache",
    AicoreMetrics.MemoryL0: "cache",
    AicoreMetrics.MemoryUB: "cache",
    AicoreMetrics.L2Cache: "cache",
    AicoreMetrics.MemoryAccess: "cache",
    AicoreMetrics.ResourceConflictRatio: "branch",
}
"""The processor's counters that are nearest to a group of an Ascend core."""

HOST: Final[Mapping[HostSystem, HostPart]] = {
    HostSystem.CPU: "cpu",
    HostSystem.MEM: "memory",
    HostSystem.DISK: "disk",
    HostSystem.NETWORK: "network",
    HostSystem.OSRT: "scheduling",
}

DEVICE: Final[Mapping[str, NvmlPart]] = {
    "pcie": "pcie",
    "hbm_ddr": "utilization",
    "sys_interconnection": "nvlink",
}


def choose(options: ProfilerOptions, target: DeviceTarget) -> list[Backend]:
    """Backends that record what the options ask for. Frameworks that are not imported yet are left out."""
    chosen: list[Backend] = []
    if "mindspore" in target.frameworks and (options.operators or options.memory):
        chosen.append(
            MindSporeBackend(operators=options.operators, shapes=options.shapes, profile_memory=options.memory)
        )
    if "mindspore" in target.frameworks and options.data_process:
        chosen.append(MindDataBackend())
    if "torch" in target.frameworks and options.operators:
        chosen.append(
            TorchBackend(
                record_shapes=options.shapes,
                profile_memory=options.profile_memory,
                with_flops=options.peak_flops is not None,
            )
        )
    if options.memory:
        chosen.append(ProcessMemoryBackend())
    if options.stacks:
        chosen.append(PythonStacksBackend())
    return [*chosen, *_counters(options, target)]


def _counters(options: ProfilerOptions, target: DeviceTarget) -> list[Backend]:
    chosen: list[Backend] = []
    parts: list[HostPart] = [HOST[each] for each in options.host_sys]
    if options.data_process:
        parts.extend(("cpu", "memory"))
    if options.sys_io:
        parts.append("network")
    if parts:
        chosen.append(HostBackend(parts))
    if target.device == "CPU":
        groups: list[PerfGroup] = [METRICS[options.aicore_metrics]] if options.aicore_metrics in METRICS else []
        if options.l2_cache:
            groups.append("cache")
        if groups and not counters_refusal("aicore_metrics", target):
            chosen.append(PerfBackend(groups))
    if target.device == "GPU":
        wanted: list[NvmlPart] = [part for name, part in DEVICE.items() if getattr(options, name)]
        if wanted and not counters_refusal("pcie", target):
            chosen.append(NvmlBackend(wanted))
    return chosen


def counters_refusal(option: str, target: DeviceTarget) -> str:
    """Why this machine has no counters for an option, although its device could; empty if it has them."""
    return _REFUSALS[option, target.device]() if (option, target.device) in _REFUSALS else ""


def _no_processor_counters() -> str:
    problems = refusals(HARDWARE)
    hidden = len(problems) == sum(len(GROUPS[group]) for group in HARDWARE)
    return next(iter(problems.values())) if hidden else ""


_REFUSALS: Mapping[tuple[str, str], Callable[[], str]] = {
    ("aicore_metrics", "CPU"): _no_processor_counters,
    ("l2_cache", "CPU"): _no_processor_counters,
    ("pcie", "GPU"): nvml_refusal,
    ("hbm_ddr", "GPU"): nvml_refusal,
    ("sys_interconnection", "GPU"): nvml_refusal,
}
