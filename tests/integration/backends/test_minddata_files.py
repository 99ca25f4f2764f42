"""MindSpore's samples of a data pipeline, read into events: operators, queues, use of processors, and waits for batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.analysis.tables.data_pipeline import DataPipeline, PipelineBuilder
from stepscope.backends.mindspore.data_pipeline import events_of, read_batches
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch
from tests.support.messages import refused

AT_MS = 2_212_443
"""Time of the first sample."""
OPERATORS: list[dict[str, Any]] = [
    {"children": [1], "metrics": None, "num_workers": 1, "op_id": 0, "op_type": "EpochCtrlOp"},
    {"children": [2], "metrics": {"output_queue": {"length": 16, "size": [0, 4, 9]}}, "num_workers": 2, "op_id": 1, "op_type": "BatchOp"},
    {"metrics": {"output_queue": {"length": 8, "size": [8, 8, 8]}}, "num_workers": 1, "op_id": 2, "op_type": "GeneratorOp"},
]  # fmt: skip
BATCHES = """0 1 1 0 {0}
0 2 1 7 {0}
0 0 1 7 {0}
1 16 1 4 {0}
no such line
0 1 2 2 {1}
0 2 2 5 {1}
0 0 2 3 {1}
1 16 2 3 {1}
"""


def write(directory: Path) -> Path:
    """The files as MindSpore 2.10 writes them; the last sample is long after the last batch."""
    use = [
        {"metrics": {"sys_utilization": [0, 10, 0], "user_utilization": [0, 20, 0]}, "op_id": number}
        for number in (1, 2)
    ]
    times = [AT_MS, AT_MS + 20, AT_MS + 5000]
    (directory / "pipeline_profiling_0.json").write_text(json.dumps({"op_info": OPERATORS, "sampling_interval": 20}))
    (directory / "minddata_cpu_utilization_0.json").write_text(
        json.dumps({"cpu_processor_num": 2, "op_info": use, "process_info": {}, "time_stamp": times})
    )
    (directory / "dataset_iterator_profiling_0.txt").write_text(BATCHES.format(AT_MS + 4, AT_MS + 10))
    return directory


def pipeline_of(directory: Path, begin: int, end: int) -> DataPipeline:
    """The pipeline that analysis makes of the events."""
    block, heap = events_of(directory, begin, end)
    builder = PipelineBuilder()
    builder.update(EventBatch("data pipeline", 0, block, heap))
    (found,) = builder.pipelines()
    return found


@pytest.mark.checklist("D13")
def test_a_pipeline(tmp_path: Path) -> None:
    """Every operator has its place, its queue and its use of one processor; what was sampled after the pipeline's end is left out."""
    found = pipeline_of(write(tmp_path), AT_MS * 1_000_000, (AT_MS + 9000) * 1_000_000)
    control, batch, source = found.operators
    assert (control.label, batch.label, source.label) == ("EpochCtrl(id=0)", "Batch(id=1)", "Generator(id=2)")
    assert (control.parent, batch.parent, source.parent) == (-1, 0, 1)
    assert (control.filled, control.lengths) == (None, ())
    assert (batch.lengths, batch.average, batch.filled, batch.empty) == ((0, 4), 2, 12.5, 50)
    assert (batch.used, batch.used_per_worker) == (15, 7.5)  # 30 % of one processor in one of two samples
    assert found.input_of(control) is batch and found.input_of(batch) is source and found.input_of(source) is None
    assert (found.source, found.interval_ms, found.waited_ms, found.handed_on_ms) == ("MindSpore", 20, (7, 3), (0, 2))


def test_use_of_processors(tmp_path: Path) -> None:
    """The file has percent of one processor; what an operator uses in the system is recorded as well as all that it uses."""
    block, _ = events_of(write(tmp_path), AT_MS * 1_000_000, (AT_MS + 9000) * 1_000_000)
    found: dict[str, list[float]] = {}
    for event in block:
        found.setdefault(strings.name_of(event), []).append(float(event["value"]))
    assert (found["Batch(id=1) processor"], found["Batch(id=1) system"]) == ([0, 30], [0, 10])
    assert "EpochCtrl(id=0) system" not in found


def test_only_the_samples_of_a_window(tmp_path: Path) -> None:
    """The recorder goes on from window to window, and its files have all."""
    found = pipeline_of(write(tmp_path), (AT_MS + 1) * 1_000_000, (AT_MS + 10) * 1_000_000)
    assert found.operators[1].lengths == () and found.waited_ms == (7,)


def test_batches_that_go_to_a_device(tmp_path: Path) -> None:
    """Their file is taken before that of the iterator."""
    write(tmp_path)
    (tmp_path / "device_queue_profiling_0.txt").write_text("0 0 1 9 5\n0 1 1 8 5\n1 4 1 2 5\n")
    (batch,) = read_batches(tmp_path)
    assert (batch.number, batch.at_ms, batch.waited_ms, batch.handed_on_ms) == (1, 5, 9, 8)


def test_no_pipeline(tmp_path: Path) -> None:
    """Without files there are no events; a file of another form is an error that says where."""
    block, heap = events_of(tmp_path, 0, 1 << 60)
    assert (len(block), heap) == (0, b"")
    (tmp_path / "pipeline_profiling_0.json").write_text('{"op_info": [{"op_id": "zero"}]}')
    with refused(ValueError, "op_info[0]"):
        events_of(tmp_path, 0, 1 << 60)
