"""`MindDataBackend`: MindSpore's data pipelines, by the files of MindSpore's own recorder.

Formats as written by MindSpore 2.0 to 2.10: `pipeline_profiling_<n>.json` has the operators of the pipeline, each with the lengths of its
output queue at each sample; `minddata_cpu_utilization_<n>.json` how much of a processor each operator used, and the times of
the samples; `dataset_iterator_profiling_<n>.txt` a few lines for each batch: `0 <what> <batch> <ms> <time>`, where 0 is the time that the
iterator waited for the pipeline and 1 the time of handing the batch on, and `1 <capacity> <batch> <length> <time>` for the queue that the
iterator takes batches from. `device_queue_profiling_<n>.txt` has the same lines where batches go to a device. Times are ms of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from stepscope.backends.pipeline_events import CATEGORY, HANDED_ON, MOST_OPERATORS, PIPELINE, WAITED, label
from stepscope.backends.scratch import make_scratch, remove_scratch
from stepscope.runtime import _core
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block, join_blocks
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads import locks

T = TypeVar("T")


class OutputQueue(msgspec.Struct, frozen=True):
    """The queue of an operator's results."""

    length: int
    """Capacity of the queue."""
    size: tuple[int, ...]
    """Length at each sample."""


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
        """The operator's output queue; `None` for operators that run inside of another one."""
        return None if self.metrics is None else self.metrics.output_queue


class Pipeline(msgspec.Struct, frozen=True):
    """The contents of `pipeline_profiling_<n>.json`."""

    op_info: tuple[DataOperator, ...]
    sampling_interval: int
    """Time between two samples, in ms."""


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


def _read(directory: Path, pattern: str, kind: type[T]) -> T | None:
    """Reads the newest file of a pattern; `None` without one.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is of another form.
    """
    path = _newest(directory, pattern)
    return None if path is None else msgspec.json.decode(path.read_bytes(), type=kind)


def read_batches(directory: Path) -> Iterator[BatchTimes]:
    """The batches, in the order of the file; lines of another form are left out. Raises `OSError` if the file cannot be
    read."""
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
        if kind == 0 and what == 0:
            batch.waited_ms = value
        elif kind == 0 and what == 1:
            batch.handed_on_ms = value
    if batch is not None:
        yield batch


def _newest(directory: Path, pattern: str) -> Path | None:
    """The file of a pattern that was written last."""
    return max(directory.glob(pattern), key=lambda path: path.stat().st_mtime_ns, default=None)


INTERVAL_MS = 100
"""Time between two samples, unless the program has set another one than `USUAL_INTERVAL_MS`."""
USUAL_INTERVAL_MS = 1000
"""MindSpore's default."""
ONCE = (
    "data pipelines of MindSpore are recorded once in a process, from the first recording with data_process to its end: MindSpore's "
    "recorder crashes if it is started again while a pipeline of before is alive"
)

_lock = locks.reentrant()
_used = False
"""Whether MindSpore's recorder was started in this process, or in one that it was forked from."""


class _Sample(NamedTuple):
    name: str
    ts: int
    value: float


class MindDataBackend:
    """Records MindSpore's data pipeline (2.10 is tested): queues of its operators and their use of processors, as counters of category
    `data pipeline`, and how long each batch was waited for.

    MindSpore samples the pipeline that is made first after recording has begun; a pipeline that is there already is not seen. Its
    recorder runs from `open` to `aclose`. A process starts it once. Its samples are read at the end of each window, on the thread that the
    runtime gives backends.

    Args:
        name: of this source in ledgers and reports.
    """

    thread_bound = False

    def __init__(self, *, name: str = "data pipeline") -> None:
        self.name = name
        self._sink: Sink | None = None
        self._manager: Any = None
        self._config: Any = None
        self._usual_interval = False
        self._begin: int | None = None
        self._notes: dict[str, None] = {}
        self._samples = 0

    def open(self, sink: Sink) -> None:
        """Starts MindSpore's recorder.

        Raises:
            BackendError: if MindSpore has none, or refuses.
        """
        global _used
        self._sink = sink
        try:
            engine: Any = import_module("mindspore._c_dataengine")
            self._config = import_module("mindspore.dataset").config
            manager = engine.GlobalContext.profiling_manager()
        except (ImportError, AttributeError, RuntimeError) as error:
            raise BackendError(f"this version of MindSpore has no recorder of data pipelines: {error}") from error
        with _lock:
            if _used:
                self._notes[ONCE] = None
                return
            _used = True
        try:
            self._usual_interval = self._config.get_monitor_sampling_interval() == USUAL_INTERVAL_MS
            if self._usual_interval:
                self._config.set_monitor_sampling_interval(INTERVAL_MS)
            manager.init()
            manager.start()
        except (AttributeError, RuntimeError) as error:
            self._restore_interval()
            raise BackendError(f"MindSpore's recorder of data pipelines did not start: {_line(error)}") from error
        self._manager = manager

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self._sink is None:
            return
        if self._begin is not None and (not after.records or before is ProfilerAction.RECORD_AND_SAVE):
            begin, self._begin = self._begin, None
            self._deliver(begin, at)
        if after.records and self._begin is None:
            self._begin = at
        self._sink.watermark(at)

    async def aclose(self) -> None:
        if self._begin is not None:
            begin, self._begin = self._begin, None
            self._deliver(begin, _core.now())
        manager, self._manager = self._manager, None
        if manager is not None:
            self._restore_interval()
            try:
                manager.stop()
            except RuntimeError as error:
                self._notes[f"MindSpore's recorder of data pipelines did not stop: {_line(error)}"] = None
        self._sink = None

    def _restore_interval(self) -> None:
        if self._usual_interval:
            self._config.set_monitor_sampling_interval(USUAL_INTERVAL_MS)
            self._usual_interval = False

    def report(self) -> BackendReport:
        return BackendReport(
            mode=f"MindSpore's recorder of data pipelines, {self._samples} samples",
            clock="CLOCK_MONOTONIC, in ms",
            notes=tuple(self._notes),
        )

    def _deliver(self, begin: int, end: int) -> None:
        """Reads what was sampled in a window."""
        assert self._sink is not None
        if self._manager is None:
            return
        directory = make_scratch("stepscope-minddata-")
        try:
            self._manager.save(str(directory))
            block, heap = events_of(directory, begin, end)
        except (OSError, RuntimeError, ValueError) as error:
            self._notes[f"a window has no data pipeline: {_line(error)}"] = None
            return
        finally:
            remove_scratch(directory)
        if not len(block):
            self._notes["a window has no data pipeline: none was made since recording began"] = None
            return
        self._samples += len(block) - 1
        self._sink.deliver(block, heap)


def events_of(directory: Path, begin: int, end: int) -> tuple[Block, bytes]:
    """Reads MindSpore's files into events: an instant with the operators, and counters from `begin` to `end` (ns), with the heap of
    their arguments. The block is empty without a pipeline.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if a file is of another form.
    """
    pipeline = _read(directory, "pipeline_profiling_*.json", Pipeline)
    if pipeline is None:
        return empty_block(), b""
    samples = [each for each in _samples(directory, pipeline) if begin <= each.ts < end]
    heap = _core.encode_arguments(
        {
            "source": "MindSpore",
            "interval_ms": pipeline.sampling_interval,
            "operators": [_facts(operator) for operator in pipeline.op_info[:MOST_OPERATORS]],
        }
    )
    head: Any = empty_block(1)
    head["ts"], head["kind"], head["name"] = begin, int(Kind.INSTANT), strings.intern(PIPELINE)
    head["args_len"] = len(heap)
    block: Any = empty_block(len(samples))
    block["kind"] = int(Kind.COUNTER)
    for at, sample in enumerate(samples):
        block["ts"][at], block["name"][at], block["value"][at] = sample.ts, strings.intern(sample.name), sample.value
    joined: Any = join_blocks([head, block])
    joined["category"], joined["track"] = strings.category(CATEGORY), tracks.process()
    return joined[np.argsort(joined["ts"], kind="stable")], heap


def _samples(directory: Path, pipeline: Pipeline) -> Iterator[_Sample]:
    use = _read(directory, "minddata_cpu_utilization_*.json", ProcessorUse)
    batches = list(read_batches(directory))
    # A pipeline that has ended is sampled on, with lengths that mean nothing.
    last = max((batch.at_ms for batch in batches), default=0) + pipeline.sampling_interval
    for operator in pipeline.op_info[:MOST_OPERATORS]:
        yield from (each for each in _of_operator(operator, use) if not batches or each.ts <= last * 1_000_000)
    for batch in batches:
        yield _Sample(WAITED, batch.at_ms * 1_000_000, batch.waited_ms)
        yield _Sample(HANDED_ON, batch.at_ms * 1_000_000, batch.handed_on_ms)


def _of_operator(operator: DataOperator, use: ProcessorUse | None) -> Iterator[_Sample]:
    times = () if use is None else use.time_stamp
    name = label(_type(operator), operator.op_id)
    lengths: tuple[float, ...] = () if operator.queue is None else operator.queue.size
    used, system = ((), ()) if use is None else use.of(operator.op_id)
    for what, values in (("queue", lengths), ("processor", used), ("system", system)):
        for at_ms, value in zip(times, values, strict=False):
            yield _Sample(f"{name} {what}", at_ms * 1_000_000, value)


def _facts(operator: DataOperator) -> dict[str, Any]:
    return {
        "id": operator.op_id,
        "type": _type(operator),
        "workers": operator.num_workers,
        "children": list(operator.children),
        "capacity": 0 if operator.queue is None else operator.queue.length,
    }


def _type(operator: DataOperator) -> str:
    return operator.op_type.removesuffix("Op")


def _line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip(" -")), type(error).__name__)
