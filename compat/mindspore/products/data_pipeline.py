"""Data pipelines: queues, waits and workers of each operator, the bottleneck, and how long functions that prepare data take."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.rules.processors import use_by_counters
from stepscope.analysis.tables.data_pipeline import (
    DataPipeline,
    PipelineBuilder,
    PipelineOperator,
    advice_on,
    bottleneck_of,
)
from stepscope.analysis.tables.span_choice import SpanChoice
from stepscope.backends.counters.host import HostBackend
from stepscope.backends.pipeline_events import CATEGORY
from stepscope.compat.mindspore.output_layout import write_csv, write_json
from stepscope.compat.mindspore.products.base import Product, readings, spans
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.observers import processor_demand
from stepscope.runtime.windows.step_facts import Phase, class_of
from stepscope.runtime.windows.step_statistics import first_steps
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
        super().__init__(directory)
        self._device = device
        self._readings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)

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
                {
                    "metrics": _whole(sys_utilization=system, user_utilization=value(f"{name} processor") - system),
                    "op_id": number,
                }
                for number, name in sorted(operators.items())
                for system in (value(f"{name} system"),)
            ],
            "process_info": _whole(sys_utilization=value("process system %"), user_utilization=value("process user %")),
            "process_memory_info": _whole(rss_mbytes=value("process memory") / 2**20),
            "sampling_interval": max(round(float(np.median(lengths)) / 1e6), 1),
            "system_memory_info": _whole(
                available_sys_memory_mbytes=available,
                total_sys_memory_mbytes=available + used,
                used_sys_memory_mbytes=used,
            ),
            "time_stamp": [self.run.anchor.wall(ts) // 1_000_000 for ts in at.tolist()],
        }
        return (write_json(self.directory / f"minddata_cpu_utilization_{self._device}.json", found),)


def _whole(**columns: NDArray[np.float64]) -> dict[str, list[int]]:
    """Whole numbers, as MindSpore writes them; columns that were not recorded are left out."""
    return {
        key: np.rint(column).astype(np.int64).tolist() for key, column in columns.items() if np.isfinite(column).all()
    }


RAW = ("op_id", "op_type", "num_workers", "output_queue_size", "output_queue_average_size", "output_queue_length",
       "output_queue_usage_rate", "sample_interval", "parent_id", "children_id")  # fmt: skip
PREPARATION = ("Operation", "Stage", "Occurrences", "Avg. time (us)", "Custom Info")
"""Headers of MindSpore 2.10. `sample_interval` is ms, and `output_queue_usage_rate` a share of 1."""
STAGES = ("", "wait", "map", "worker")
"""Roles of spans, by number: nothing with data; the loop waits for a batch; a function prepares data; a worker makes a batch."""
_OF_CATEGORY = {"preprocess": 2, "loader": 3}
UNKNOWN = -1
"""Stands for a number that was not recorded, as in MindSpore's summary."""


class DataPipelineFiles(Product):
    """Writes `minddata_pipeline_raw_<n>.csv`, `minddata_pipeline_summary_<n>.csv` and `.json`, and `dataset.csv`, with MindSpore's keys.

    A DataLoader of torch has the same files; where there are several pipelines, those after the first have a number at the end.
    """

    name = "data pipeline"

    def __init__(self, directory: Path, device: int) -> None:
        super().__init__(directory)
        self._device = device
        self._builder = PipelineBuilder()
        self._times: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        self._readings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        """Readings of the counters that show how busy the processors are."""
        self._stages = SpanChoice(_stage_of, np.uint8)

    async def add(self, batch: EventBatch) -> None:
        self._builder.update(batch)
        for name, found in readings(batch.events, HostBackend.category, processor_demand.CATEGORY):
            self._readings[name] += found
        events = spans(batch.events)
        stages = self._stages.of(events)
        loading = stages > 0
        columns = (column[loading].tolist() for column in (stages, events["name"], events["dur"]))
        for stage, name, dur in zip(*columns, strict=True):
            times = self._times[strings.text(name), STAGES[stage]]
            times[0] += 1
            times[1] += dur

    async def finish(self, window: Window) -> tuple[Path, ...]:
        files: list[Path] = []
        means = {name: float(np.mean([value for _, value in found])) for name, found in self._readings.items()}
        judged = window.steps[first_steps(len(window.steps)) :]
        machine_use = use_by_counters(means, self._readings, judged[0].start_ns if judged else 0)
        for number, pipeline in enumerate(self._builder.pipelines(), 1):
            name = f"{self._device}" if number == 1 else f"{self._device}-{number}"
            raw = self.directory / f"minddata_pipeline_raw_{name}.csv"
            files.append(write_csv(raw, RAW, (_raw(pipeline, operator) for operator in pipeline.operators)))
            summary = summary_of(pipeline, machine_use)
            table = self.directory / f"minddata_pipeline_summary_{name}"
            files.append(write_json(table.with_suffix(".json"), summary))
            first, *others = ([key, *value] for key, value in summary.items())
            files.append(write_csv(table.with_suffix(".csv"), first, others))
        if self._times:
            rows = (
                (name, stage, count, f"{total / count / 1000:.2f}", "")
                for (name, stage), (count, total) in sorted(self._times.items())
            )
            files.append(write_csv(self.directory / "dataset.csv", PREPARATION, rows))
        return tuple(files)


def _stage_of(name: str, category: str) -> int:
    return 1 if class_of(name, category) == Phase.DATA else _OF_CATEGORY.get(category, 0)


def _raw(pipeline: DataPipeline, operator: PipelineOperator) -> tuple[Any, ...]:
    children = list(pipeline.queued_children(operator))
    filled = operator.filled
    return (
        operator.id,
        operator.type,
        operator.workers,
        list(operator.lengths) if operator.lengths else None,
        operator.average,
        operator.capacity or None,
        None if filled is None else filled / 100,
        pipeline.interval_ms,
        None if operator.parent < 0 else operator.parent,
        children or None,
    )


def summary_of(pipeline: DataPipeline, machine_use: float | None) -> dict[str, list[Any]]:
    """The summary, with MindSpore's keys, each with a value for each operator, or one value."""
    operators = pipeline.operators
    advice = advice_on(pipeline, machine_use)
    found: dict[str, list[Any]] = {
        "op_ids": [operator.id for operator in operators],
        "op_names": [operator.type for operator in operators],
        "pipeline_ops": [operator.label for operator in operators],
        "num_workers": [operator.workers for operator in operators],
        "queue_average_size": [_number(operator.average) for operator in operators],
        "queue_utilization_pct": [_number(operator.filled) for operator in operators],
        "queue_empty_freq_pct": [_number(operator.empty) for operator in operators],
        "children_ids": [list(operator.children) for operator in operators],
        "parent_id": [operator.parent for operator in operators],
        "avg_cpu_pct": [_number(operator.used) for operator in operators],
        "avg_cpu_pct_per_worker": [_number(operator.used_per_worker) for operator in operators],
        "per_pipeline_time": [_mean(pipeline.waited_ms)],
        "per_push_queue_time": [_mean(pipeline.handed_on_ms)],
        "cpu_analysis_details": [str(each) for each in advice if each.kind in ("workers", "idle")],
        "queue_analysis_details": [str(each) for each in advice if each.kind not in ("workers", "idle")],
    }
    bottleneck = bottleneck_of(advice)
    if bottleneck is not None:
        found["bottleneck_warning"] = [bottleneck.operator]
        found["bottleneck_suggestion"] = [str(bottleneck)]
    return {key: value for key, value in found.items() if value or not key.endswith("_details")}


def _number(value: float | None) -> float:
    return UNKNOWN if value is None else round(value, 2)


def _mean(values: tuple[float, ...]) -> float:
    return round(float(np.mean(values)), 3) if values else UNKNOWN
