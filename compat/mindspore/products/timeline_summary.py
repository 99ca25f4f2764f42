"""A few numbers about the timeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepscope.compat.mindspore.products.base import OPERATORS, in_categories, spans, write_json
from stepscope.compat.mindspore.products.operator_table import OperatorTable
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window


class TimelineSummary:
    """Writes `<device>_timeline_summary_<n>.json`, with the keys of MindSpore 2.0.

    `total_time` is the sum of the durations of all operators, ms; `num_of_streams` the rows on which they ran; `num_of_ops` their names;
    `op_exe_times` their runs; `max_scope_name_num` the most scopes that a name has. MindSpore 2.0 counts the operators of the CPU
    twice, so its numbers are twice these.

    Args:
        directory: for the file.
        device: `CPU`, `GPU` or `Ascend`.
        number: of the device, in the file's name.
        operators: the table of operators.
    """

    name = "timeline summary"

    def __init__(self, directory: Path, device: str, number: int, operators: OperatorTable) -> None:
        self._path = directory / f"{device.lower()}_timeline_summary_{number}.json"
        self._operators = operators
        self._rows: dict[bool, set[int]] = {True: set(), False: set()}
        """Of operators, and of all spans."""

    async def open(self, run: Run) -> None:
        pass

    async def add(self, batch: EventBatch) -> None:
        events = spans(batch.events)
        self._rows[True].update(np.unique(events["track"][in_categories(events, OPERATORS)]).tolist())
        self._rows[False].update(np.unique(events["track"]).tolist())

    async def finish(self, window: Window) -> tuple[Path, ...]:
        rows = self._operators.rows()
        if not rows:
            return ()
        summary = {
            "total_time": sum(row.total_ns for row in rows) / 1e6,
            "num_of_streams": len(self._rows[True] or self._rows[False]),
            "num_of_ops": len({row.name for row in rows}),
            "op_exe_times": sum(row.count for row in rows),
            "max_scope_name_num": max(row.name.count("/") for row in rows),
        }
        return (write_json(self._path, summary),)
