"""All rows, in the order of the table."""

from __future__ import annotations

from benchmarks import idle, operators, span, step, window_end

ROWS = (*span.ROWS, *idle.ROWS, *step.ROWS, *operators.ROWS, *window_end.ROWS)
