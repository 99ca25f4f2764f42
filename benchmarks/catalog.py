"""All rows, in the order of the table."""

from __future__ import annotations

from benchmarks.cases.analysis import explaining, summary
from benchmarks.cases.exports import journal, json_export, native_export, otlp
from benchmarks.cases.runs import closing, memory, startup
from benchmarks.cases.spans import annotating, idle, span, span_in_task, tasks
from benchmarks.cases.steps import control, flight, small_windows, step, window_end
from benchmarks.cases.streaming import collector, jetstream, merge, restart
from benchmarks.cases.training import faulty_exporters, governor, operators, replacements, training

ROWS = (
    *span.ROWS,
    *span_in_task.ROWS,
    *annotating.ROWS,
    *tasks.ROWS,
    *idle.ROWS,
    *step.ROWS,
    *control.ROWS,
    *flight.ROWS,
    *operators.ROWS,
    *window_end.ROWS,
    *memory.ROWS,
    *journal.ROWS,
    *json_export.ROWS,
    *native_export.ROWS,
    *otlp.ROWS,
    *merge.ROWS,
    *summary.ROWS,
    *explaining.ROWS,
    *training.ROWS,
    *small_windows.ROWS,
    *faulty_exporters.ROWS,
    *governor.ROWS,
    *closing.ROWS,
    *collector.ROWS,
    *restart.ROWS,
    *jetstream.ROWS,
    *replacements.ROWS,
    *startup.ROWS,
)
