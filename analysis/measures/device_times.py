"""How long the devices of each rank did what in each of its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.measures.job import Job
from stepscope.analysis.tables.rank_summary import RankSummary, durations
from stepscope.runtime.windows.step_facts import Device, Facts


class DeviceTimes:
    """How long the devices of one rank did what in each of its steps. Any stream of any device counts."""

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

    @property
    def exposed(self) -> float:
        """Share of the step in which they communicate and none computes, by the median."""
        return float(np.median(self.device[:, Device.COMMUNICATION] / self.took))


def device_times(job: Job) -> list[DeviceTimes]:
    """The times of ranks with devices, of the windows in which devices were recorded."""
    found: list[DeviceTimes] = []
    for rank in job.ranks:
        steps: Any = rank.judged_steps
        windows = np.unique(steps["window"][steps["device"].any(axis=1)])
        steps = steps[np.isin(steps["window"], windows) & (durations(steps) > 0)]
        if len(steps):
            found.append(DeviceTimes(rank, steps))
    return found
