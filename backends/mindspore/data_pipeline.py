"""`MindDataBackend`: MindSpore's data pipelines, by MindSpore's own recorder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepscope.backends.mindspore.data_pipeline_files import (
    DataOperator,
    Pipeline,
    ProcessorUse,
    read_batches,
    read_pipeline,
    read_processor_use,
)
from stepscope.backends.pipeline_events import CATEGORY, HANDED_ON, MOST_OPERATORS, PIPELINE, WAITED, label
from stepscope.backends.scratch import make_scratch_directory, remove_scratch
from stepscope.runtime import _core
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block, join_blocks
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads import locks

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
        directory = make_scratch_directory("stepscope-minddata-")
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
    """Reads MindSpore's files into events: an instant with the operators, and counters.

    Args:
        directory: of the files.
        begin, end: ns; samples before and after are left out.

    Returns:
        The block, empty without a pipeline, and the heap of its arguments.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if a file is of another form.
    """
    pipeline = read_pipeline(directory)
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
    use = read_processor_use(directory)
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
