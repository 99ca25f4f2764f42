"""Chooses the backends that record what the options ask for, and says what each option gives on each device, and what it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

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
from stepscope.compat.mindspore.options.enums import AicoreMetrics, HostSystem, ProfilerActivity
from stepscope.compat.mindspore.options.options import ProfilerOptions
from stepscope.compat.mindspore.sources.device import DEVICES, DeviceTarget

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
                activities=[ProfilerActivity.CPU] if target.device == "GPU" and options.host_only else None,
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
    """The reason why this machine has no counters for an option, although its device could have some; empty if it has them."""
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


class Capability(msgspec.Struct, frozen=True):
    """The effect of one option on one device."""

    supported: bool
    text: str
    """The recorded data, or the reason for none."""
    needs: tuple[str, ...] = ()
    """Frameworks of which one is needed."""
    hint: str = ""
    """The source that gives it without them, in words."""
    caveat: str = ""
    """Data of MindSpore that are not as exact as they look, where MindSpore is imported."""


def _same(capability: Capability) -> Mapping[str, Capability]:
    return dict.fromkeys(DEVICES, capability)


def _cores(what: str, cpu: Capability, gpu: Capability) -> Mapping[str, Capability]:
    msprof = Capability(False, f"{what} are read by CANN's msprof, which stepscope does not drive")
    return {"CPU": cpu, "GPU": gpu, "Ascend": msprof}


_ALLOWED = "where perf_event_open is allowed"
_CUPTI = Capability(False, "counters of a GPU's cores are read by CUPTI, which stepscope does not drive")


_STACKS = Capability(
    True, "stacks of Python functions, sampled 200 times a second: in the timeline, and as folded stacks"
)
_OPERATORS = "MindSpore's operators on the host, torch's operators, and what the program marks itself"
_LATE = (
    "MindSpore is not waited for between steps, so what a graph launches behind its call may lie in the step after, or in "
    "none where a window ends"
)
_COLLECTIVES = "when and how long collectives ran in each step, in communication.json"

CAPABILITIES: Final[Mapping[str, Mapping[str, Capability]]] = {
    "op_time": {
        "CPU": Capability(True, _OPERATORS),
        "GPU": Capability(True, f"{_OPERATORS}; kernels through torch", caveat=_LATE),
        "Ascend": Capability(
            True, f"{_OPERATORS}; kernels on the device are missing", caveat=f"{_LATE}; kernels on the device are missing"
        ),
    },
    "record_shapes": _same(
        Capability(True, "shapes of inputs, where MindSpore names its operators one by one (graph mode), and torch's",
                   ("mindspore", "torch"))
    ),
    "with_stack": _same(_STACKS),
    "profile_memory": {
        "CPU": Capability(
            True,
            "resident memory of the process, MindSpore's memory pool, and torch's allocations: over time, and peak and end of "
            "each step",
        ),
        "GPU": Capability(
            True,
            "resident memory of the process, over time and by step, and torch's allocations on the device; MindSpore's are "
            "missing",
        ),
        "Ascend": Capability(
            True, "resident memory of the process, over time and by step; memory of the device is missing"
        ),
    },
    "profile_communication": {
        "CPU": Capability(
            True,
            f"{_COLLECTIVES}: torch.distributed's, and MindSpore's own; bytes where shapes are recorded, waiting if all ranks are analysed together",
            ("mindspore", "torch"),
        ),
        "GPU": Capability(True, f"{_COLLECTIVES}: torch.distributed's only; bytes where shapes are recorded, waiting if all ranks are analysed together", ("torch",)),
        "Ascend": Capability(False, "collectives of HCCL are read by CANN's msprof, which stepscope does not drive"),
    },
    "parallel_strategy": _same(Capability(True, "ranks, launcher, and sizes and groups of the parallel layout, as JSON: as declared, of torch.distributed, and MindSpore's parallel context")),
    "profile_framework": _same(Capability(True, "every span of the host as a table in host_info")),
    "data_process": _same(
        Capability(
            True,
            "waiting for the next batch: of MindSpore's datasets, of torch's DataLoader, in callbacks, and around "
            "`watch_data(loader)`; queues and workers of MindSpore's data pipeline and of a DataLoader; the use of processors",
            ("mindspore", "torch"),
            "callbacks and `watch_data(loader)` record it all the same",
        )
    ),
    "mstx": _same(Capability(True, "marks and ranges, as instants and spans of the host")),
    "aicore_metrics": _cores(
        "aicore_metrics",
        Capability(
            True,
            "counters of the processor for this process in place of an Ascend core's: instructions and cycles for "
            "PipeUtilization and ArithmeticUtilization, branches and their misses for ResourceConflictRatio, references "
            f"and misses of the caches for the others; {_ALLOWED}",
        ),
        _CUPTI,
    ),
    "l2_cache": _cores(
        "hits and misses of the L2 cache",
        Capability(True, f"references and misses of the processor's last cache, for this process; {_ALLOWED}"),
        _CUPTI,
    ),
    "hbm_ddr": _cores(
        "rates of HBM and DDR",
        Capability(False, "rates of DDR are counters of memory controllers, which do not know of processes"),
        Capability(True, "the share of the time in which each device's memory was read or written, by NVML"),
    ),
    "pcie": {
        "CPU": Capability(False, "pcie counts what goes to a device; there is none"),
        "GPU": Capability(True, "bytes in a second to and from each device, by NVML"),
        "Ascend": Capability(False, "pcie is read by CANN's msprof, which stepscope does not drive"),
    },
    "sync_enable": {
        "CPU": Capability(False, "sync_enable=False changes nothing: operators of a CPU are timed where they run"),
        "GPU": Capability(
            True,
            "kernels are timed on the device, by torch; with sync_enable=False they are left out, and torch's operators take the "
            "time of their launch on the host",
            ("torch",),
        ),
        "Ascend": Capability(False, "sync_enable=False changes nothing: it is for GPUs"),
    },
    "env_enable": _same(
        Capability(False, "MS_PROFILER_OPTIONS is followed when stepscope.mindspore is imported, whatever this says")
    ),
    "sys_io": _same(Capability(True, "bytes in a second of network cards and InfiniBand, as counters")),
    "sys_interconnection": {
        "CPU": Capability(False, "sys_interconnection counts what goes between devices; there are none"),
        "GPU": Capability(True, "bytes in a second over NVLink to and from each device, by NVML"),
        "Ascend": Capability(False, "links between devices are read by CANN's msprof, which stepscope does not drive"),
    },
    "host_sys": _same(
        Capability(
            True,
            "counters of /proc, of the host and of this process: use of processors, memory, disks and network; for `osrt`, "
            "how often the process was preempted, waited, and found a page missing",
        )
    ),
    "export_type": _same(Capability(False, "ExportType.Db is not written; `stepscope convert` makes Parquet files")),
    "gpu": {
        "CPU": Capability(False, "no GPU is in use"),
        "GPU": Capability(True, "kernels, if torch has the GPU; without them with activities=[ProfilerActivity.CPU]", ("torch",)),
        "Ascend": Capability(False, "no GPU is in use"),
    },
    "npu": {
        "CPU": Capability(False, "no NPU is in use"),
        "GPU": Capability(False, "no NPU is in use"),
        "Ascend": Capability(False, "the device's own data are read by CANN's msprof, which stepscope does not drive"),
    },
}  # fmt: skip
"""Capabilities by option and device. `npu` and `gpu` are activities that were requested by name."""


def limits(requested: Iterable[str], target: DeviceTarget) -> tuple[str, ...]:
    """A sentence for each option, as `ProfilerOptions.requested` names them, that cannot be followed here."""
    sentences: list[str] = []
    for name in requested:
        table = CAPABILITIES.get(name)
        if table is None:
            continue
        capability = table[target.device]
        if not capability.supported:
            sentences.append(f"{name} gives nothing on {target.device}: {capability.text}")
        elif capability.needs and not set(capability.needs) & set(target.frameworks):
            hint = f"; {capability.hint}" if capability.hint else ""
            needs = " or ".join(capability.needs)
            sentences.append(f"{name} gives nothing without {needs}, which is not imported yet{hint}")
        elif why := counters_refusal(name, target):
            sentences.append(f"{name} gives nothing on {target.device}: {why}")
        elif capability.caveat and "mindspore" in target.frameworks:
            sentences.append(f"{name} on {target.device}: {capability.caveat}")
    return tuple(sentences)


def markdown() -> str:
    """The table for the documentation."""
    lines = ["| option | " + " | ".join(DEVICES) + " |", "| --- |" + " --- |" * len(DEVICES)]
    for name, table in CAPABILITIES.items():
        cells = [("" if table[device].supported else "**no**: ") + table[device].text for device in DEVICES]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)
