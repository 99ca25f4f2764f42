"""The files that MindSpore's recorder of data pipelines writes.

Formats as written by MindSpore 2.0 to 2.10: `pipeline_profiling_<n>.json` has the operators of the pipeline, each with the lengths of its
output queue at each sample; `minddata_cpu_utilization_<n>.json` how much of a processor each operator used, and the times of
the samples; `dataset_iterator_profiling_<n>.txt` a few lines for each batch: `0 <what> <batch> <ms> <time>`, where 0 is the time that the
iterator waited for the pipeline and 1 the time of handing the batch on, and `1 <capacity> <batch> <length> <time>` for the queue that the
iterator takes batches from. `device_queue_profiling_<n>.txt` has the same lines where batches go to a device. Times are ms of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec


class OutputQueue(msgspec.Struct, frozen=True):
    """The queue of an operator's results."""

    length: int
    """Of the queue, at most."""
    size: tuple[int, ...]
    """At each sample."""


class _Metrics(msgspec.Struct, frozen=True):
    output_queue: OutputQueue | None = None


class DataOperator(msgspec.Struct, frozen=True):
    """An operator of a pipeline."""

    op_id: int
    op_type: str
    num_workers: int
    children: tuple[int, ...] = ()
    """Numbers of the operators that it takes its input from."""
    metrics: _Metrics | None = None

    @property
    def queue(self) -> OutputQueue | None:
        """Its output queue; `None` for operators that run inside of another."""
        return None if self.metrics is None else self.metrics.output_queue


class Pipeline(msgspec.Struct, frozen=True):
    """The contents of `pipeline_profiling_<n>.json`."""

    op_info: tuple[DataOperator, ...]
    sampling_interval: int
    """ms."""


class _Use(msgspec.Struct, frozen=True):
    sys_utilization: tuple[float, ...]
    user_utilization: tuple[float, ...]


class _OperatorUse(msgspec.Struct, frozen=True):
    op_id: int
    metrics: _Use


class ProcessorUse(msgspec.Struct, frozen=True):
    """The contents of `minddata_cpu_utilization_<n>.json`, as far as they are used."""

    op_info: tuple[_OperatorUse, ...]
    time_stamp: tuple[int, ...]
    """Times of the samples, ms."""

    def of(self, operator: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Percent of one processor that an operator used at each sample, and the part of it in the system."""
        for each in self.op_info:
            if each.op_id == operator:
                system = each.metrics.sys_utilization
                return tuple(map(sum, zip(system, each.metrics.user_utilization, strict=False))), system
        return (), ()


class BatchTimes(msgspec.Struct):
    """The lines of one batch."""

    at_ms: int
    number: int
    waited_ms: int = 0
    """The time that the iterator waited for the pipeline."""
    handed_on_ms: int = 0
    """The time of handing the batch on, to a device or to Python."""
    queued: int = -1
    """Batches in the queue that it came from; -1 where that is not known."""


def read_pipeline(directory: Path) -> Pipeline | None:
    """The operators; `None` where no pipeline was recorded.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is of another form.
    """
    path = _newest(directory, "pipeline_profiling_*.json")
    return None if path is None else msgspec.json.decode(path.read_bytes(), type=Pipeline)


def read_processor_use(directory: Path) -> ProcessorUse | None:
    """The use of processors; `None` without the file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is of another form.
    """
    path = _newest(directory, "minddata_cpu_utilization_*.json")
    return None if path is None else msgspec.json.decode(path.read_bytes(), type=ProcessorUse)


def read_batches(directory: Path) -> Iterator[BatchTimes]:
    """The batches, in the order of the file; lines of another form are left out.

    Raises:
        OSError: if the file cannot be read.
    """
    path = _newest(directory, "device_queue_profiling_*.txt") or _newest(directory, "dataset_iterator_profiling_*.txt")
    batch: BatchTimes | None = None
    for line in [] if path is None else path.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        if len(fields) != 5 or not all(field.lstrip("-").isdigit() for field in fields):
            continue
        kind, what, number, value, at = map(int, fields)
        if batch is not None and batch.number != number:
            yield batch
            batch = None
        batch = batch or BatchTimes(at, number)
        if kind == 1:
            batch.queued = value
        elif what == 0:
            batch.waited_ms = value
        elif what == 1:
            batch.handed_on_ms = value
    if batch is not None:
        yield batch


def _newest(directory: Path, pattern: str) -> Path | None:
    """The file of a pattern that was written last."""
    return max(directory.glob(pattern), key=lambda path: path.stat().st_mtime_ns, default=None)
