"""Single steps that are slow, without a period."""

from __future__ import annotations

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.job import Job
from stepscope.analysis.measures.single_slow_steps import slow_steps_of
from stepscope.runtime.display.text_table import human_count


def check(job: Job) -> list[Finding]:
    """Finds steps that take several times the median, if they are few, cost much, and it is known what differs in them."""
    slow = slow_steps_of(job)
    if slow is None or slow.period:
        return []
    action = "move what these steps do out of the loop, or do it less often"
    title = f"{human_count(len(slow.numbers), 'slow step')} cost {slow.cost:.0%} of the time: {slow.each} each."
    return [slow.finding("slow-steps", title, action)]
