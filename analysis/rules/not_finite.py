"""Losses, gradients or parameters that are no numbers."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import EventReference, Finding
from stepscope.analysis.measures.job import Job

LEARNT_FROM = ("loss", "grad", "norm", "weight", "param")
"""Parts of names of counters without which nothing is learnt."""


def learns_nothing(name: str) -> str:
    """The end of the title: the consequence for a value that the training learns from, else nothing."""
    return ": the training learns nothing" if any(part in name.lower() for part in LEARNT_FROM) else ""


def check(job: Job) -> list[Finding]:
    """Finds counters that were given NaN or infinity."""
    found: list[Finding] = []
    for rank in job.ranks:
        for name, ts in rank.not_finite.items():
            index = int(np.searchsorted(rank.facts["begin"], ts, side="right")) - 1
            step = int(rank.facts["step"][max(index, 0)]) if len(rank.facts) else 0
            found.append(
                Finding(
                    id="not-finite",
                    title=f"{name!r} is NaN or infinite from step {step} on{learns_nothing(name)}.",
                    evidence=(f"step {step} is the first with such a value",),
                    action="a lower learning rate, gradient clipping, or torch.autograd.set_detect_anomaly(True) around that step",
                    gain="the run is not in vain",
                    certainty="certain",
                    steps=(step,),
                    events=(EventReference(name, ts, 0, rank.rank),),
                )
            )
    return found[:1]
