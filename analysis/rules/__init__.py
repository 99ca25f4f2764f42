"""Rules, one in each file, which has the name of its rule. A rule sees summaries, and returns findings; it shows nothing."""

from __future__ import annotations

from stepscope.analysis.job import Rule
from stepscope.analysis.rules import (
    communication_exposed,
    copies_exposed,
    data_pipeline,
    device_idle,
    forced_writes,
    garbage_collection,
    input_bound,
    interpreter_lock,
    loop_blocked,
    memory_grows,
    not_finite,
    periodic_stall,
    processors_contended,
    python_between_operators,
    queue_grows,
    slow_backward_hook,
    slow_item,
    slow_rank,
    slow_steps,
    tasks_never_end,
    tiny_operators,
    uneven_work,
    value_read_back,
)

RULES: tuple[Rule, ...] = (
    input_bound.RULE,
    data_pipeline.RULE,
    slow_item.RULE,
    slow_rank.RULE,
    uneven_work.RULE,
    periodic_stall.RULE,
    slow_steps.RULE,
    memory_grows.RULE,
    garbage_collection.RULE,
    tiny_operators.RULE,
    value_read_back.RULE,
    processors_contended.RULE,
    interpreter_lock.RULE,
    slow_backward_hook.RULE,
    forced_writes.RULE,
    python_between_operators.RULE,
    not_finite.RULE,
    device_idle.RULE,
    communication_exposed.RULE,
    copies_exposed.RULE,
    loop_blocked.RULE,
    tasks_never_end.RULE,
    queue_grows.RULE,
)
"""All of them."""
