"""Copies between host and device without computation beside them."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.device_times import DeviceTimes, device_times
from stepscope.analysis.measures.evidence import steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.thresholds import FINDING
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.windows.step_facts import Device

PINNED = "DataLoader(..., pin_memory=True), or .pin_memory() once for memory that is used again; and .to(device, non_blocking=True)"
OVERLAP = "copy the next batch on a stream of its own while this one is computed, with non_blocking=True; or copy less"


def check(job: Job) -> list[Finding]:
    """Checks the median rank, which stands for all."""
    uses = sorted(device_times(job), key=_share)
    if not uses or (share := _share(use := uses[(len(uses) - 1) // 2])) < FINDING:
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


def _share(use: DeviceTimes) -> float:
    return float(np.median(use.device[:, Device.COPY] / use.took))
