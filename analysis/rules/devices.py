"""Devices that idle, or communicate or copy without computing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.findings import DeviceAnswer, Finding
from stepscope.analysis.rules.evidence import Job, steps_with_most
from stepscope.analysis.rules.processors import machine_use
from stepscope.analysis.tables.data_pipeline import all_busy
from stepscope.analysis.tables.devices import NAMES, Activity, meanwhile_of
from stepscope.analysis.tables.rank_summary import RankSummary, durations
from stepscope.analysis.thresholds import DEVICE_IDLE, FINDING, OPTIMIZER_LAUNCHES
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.windows.step_facts import Device, Facts, Phase


class DeviceTimes:
    """Times of the kinds of work of one rank's devices, by step. Any stream of any device counts."""

    def __init__(self, rank: RankSummary, steps: Facts) -> None:
        self.rank, self.steps, self.took = rank, steps, durations(steps)
        self.device: NDArray[np.int64] = steps["device"]

    def ns(self, *which: Device) -> float:
        """ns of a step in which they did any of these, by the median."""
        return float(np.median(self.device[:, list(which)].sum(axis=1)))

    @property
    def idle(self) -> float:
        """Share of the step in which all devices idle, by the median."""
        return float(np.median((self.took - self.device.sum(axis=1)) / self.took))

    def share(self, which: Device) -> float:
        """Share of the step in which they do this, by the median."""
        return float(np.median(self.device[:, which] / self.took))


def median_rank(job: Job, share: Callable[[DeviceTimes], float]) -> tuple[DeviceTimes | None, list[str]]:
    """The times of the rank that stands for all, as it has the median of a share, and evidence on the range if there are several.

    Of ranks with devices, and of the windows in which devices were recorded; `None` without any.
    """
    found: list[DeviceTimes] = []
    for rank in job.ranks:
        steps: Any = rank.judged_steps
        windows = np.unique(steps["window"][steps["device"].any(axis=1)])
        steps = steps[np.isin(steps["window"], windows) & (durations(steps) > 0)]
        if len(steps):
            found.append(DeviceTimes(rank, steps))
    if not found:
        return None, []
    found.sort(key=share)
    several = [f"by rank it is {share(found[0]):.0%} to {share(found[-1]):.0%}"] if len(found) > 1 else []
    return found[(len(found) - 1) // 2], several


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


def check_device_idle(job: Job) -> list[Finding]:
    """Checks the median rank, which stands for all; the evidence has the range over the ranks."""
    use, by_rank = median_rank(job, lambda use: use.idle)
    if use is None:
        return []
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
    return [
        Finding(
            id="device-idle",
            title=f"{'All devices of a process idle' if several else 'The device idles'} {use.idle:.0%} of each step.",
            cost=use.idle,
            cost_ns=use.idle * step,
            evidence=(*evidence, *by_rank),
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


def check_communication_exposed(job: Job) -> list[Finding]:
    """Checks the median rank, which stands for all; the evidence has the range over the ranks."""
    use, by_rank = median_rank(job, lambda use: use.share(Device.COMMUNICATION))
    if use is None or (share := use.share(Device.COMMUNICATION)) < FINDING:
        return []
    step = float(np.median(use.took))
    return [
        Finding(
            id="communication-exposed",
            title=f"Communication without computation beside it takes {share:.0%} of each step.",
            cost=share,
            cost_ns=share * step,
            evidence=(
                f"collectives run {human_time(use.ns(Device.COMMUNICATION))} of each step with no other kernel beside them; "
                "that includes waiting for ranks that come later",
                *by_rank,
            ),
            action="overlap it with computation: larger buckets, FSDP prefetch, gradient accumulation",
            gain=f"up to {human_time(share * step)} of each step",
            certainty="certain" if by_rank else "likely",
            steps=steps_with_most(use.steps, use.device[:, Device.COMMUNICATION]),
        )
    ]


PINNED = "DataLoader(..., pin_memory=True), or .pin_memory() once for memory that is used again; and .to(device, non_blocking=True)"
OVERLAP = "copy the next batch on a stream of its own while this one is computed, with non_blocking=True; or copy less"


def check_copies_exposed(job: Job) -> list[Finding]:
    """Checks the median rank, which stands for all."""
    use, _ = median_rank(job, lambda use: use.share(Device.COPY))
    if use is None or (share := use.share(Device.COPY)) < FINDING:
        return []
    step = float(np.median(use.took))
    copies = [each for device in use.rank.devices for each in device.copies]
    most = max(copies, key=lambda each: each.ns, default=None)
    pageable = most is not None and "pageable" in most.name.lower()
    evidence = [f"copies run {human_time(share * step)} of each step of {human_time(step)} with no kernel beside them"]
    if most is not None:
        evidence.append(f"most of it is {most.name}: {human_time(most.ns)} in {human_count(most.count, 'transfer')}")
    if pageable:
        evidence.append("memory that is not pinned is copied twice, and the host waits for that")
    return [
        Finding(
            id="copies-exposed",
            title=f"The device copies, and computes nothing beside it, for {share:.0%} of each step.",
            cost=share,
            cost_ns=share * step,
            evidence=tuple(evidence),
            action=PINNED if pageable else OVERLAP,
            gain=f"up to {human_time(share * step)} of each step",
            certainty="certain",
            steps=steps_with_most(use.steps, use.device[:, Device.COPY]),
        )
    ]
