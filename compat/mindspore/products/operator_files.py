"""The tables of operators as MindSpore's files, with its columns."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from stepscope.compat.mindspore.products.base import write_csv
from stepscope.compat.mindspore.products.operator_table import OperatorRow, OperatorTable, by_type
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

DETAIL = ("op_side", "op_type", "op_name", "full_op_name", "op_occurrences", "op_total_time(ms)", "op_avg_time(ms)",
          "total_proportion", "subgraph", "pid")  # fmt: skip
TYPE = ("op_type", "type_occurrences", "execution_frequency(per-step)", "total_compute_time", "avg_time(ms)", "percent")
"""Headers of MindSpore 2.10. `total_proportion` and `percent` are shares of 1, times are ms."""


class OperatorFiles:
    """Writes `cpu_op_detail_info_<device>.csv`, `cpu_op_type_info_<device>.csv` and `operator_details.csv`.

    Args:
        directory: for the files.
        device: number in their names.
    """

    name = "operator tables"

    def __init__(self, directory: Path, device: int) -> None:
        self.table = OperatorTable()
        self._directory, self._device = directory, device
        self._pid = 0

    async def open(self, run: Run) -> None:
        self._pid = run.pid

    async def add(self, batch: EventBatch) -> None:
        self.table.add(batch)

    async def finish(self, window: Window) -> tuple[Path, ...]:
        rows = self.table.rows()
        if not rows:
            return ()
        steps = max(len(window.steps), 1)
        whole = sum(row.total_ns for row in rows) or 1
        detail = write_csv(
            self._directory / f"cpu_op_detail_info_{self._device}.csv",
            DETAIL,
            (
                (row.side, row.type, row.short, row.name, row.count, _ms(row.total_ns), _ms(row.total_ns / row.count),
                 f"{row.total_ns / whole:.6g}", row.subgraph, self._pid)
                for row in _without_shapes(rows)
            ),
        )  # fmt: skip
        types = write_csv(
            self._directory / f"cpu_op_type_info_{self._device}.csv",
            TYPE,
            (
                (kind, count, f"{count / steps:.6g}", _ms(total), _ms(total / count), f"{total / whole:.6g}")
                for kind, count, total in by_type(rows)
            ),
        )
        shaped = sorted({(row.name, row.shapes) for row in rows if row.shapes})
        shapes = (
            (write_csv(self._directory / "operator_details.csv", ("Name", "Input Shapes"), shaped),) if shaped else ()
        )
        return (detail, types, *shapes)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.6f}"


def _without_shapes(rows: list[OperatorRow]) -> list[OperatorRow]:
    sums: defaultdict[tuple[str, str, int | None], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        each = sums[row.name, row.category, row.device]
        each[0] += row.count
        each[1] += row.total_ns
    merged = [
        OperatorRow(name=name, category=category, device=device, shapes="", count=count, total_ns=total)
        for (name, category, device), (count, total) in sums.items()
    ]
    return sorted(merged, key=lambda row: (-row.total_ns, row.name))
