"""Devices that idle."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import DeviceAnswer, Finding
from stepscope.analysis.measures.device_times import device_times
from stepscope.analysis.measures.evidence import steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.processors import machine_use
from stepscope.analysis.tables.data_pipeline import all_busy
from stepscope.analysis.tables.devices import NAMES, Activity, meanwhile_of
from stepscope.analysis.thresholds import DEVICE_IDLE, FINDING, OPTIMIZER_LAUNCHES
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Device, Phase

FEWER_KERNELS = (
    "larger batches, fewer and larger kernels (torch.compile, CUDA graphs), or less work on the host between launches"
)
BATCHED_OPTIMIZERS = ("aten::_fused_", "aten::_foreach_add_", "aten::_foreach_addc")
"""Operators of optimizers that work on many parameters at once."""
ACTIONS = {
    NAMES[Activity.SYNCHRONISING]: "wait for the device less often: .item(), .cpu(), printing a tensor, synchronize()",
    NAMES[Activity.DATA]: "a quicker loader: more workers (num_workers), prefetch_factor, less work for each item",
    NAMES[Activity.COLLECTION]: "collect garbage less often: gc.freeze() before the loop, gc.disable() in it",
    NAMES[Activity.CHECKPOINT]: "write checkpoints beside the training, or less often",
    NAMES[
        Activity.RUNTIME
    ]: "find out why the loop calls the device's runtime: allocating memory and emptying caches are such calls",
}
"""Changes to try, by the host's longest activity while the device idled."""


def check(job: Job) -> list[Finding]:
    """Checks the median rank, which stands for all; the evidence has the range over the ranks."""
    uses = sorted(device_times(job), key=lambda use: use.idle)
    if not uses:
        return []
    use = uses[(len(uses) - 1) // 2]
    device = max(use.rank.devices, key=lambda device: device.idle, default=None)
    if use.idle < DEVICE_IDLE and not _one_cause(device):
        return []
    step = float(np.median(use.took))
    several = len(use.rank.devices) > 1
    copies = use.ns(Device.COPY)
    evidence = [
        f"kernels take {human_time(use.ns(Device.COMPUTE, Device.COMMUNICATION))} of a step of {human_time(step)}"
        + (f", and copies beside them {human_time(copies)}" if copies else "")
    ]
    action = FEWER_KERNELS
    if device is not None and device.meanwhile:
        evidence.append(f"while it idles, the host is in: {meanwhile_of(device)}")
        action = ACTIONS.get(device.meanwhile[0].name, FEWER_KERNELS)
        if device.meanwhile[0].name == NAMES[Activity.DATA] and (why := all_busy(machine_use(use.rank))):
            action = f"less work of the loader for each item: {why}"
    optimizer = float(np.median(use.steps["phases"][:, Phase.OPTIMIZER] / use.took))
    if optimizer >= OPTIMIZER_LAUNCHES and not use.rank.row(*BATCHED_OPTIMIZERS):
        evidence.append(
            f"the optimizer, which works on one parameter after the other, takes {human_time(optimizer * step)}"
        )
        action = f"an optimizer with fused=True or foreach=True; {FEWER_KERNELS}"
    if len(uses) > 1:
        evidence.append(f"by rank it is {uses[0].idle:.0%} to {uses[-1].idle:.0%}")
    return [
        Finding(
            id="device-idle",
            title=f"{'All devices of a process idle' if several else 'The device idles'} {use.idle:.0%} of each step.",
            cost=use.idle,
            cost_ns=use.idle * step,
            evidence=tuple(evidence),
            action=action,
            gain=f"up to {human_time(use.idle * step)} of each step",
            certainty="certain",
            steps=steps_with_most(use.steps, use.took - use.device.sum(axis=1)),
        )
    ]


def _one_cause(device: DeviceAnswer | None) -> bool:
    """Whether the device idles for `FINDING` of the time while the host does one thing that can be mended by itself."""
    if device is None or not device.meanwhile:
        return False
    first = device.meanwhile[0]
    return first.name in ACTIONS and first.ns >= FINDING * device.total_ns
