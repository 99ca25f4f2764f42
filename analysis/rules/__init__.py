"""Rules, one in each file, which has the name of its rule. A rule sees summaries, and returns findings; it shows nothing.

docs/rules.md says of each what it needs, finds, and from when on.
"""

from __future__ import annotations

from collections.abc import Callable

from stepscope.analysis.findings import Finding
from stepscope.analysis.measures.job import Job
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

Rule = Callable[[Job], list[Finding]]

RULES_OF_STEPS: tuple[Rule, ...] = (
    input_bound.check,
    data_pipeline.check,
    slow_item.check,
    slow_rank.check,
    uneven_work.check,
    periodic_stall.check,
    slow_steps.check,
    memory_grows.check,
    garbage_collection.check,
    tiny_operators.check,
    value_read_back.check,
    processors_contended.check,
    interpreter_lock.check,
    slow_backward_hook.check,
    forced_writes.check,
    python_between_operators.check,
    not_finite.check,
    device_idle.check,
    communication_exposed.check,
    copies_exposed.check,
)
"""Those that judge steps. They are checked only if there are `FEWEST_STEPS` or more."""

RULES_OF_TASKS: tuple[Rule, ...] = (loop_blocked.check, tasks_never_end.check, queue_grows.check)
