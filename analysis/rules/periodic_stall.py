"""Stalls with a period, such as checkpoints."""

from __future__ import annotations

from stepscope.analysis.findings import Finding
from stepscope.analysis.job import Job, Rule
from stepscope.analysis.single_slow_steps import slow_steps_of
from stepscope.analysis.thresholds import PERIODIC, PERIODS_SLOW, SLOW_STEP, SLOW_STEPS_COST


def check(job: Job) -> list[Finding]:
    """Finds slow steps at equal distances, and what covers their extra time."""
    slow = slow_steps_of(job)
    if slow is None or not slow.period:
        return []
    action = "do it less often, or on another thread or process while training goes on"
    title = f"Every {slow.period} steps one takes {slow.each} longer: {slow.cost:.0%} of the time."
    return [slow.finding("periodic-stall", title, action)]


RULE = Rule(
    id="periodic-stall",
    needs="steps; stack samples, and calls that save or log, say where",
    finds="stalls with a period, such as checkpoints",
    threshold=f"steps of {SLOW_STEP:g} times the median or longer, which cost {SLOW_STEPS_COST:.0%} of the time; {PERIODS_SLOW:.0%} of the steps at "
    f"one distance are slow, and have {PERIODIC:.0%} of the extra time",
    wrong_if="the steps are as slow with what they do beside training left out",
    check=check,
)
