"""The use of processors while data are prepared: of the machine, of the process, and of the operators of MindSpore's data pipeline."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.backends.counters.host import HostBackend
from stepscope.backends.pipeline_events import CATEGORY
from stepscope.compat.mindspore.output_files import write_json
from stepscope.compat.mindspore.products.base import Product, readings
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Window

_SERIES = np.dtype([("ts", np.int64), ("value", np.float64)])
_OPERATOR = re.compile(r"(.*\(id=([0-9]+)\)) system")
_NEEDED = {"host user %", "host processors"}


class ProcessorUse(Product):
    """Writes `minddata_cpu_utilization_<n>.json` with MindSpore's keys, of the counters of `HostBackend` and of MindSpore's samples of
    its data pipeline.

    Times are those of MindSpore's samples, else those of the counters. A value is measured from its time on.
    """

    name = "processor use"

    def __init__(self, directory: Path, device: int) -> None:
        self._path = directory / f"minddata_cpu_utilization_{device}.json"
        self._readings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        self._anchor = ClockAnchor(0, 0, 0)

    async def open(self, run: Run) -> None:
        self._anchor = run.anchor

    async def add(self, batch: EventBatch) -> None:
        for name, found in readings(batch.events, HostBackend.category, CATEGORY):
            self._readings[name] += found

    async def finish(self, window: Window) -> tuple[Path, ...]:
        if not self._readings.keys() >= _NEEDED:
            return ()
        series = {name: np.array(sorted(found), _SERIES) for name, found in self._readings.items()}
        operators = {int(match[2]): match[1] for name in series if (match := _OPERATOR.fullmatch(name))}
        first = f"{operators[min(operators)]} system" if operators else "host user %"
        at = series[first]["ts"]

        def value(name: str) -> NDArray[np.float64]:
            """The values of a counter at these times; not a number where it was not recorded."""
            if name not in series:
                return np.full(len(at), np.nan)
            newest = np.searchsorted(series[name]["ts"], at, "right") - 1
            values: NDArray[np.float64] = series[name]["value"][np.maximum(newest, 0)]
            return values

        lengths = np.diff(at, append=max(window.end_ns, int(at[-1])))
        available, used = (value(f"host memory {what}") / 2**20 for what in ("available", "used"))
        found: dict[str, Any] = {
            "cpu_processor_num": int(series["host processors"]["value"][-1]),
            "device_info": _whole(
                context_switch_count=value("host context switches /s") * lengths / 1e9,
                idle_utilization=value("host idle %"),
                io_utilization=value("host waiting for disks %"),
                runnable_process=value("host runnable threads"),
                sys_utilization=value("host system %"),
                user_utilization=value("host user %"),
            ),
            "op_info": [
                {"metrics": _use(value(f"{name} processor"), value(f"{name} system")), "op_id": number}
                for number, name in sorted(operators.items())
            ],
            "process_info": _whole(sys_utilization=value("process system %"), user_utilization=value("process user %")),
            "process_memory_info": _whole(rss_mbytes=value("process memory") / 2**20),
            "sampling_interval": max(round(float(np.median(lengths)) / 1e6), 1),
            "system_memory_info": _whole(
                available_sys_memory_mbytes=available,
                total_sys_memory_mbytes=available + used,
                used_sys_memory_mbytes=used,
            ),
            "time_stamp": [self._anchor.wall(ts) // 1_000_000 for ts in at.tolist()],
        }
        return (write_json(self._path, found),)


def _use(whole: NDArray[np.float64], system: NDArray[np.float64]) -> dict[str, list[int]]:
    return _whole(sys_utilization=system, user_utilization=whole - system)


def _whole(**columns: NDArray[np.float64]) -> dict[str, list[int]]:
    """Whole numbers, as MindSpore writes them; columns that were not recorded are left out."""
    return {
        key: np.rint(column).astype(np.int64).tolist() for key, column in columns.items() if np.isfinite(column).all()
    }
