"""Rules, one kind of fault in each file. A rule sees summaries, and returns findings; nothing here is shown to anybody."""

from __future__ import annotations

from stepscope.analysis.job import Rule
from stepscope.analysis.rules import (
    asyncio_loop,
    contention,
    devices,
    garbage_collection,
    growing_memory,
    input_bound,
    not_finite,
    operators,
    program_code,
    ranks,
    slow_steps,
)

RULES: tuple[Rule, ...] = (
    *input_bound.RULES,
    *ranks.RULES,
    *slow_steps.RULES,
    *growing_memory.RULES,
    *garbage_collection.RULES,
    *operators.RULES,
    *contention.RULES,
    *program_code.RULES,
    *not_finite.RULES,
    *devices.RULES,
    *asyncio_loop.RULES,
)
"""All of them."""
