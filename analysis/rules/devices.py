"""Devices that idle, and communication without computation beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.devices import NAMES, Activity, meanwhile_of
from stepscope.analysis.findings import Finding
from stepscope.analysis.job import Job, Rule
from stepscope.analysis.rank_summary import RankSummary, durations
from stepscope.analysis.thresholds import DEVICE_IDLE, FINDING
from stepscope.runtime.step_facts import Device, Facts
from stepscope.runtime.table import human_time

FEWER_KERNELS = (
    "larger batches, fewer and larger kernels (torch.compile, CUDA graphs), or less work on the host between launches"
)
ACTIONS = {
    NAMES[Activity.SYNCHRONISING]: "wait for the device less often: .item(), .cpu(), printing a tensor, synchronize()",
    NAMES[Activity.DATA]: "a quicker loader: more workers (num_workers), prefetch_factor, less work for each item",
    NAMES[Activity.COLLECTION]: "collect garbage less often: gc.freeze() before the loop, gc.disable() in it",
    NAMES[Activity.CHECKPOINT]: "write checkpoints beside the training, or less often",
    NAMES[
        Activity.RUNTIME
    ]: "find out why the loop calls the device's runtime: allocating memory and emptying caches are such calls",
}
"""What to try by what the host did most while the device idled."""


class _DeviceTimes:
    """How long the devices of one rank did what in each of its steps. Any stream of any device counts."""

    def __init__(self, rank: RankSummary, steps: Facts) -> None:
        self.rank, self.took = rank, durations(steps)
        self.device: NDArray[np.int64] = steps["device"]

    def ns(self, *which: Device) -> float:
        """ns of a step in which they did any of these, by the median."""
        return float(np.median(self.device[:, list(which)].sum(axis=1)))

    @property
    def idle(self) -> float:
        """Share of the step in which all devices idle, by the median."""
        return float(np.median((self.took - self.device.sum(axis=1)) / self.took))

    @property
    def exposed(self) -> float:
        """Share of the step in which they communicate and none computes, by the median."""
        return float(np.median(self.device[:, Device.COMMUNICATION] / self.took))


def _uses(job: Job) -> list[_DeviceTimes]:
    """The times of ranks with devices, of the windows in which devices were recorded."""
    found: list[_DeviceTimes] = []
    for rank in job.ranks:
        steps: Any = rank.judged_steps
        windows = np.unique(steps["window"][steps["device"].any(axis=1)])
        steps = steps[np.isin(steps["window"], windows) & (durations(steps) > 0)]
        if len(steps):
            found.append(_DeviceTimes(rank, steps))
    return found


def check(job: Job) -> list[Finding]:
    """Checks the median rank, which stands for all; the evidence has the range over the ranks."""
    uses = _uses(job)
    return [found for found in (_idle(uses), _exposed(uses)) if found is not None] if uses else []


def _idle(uses: list[_DeviceTimes]) -> Finding | None:
    uses = sorted(uses, key=lambda use: use.idle)
    use = uses[(len(uses) - 1) // 2]
    if use.idle < DEVICE_IDLE:
        return None
    step = float(np.median(use.took))
    several = len(use.rank.devices) > 1
    device = max(use.rank.devices, key=lambda device: device.idle, default=None)
    copies = use.ns(Device.COPY)
    evidence = [
        f"kernels take {human_time(use.ns(Device.COMPUTE, Device.COMMUNICATION))} of a step of {human_time(step)}"
        + (f", and copies beside them {human_time(copies)}" if copies else "")
    ]
    action = FEWER_KERNELS
    if device is not None and device.meanwhile:
        evidence.append(f"while it idles, the host is in: {meanwhile_of(device)}")
        action = ACTIONS.get(device.meanwhile[0].name, FEWER_KERNELS)
    if len(uses) > 1:
        evidence.append(f"by rank it is {uses[0].idle:.0%} to {uses[-1].idle:.0%}")
    return Finding(
        id="device-idle",
        title=f"{'All devices of a process idle' if several else 'The device idles'} {use.idle:.0%} of each step.",
        cost=use.idle,
        cost_ns=use.idle * step,
        evidence=tuple(evidence),
        action=action,
        gain=f"up to {human_time(use.idle * step)} of each step",
        certainty="certain",
    )


def _exposed(uses: list[_DeviceTimes]) -> Finding | None:
    uses = sorted(uses, key=lambda use: use.exposed)
    use = uses[(len(uses) - 1) // 2]
    if use.exposed < FINDING:
        return None
    step = float(np.median(use.took))
    evidence = [
        f"collectives run {human_time(use.ns(Device.COMMUNICATION))} of each step with no other kernel beside them; "
        "that includes waiting for ranks that come later"
    ]
    if len(uses) > 1:
        evidence.append(f"by rank it is {uses[0].exposed:.0%} to {uses[-1].exposed:.0%}")
    return Finding(
        id="communication-exposed",
        title=f"Communication without computation beside it takes {use.exposed:.0%} of each step.",
        cost=use.exposed,
        cost_ns=use.exposed * step,
        evidence=tuple(evidence),
        action="overlap it with computation: larger buckets, FSDP prefetch, gradient accumulation",
        gain=f"up to {human_time(use.exposed * step)} of each step",
        certainty="certain" if len(uses) > 1 else "likely",
    )


RULES = (
    Rule(
        id="devices",
        needs="kernels of devices (kineto mode)",
        finds="devices that idle, collectives without computation beside them",
        wrong_if="the device's own counters say that it is busy",
        check=check,
    ),
)
