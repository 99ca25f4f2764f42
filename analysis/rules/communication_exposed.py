"""Communication without computation beside it."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.device_times import device_times
from stepscope.analysis.measures.evidence import steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.thresholds import FINDING
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Device


def check(job: Job) -> list[Finding]:
    """Checks the median rank, which stands for all; the evidence has the range over the ranks."""
    uses = sorted(device_times(job), key=lambda use: use.exposed)
    if not uses or (use := uses[(len(uses) - 1) // 2]).exposed < FINDING:
        return []
    step = float(np.median(use.took))
    evidence = [
        f"collectives run {human_time(use.ns(Device.COMMUNICATION))} of each step with no other kernel beside them; "
        "that includes waiting for ranks that come later"
    ]
    if len(uses) > 1:
        evidence.append(f"by rank it is {uses[0].exposed:.0%} to {uses[-1].exposed:.0%}")
    return [
        Finding(
            id="communication-exposed",
            title=f"Communication without computation beside it takes {use.exposed:.0%} of each step.",
            cost=use.exposed,
            cost_ns=use.exposed * step,
            evidence=tuple(evidence),
            action="overlap it with computation: larger buckets, FSDP prefetch, gradient accumulation",
            gain=f"up to {human_time(use.exposed * step)} of each step",
            certainty="certain" if len(uses) > 1 else "likely",
            steps=steps_with_most(use.steps, use.device[:, Device.COMMUNICATION]),
        )
    ]
