"""Devices that do nothing, and communication that nothing hides."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.job import Job, Rule
from stepscope.analysis.rank_summary import durations
from stepscope.analysis.thresholds import DEVICE_IDLE, FINDING
from stepscope.runtime.step_facts import Device
from stepscope.runtime.table import human_time


def look(job: Job) -> list[Finding]:
    """Union of all streams of all devices of the rank, within its steps."""
    rank = job.main
    if not len(rank.steady) or not rank.steady["device"].any():
        return []
    took = durations(rank.steady)
    device = rank.steady["device"]
    idle = took - device.sum(axis=1)
    found: list[Finding] = []
    share = float(np.median(idle / took))
    if share >= DEVICE_IDLE:
        found.append(
            Finding(
                id="device-idle",
                title=f"The device idles {share:.0%} of each step.",
                cost=share,
                cost_ns=share * rank.step_ns,
                evidence=(
                    f"of {human_time(rank.step_ns)} kernels take {human_time(float(np.median(device[:, Device.COMPUTE])))}, "
                    f"copies beside them {human_time(float(np.median(device[:, Device.COPY])))}",
                ),
                action="larger batches, fewer and larger kernels (torch.compile, CUDA graphs), or less work of the host between launches",
                gain=f"up to {human_time(share * rank.step_ns)} of each step",
                certainty="certain",
            )
        )
    exposed = device[:, Device.COMMUNICATION]
    share = float(np.median(exposed / took))
    if share >= FINDING:
        found.append(
            Finding(
                id="communication-exposed",
                title=f"Communication that nothing hides takes {share:.0%} of each step.",
                cost=share,
                cost_ns=share * rank.step_ns,
                evidence=(f"{human_time(float(np.median(exposed)))} of collectives without a kernel beside them",),
                action="overlap it: larger buckets, prefetch of FSDP, gradient accumulation",
                certainty="certain",
            )
        )
    return found


RULES = (
    Rule(
        id="devices",
        needs="kernels of devices (kineto mode)",
        finds="devices that idle, collectives without computation beside them",
        wrong_if="the device's own counters say that it is busy",
        look=look,
    ),
)
