"""A loop that waits until what it writes is on the disk."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.findings import Finding, Place
from stepscope.analysis.measures.evidence import longest, place_of_calls, places, steps_with_most
from stepscope.analysis.measures.job import Job
from stepscope.analysis.tables.rank_summary import RankSummary, durations
from stepscope.analysis.thresholds import FINDING
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Phase


def check(job: Job) -> list[Finding]:
    """Finds time in `os.fsync` and `os.fdatasync`."""
    rank = job.main
    took, waits = durations(rank.judged_steps), rank.phase(Phase.FORCED_WRITE)
    cost = float(np.median(waits)) / float(np.median(took))
    if cost < FINDING:
        return []
    calls = rank.calls[Phase.FORCED_WRITE]
    place = place_of_calls(calls)
    spent = human_time(float(np.median(waits)))
    evidence = [
        f"os.fsync and os.fdatasync take {spent} of a median step of {human_time(rank.step_ns)}, and more than {FINDING:.0%} in "
        f"{int((waits > FINDING * took).sum())} of {len(took)} steps"
    ]
    if place is not None:
        evidence.append(f"{place.share:.0%} of that is called in {place}")
    return [forced_writes(rank, cost, evidence, place, f"about {spent} of each step", "certain")]


def forced_writes(
    rank: RankSummary, cost: float, evidence: list[str], place: Place | None, gain: str, certainty: str
) -> Finding:
    """The finding, by whatever it was found."""
    return Finding(
        id="forced-writes",
        title=f"The loop waits for the disk {cost:.0%} of each step.",
        cost=cost,
        cost_ns=cost * rank.step_ns,
        evidence=(*evidence, f"a step writes {written_bytes(rank) / 1e3:,.0f} kB"),
        action="call fsync and flush less often, or write on another thread",
        gain=gain,
        certainty=certainty,
        steps=steps_with_most(rank.judged_steps, rank.phase(Phase.FORCED_WRITE)),
        events=longest(rank, rank.calls[Phase.FORCED_WRITE]),
        places=places(place),
    )


def written_bytes(rank: RankSummary) -> float:
    """Bytes that a step writes, at the median; 0 if that was not read."""
    written = rank.judged_steps["written_bytes"]
    return float(np.nanmedian(written)) if np.isfinite(written).any() else 0.0
