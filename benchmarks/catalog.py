"""All rows, in the order of the table."""

from __future__ import annotations

from benchmarks import (
    closing,
    flight,
    governor,
    idle,
    json_export,
    memory,
    operators,
    span,
    startup,
    step,
    summary,
    tasks,
    training,
    window_end,
)

ROWS = (
    *span.ROWS,
    *tasks.ROWS,
    *idle.ROWS,
    *step.ROWS,
    *flight.ROWS,
    *operators.ROWS,
    *window_end.ROWS,
    *memory.ROWS,
    *json_export.ROWS,
    *summary.ROWS,
    *training.ROWS,
    *governor.ROWS,
    *closing.ROWS,
    *startup.ROWS,
)
