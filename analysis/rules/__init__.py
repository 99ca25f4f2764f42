"""Rules: each is a function `check_<rule>`, which sees summaries and returns findings; it shows nothing.

docs/rules.md says of each what it needs, finds, and from when on.
"""

from __future__ import annotations

from collections.abc import Callable

from stepscope.analysis.findings import Finding
from stepscope.analysis.rules import (
    data,
    devices,
    event_loops,
    memory,
    operators,
    processors,
    python_code,
    ranks,
    slow_steps,
)
from stepscope.analysis.rules.evidence import Job

Rule = Callable[[Job], list[Finding]]

RULES_OF_STEPS: tuple[Rule, ...] = (
    data.check_input_bound,
    data.check_data_pipeline,
    data.check_slow_item,
    ranks.check_slow_rank,
    ranks.check_uneven_work,
    ranks.check_many_collectives,
    ranks.check_object_collectives,
    slow_steps.check_periodic_stall,
    slow_steps.check_slow_steps,
    slow_steps.check_workers_restart,
    slow_steps.check_recompiles,
    memory.check_memory_grows,
    memory.check_garbage_collection,
    operators.check_tiny_operators,
    operators.check_value_read_back,
    operators.check_slow_optimizer,
    processors.check_processors_contended,
    processors.check_interpreter_lock,
    python_code.check_slow_backward_hook,
    python_code.check_anomaly_detection,
    python_code.check_text_of_tensors,
    python_code.check_forced_writes,
    python_code.check_saves_and_logs,
    python_code.check_python_between_operators,
    memory.check_not_finite,
    devices.check_device_idle,
    devices.check_communication_exposed,
    devices.check_copies_exposed,
)
"""Rules that judge steps. They are checked only if there are `FEWEST_STEPS` or more."""

RULES_OF_TASKS: tuple[Rule, ...] = (
    event_loops.check_loop_blocked,
    event_loops.check_tasks_never_end,
    event_loops.check_tasks_pile_up,
    event_loops.check_queue_grows,
)
