"""Names of the events of data pipelines, which backends record and `stepscope.analysis.tables.data_pipeline` reads.

An instant `PIPELINE` has the operators as arguments: `source`, `interval_ms`, and `operators`, each with `id`, `type`, `workers`,
`children` and `capacity`, the length of its output queue. Each operator has counters `<label> queue`, the length of its queue, and
`<label> processor`, the percent of a processor that it used, and `<label> system`, the part of it in the system.
"""

from __future__ import annotations

CATEGORY = "data pipeline"
PIPELINE = "data pipeline"
"""Name of the instant."""
WAITED = "batch waited for (ms)"
"""Counter with a value for each batch."""
HANDED_ON = "batch handed on (ms)"
MOST_OPERATORS = 64
"""Operators of a pipeline that are recorded."""


def label(kind: str, number: int) -> str:
    """The name of an operator in tables, as MindSpore has it: `Map(id=2)`."""
    return f"{kind}(id={number})"
