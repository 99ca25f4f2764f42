"""The program's functions that autograd calls."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.evidence import steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.sampled_stacks import in_backward_hook
from stepscope.analysis.tables.rank_summary import hottest
from stepscope.analysis.thresholds import FEWEST_SAMPLES, FINDING
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Phase


def check(job: Job) -> list[Finding]:
    """Finds functions of the program that take long while backward runs."""
    rank = job.main
    samples = rank.samples_in_steps()
    hooks = [sample for sample in samples if in_backward_hook(sample)]
    if len(samples) < FEWEST_SAMPLES:
        return []
    cost = len(hooks) / len(samples)
    place = hottest(hooks)
    if cost < FINDING or place is None:
        return []
    return [
        Finding(
            id="slow-backward-hook",
            title=f"A hook in backward takes {cost:.0%} of each step: {place.function}.",
            cost=cost,
            cost_ns=cost * rank.step_ns,
            evidence=(
                f"in {len(hooks)} of {len(samples)} stack samples autograd calls Python; {place.share:.0%} of these are in {place}",
                f"backward takes {human_time(float(np.median(rank.phase(Phase.BACKWARD))))} of {human_time(rank.step_ns)}",
            ),
            action=f"make {place.function} cheaper, or call it for fewer tensors or less often",
            gain=f"about {human_time(cost * rank.step_ns)} of each step",
            certainty="certain",
            steps=steps_with_most(rank.judged_steps, rank.phase(Phase.BACKWARD)),
            places=(place,),
        )
    ]
