"""Stalls with a period, such as checkpoints."""

from __future__ import annotations

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.single_slow_steps import slow_steps_of


def check(job: Job) -> list[Finding]:
    """Finds slow steps at equal distances, and what covers their extra time."""
    slow = slow_steps_of(job)
    if slow is None or not slow.period:
        return []
    action = "do it less often, or on another thread or process while training goes on"
    title = f"Every {slow.period} steps one takes {slow.each} longer: {slow.cost:.0%} of the time."
    return [slow.finding("periodic-stall", title, action)]
