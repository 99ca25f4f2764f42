"""All rows, in the order of the table."""

from __future__ import annotations

from benchmarks import (
    closing,
    collector,
    flight,
    front_doors,
    governor,
    idle,
    json_export,
    memory,
    merge,
    native_export,
    neighbours,
    operators,
    otlp,
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
    *native_export.ROWS,
    *otlp.ROWS,
    *merge.ROWS,
    *summary.ROWS,
    *training.ROWS,
    *neighbours.ROWS,
    *governor.ROWS,
    *closing.ROWS,
    *collector.ROWS,
    *front_doors.ROWS,
    *startup.ROWS,
)
