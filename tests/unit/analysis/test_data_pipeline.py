"""Tables of a rank: data pipelines, and the choice of spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.tables.data_pipeline import (
    DataPipeline,
    PipelineBuilder,
    PipelineOperator,
    advice_on,
    bottleneck_of,
)
from stepscope.analysis.tables.span_choice import SpanChoice
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind, empty_block
from tests.support.viewers.scene import Scene, make_run


def operator(number: int, kind: str, filled: float, used: float = 50.0, workers: int = 2) -> PipelineOperator:
    """An operator whose queue is filled to so many percent, and whose workers use so many percent of a processor each."""
    lengths = (int(filled),)
    return PipelineOperator(
        id=number,
        type=kind,
        workers=workers,
        children=(number + 1,),
        parent=number - 1,
        capacity=100,
        lengths=lengths,
        processor=(used * workers,),
    )


def pipeline(*operators: PipelineOperator) -> DataPipeline:
    """A pipeline of MindSpore."""
    control = PipelineOperator(id=0, type="EpochCtrl", workers=1, children=(1,))
    return DataPipeline(source="MindSpore", operators=(control, *operators))


@pytest.mark.checklist("D13")
@pytest.mark.parametrize(
    ("operators", "kind", "label", "action"),
    [
        ((operator(1, "Batch", 90), operator(2, "Map", 90, 80), operator(3, "TFReader", 90)),
         "workers", "Map(id=2)", "num_parallel_workers above 2 for Map, or make its work cheaper"),
        ((operator(1, "Map", 5), operator(2, "TFReader", 60)),
         "slower", "Map(id=1)", "num_parallel_workers above 2 for Map"),
        ((operator(1, "Batch", 5), operator(2, "TFReader", 50)),
         "reading", "TFReader(id=2)", "num_parallel_workers above 2 for TFReader, or read from a quicker storage"),
        ((operator(1, "DeviceQueue", 0), operator(2, "TFReader", 0)),
         "reading", "TFReader(id=2)", "num_parallel_workers above 2 for TFReader, or read from a quicker storage"),
        ((operator(1, "Batch", 5, 19), operator(2, "Shuffle", 9)),
         "starved", "Shuffle(id=2)",
         "num_parallel_workers above 2 for Shuffle, or raise mindspore.dataset.config.set_prefetch_size"),
    ],
)  # fmt: skip
def test_bottlenecks(operators: tuple[PipelineOperator, ...], kind: str, label: str, action: str) -> None:
    """Each kind has its operator and advice; the surest is used."""
    found = bottleneck_of(advice_on(pipeline(*operators), None))
    assert found is not None
    assert (found.kind, found.operator, found.action) == (kind, label, action)


@pytest.mark.parametrize(("busy", "kind"), [(7.0, "idle"), (60.0, "reading")])
def test_workers_that_idle_are_not_too_slow(busy: float, kind: str) -> None:
    """Though their queue is empty, as of a loader that starts them anew for each batch."""
    made = msgspec.structs.replace(operator(1, "Windows", 2), busy=busy, children=())
    assert [each.kind for each in advice_on(pipeline(made), None)] == [kind]


@pytest.mark.checklist("D13")
def test_no_more_workers_where_all_processors_are_busy() -> None:
    """They would not help; with processors that are free, or of which nothing is known, they are advised."""
    busy = pipeline(operator(1, "Batch", 90), operator(2, "Map", 90, 80), operator(3, "TFReader", 40))
    full = [each.action for each in advice_on(busy, 98)]
    why = "more workers do not help while the processors are 98% busy"
    assert full == [f"less work in Map: {why}", f"less work in TFReader, or read from a quicker storage: {why}"]
    assert advice_on(busy, 90) == advice_on(busy, None) and all(
        "above 2" in each.action for each in advice_on(busy, 90)
    )


def test_a_device_that_waits() -> None:
    """The queue to it is empty in most samples."""
    found = advice_on(
        pipeline(operator(1, "DeviceQueue", 50), operator(2, "Batch", 0), operator(3, "TFReader", 90)), None
    )
    assert "the queue from Batch(id=2) to the device is empty in 100% of the samples" in [each.text for each in found]


def test_a_pipeline_that_keeps_up() -> None:
    """Full queues are no remark, nor is what has no samples; workers that idle are one, without anything to try."""
    quick = pipeline(operator(1, "Batch", 90), operator(2, "TFReader", 95))
    assert advice_on(quick, None) == () and bottleneck_of(()) is None
    unknown = PipelineOperator(id=1, type="Batch", workers=2, capacity=16)
    assert advice_on(pipeline(unknown), None) == ()
    (advice,) = advice_on(pipeline(operator(1, "Batch", 90, 5), operator(2, "TFReader", 95)), None)
    assert (advice.kind, advice.action) == ("idle", "") and bottleneck_of([advice]) is None


def test_operators_that_take_from_each_other() -> None:
    """A recorded description may be wrong: its cycle ends the search for queues, and leads to no remark."""
    one, other = (
        PipelineOperator(id=number, type="Map", workers=2, children=(3 - number,), lengths=(5,)) for number in (1, 2)
    )
    found = DataPipeline(source="MindSpore", operators=(one, other))
    assert found.queued_children(one) == () and advice_on(found, None) == ()


def loader_pipeline(directory: Path, workers: int, busy_us: float, **recorded: Any) -> DataPipeline:
    """The pipeline of a DataLoader whose workers make ten batches, each in turn, and begin one every millisecond."""
    scene = Scene(make_run(directory))
    scene.add(Kind.INSTANT, "DataLoader", 0, category="loader", workers=workers, prefetch=2, dataset="Photos")
    for number in range(10):
        scene.span("fetch", 1000 * number, busy_us, category="loader", items=4, **recorded)
    builder = PipelineBuilder()
    builder.update(scene.batch())
    (found,) = builder.pipelines()
    return found


@pytest.mark.checklist("D13")
@pytest.mark.parametrize(
    ("workers", "busy_us", "recorded", "used", "kind", "text"),
    [
        (1, 990, {"used": {"processor_ms": 0.05}}, 5, "workers",
         "each worker of Photos(id=1) is busy making batches 99% of the time and uses 5% of a processor"),
        (1, 990, {}, None, "workers", "each worker of Photos(id=1) is busy making batches 99% of the time"),
        (1, 990, {"used": "forged"}, None, "workers",
         "each worker of Photos(id=1) is busy making batches 99% of the time"),
        (2, 100, {"used": {"processor_ms": 0.1}}, 5.5, "idle",
         "each of the 2 workers of Photos(id=1) is busy making batches 5% of the time and uses 5% of a processor: "
         "fewer may do as well"),
    ],
    ids=["waits", "no processor time", "forged", "few batches"],
)  # fmt: skip
def test_workers_of_a_loader(
    workers: int, busy_us: float, recorded: dict[str, Any], used: float | None, kind: str, text: str, tmp_path: Path
) -> None:
    """One that waits for the storage is the bottleneck, though it uses little of a processor; of those that make few batches
    fewer may do. Without processor time nothing is said of that."""
    found = loader_pipeline(tmp_path, workers, busy_us, **recorded)
    assert found.operators[1].used_per_worker == (None if used is None else pytest.approx(used, rel=0.01))
    (advice,) = advice_on(found, None)
    assert (advice.kind, advice.text) == (kind, text)
    if kind == "workers":
        assert advice.action == "num_workers above 1 for Photos, or make its work cheaper"


NAMES = st.sampled_from(["forward", "backward", "all_reduce", "aten::mm"])
CATEGORIES = st.sampled_from(["", "cpu_op", "user_annotation"])


@given(st.lists(st.lists(st.tuples(NAMES, CATEGORIES), max_size=20), max_size=4))
def test_each_span_is_judged_by_both(batches: list[list[tuple[str, str]]]) -> None:
    """Also names that have several categories, in any order; each pair is judged once."""
    judged: list[tuple[str, str]] = []

    def chosen(name: str, category: str) -> bool:
        judged.append((name, category))
        return (name == "forward") != (category == "cpu_op")

    choice = SpanChoice(chosen)
    for pairs in batches:
        block: Any = empty_block(len(pairs))
        block["name"] = [strings.intern(name) for name, _ in pairs]
        block["category"] = [strings.category(category) for _, category in pairs]
        wanted = [(name == "forward") != (category == "cpu_op") for name, category in pairs]
        assert np.array_equal(choice.of(block), np.array(wanted, bool))
    assert len(judged) == len(set(judged))
