"""Questions about the operators of a recording."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from stepscope.compat.mindspore.products.operator_table import OperatorRow
from stepscope.runtime.settings.validation import did_you_mean


def find_operators(
    rows: Sequence[OperatorRow], name: str | None, device: int | None, shape: str | None, own: int
) -> tuple[OperatorRow, ...]:
    """Rows that fit.

    Args:
        rows: all that there are.
        name: kind of an operator, or its name with or without scope; `None` for all.
        device: number of a device, `None` for all.
        shape: as rows have it, `None` for all.
        own: device of the process, to which operators of the host belong.

    Raises:
        RuntimeError: if no operator has the name; names the nearest.
    """
    found = [row for row in rows if name is None or name in (row.type, row.short, row.name)]
    if name is not None and not found:
        known = sorted({row.type for row in rows})
        raise RuntimeError(f"no operator {name!r} was recorded{did_you_mean(name, known[:50])}")
    return tuple(
        row
        for row in found
        if (device is None or device == (own if row.device is None else row.device))
        and (shape is None or shape == row.shapes)
    )


def operators_as_json(found: Mapping[str, Sequence[OperatorRow]], device: int) -> str:
    """The answer of `op_analyse`: rows by name, one for each side and shape; times in µs."""
    answer: dict[str, object] = {}
    for name, rows in found.items():
        sums: dict[tuple[str, str], list[int]] = {}
        for row in rows:
            side = "cpu" if row.device is None else "device"
            sums.setdefault((side, row.shapes), [0, 0])
            sums[side, row.shapes][0] += row.count
            sums[side, row.shapes][1] += row.total_ns
        answer[name] = [
            {
                "op_side": side,
                "input_shape": shapes,
                "op_occurrences": count,
                "op_total_time(us)": total / 1000,
                "op_avg_time(us)": total / 1000 / count,
            }
            for (side, shapes), (count, total) in sums.items()
        ]
    return json.dumps({**answer, "device_id": str(device)}, ensure_ascii=False)
