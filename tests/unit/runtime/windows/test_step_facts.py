"""Facts of steps: each nanosecond once, the same in whatever blocks events come, and what was read when steps began."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block, join_blocks
from stepscope.runtime.windows import step_facts
from stepscope.runtime.windows.step_facts import (
    MANY_OPEN,
    SIGNAL,
    SIGNALS,
    Device,
    Phase,
    StepFactsBuilder,
    class_of,
    covered_before,
    union,
)

TRACK, OTHER = 7, 8
STEP_NS = 1000
KINDS = {
    Phase.GARBAGE_COLLECTION: ("garbage collection", "gc"),
    Phase.COMMUNICATION: ("gloo:all_reduce", "user_annotation"),
    Phase.CHECKPOINT: ("torch.save", "checkpoint"),
    Phase.LOGGING: ("SummaryWriter.add_scalar", "logging"),
    Phase.DATA: ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"),
    Phase.OPTIMIZER: ("Optimizer.step#SGD.step", "user_annotation"),
    Phase.BACKWARD: ("autograd::engine::evaluate_function: MulBackward0", "cpu_op"),
    Phase.COPY: ("cudaMemcpyAsync", "cuda_runtime"),
    Phase.FORWARD: ("aten::mm", "cpu_op"),
    Phase.SPAN: ("work", "user_annotation"),
}
WAITING = ("suspended", "task")
COLLECTIVES = (
    "gloo:all_reduce",
    "xccl:all_reduce",
    "ucc:broadcast",
    "c10d::allreduce_",
    "record_param_comms",
    "all_reduce",
)
PREFIXES = ("", Phase.COMMUNICATION), ("my_", Phase.SPAN)
NO_PHASE = 255


def marks(count: int) -> Block:
    """So many steps, one after the other, and the begin of one more."""
    block: Any = empty_block(count + 1)
    block["kind"], block["track"] = Kind.STEP, TRACK
    block["ts"], block["step"] = STEP_NS * np.arange(count + 1), np.arange(count + 1)
    return block  # type: ignore[no-any-return]


def span(begin: int, end: int, phase: Phase, track: int = TRACK) -> Block:
    """A span of a phase."""
    block: Any = empty_block(1)
    name, category = WAITING if phase == Phase.SUSPENDED else KINDS[phase]
    block["kind"], block["track"], block["ts"], block["dur"] = Kind.SPAN, track, begin, end - begin
    block["name"], block["category"] = strings.intern(name), strings.category(category)
    return block  # type: ignore[no-any-return]


def facts(blocks: Sequence[Block]) -> Any:
    """Of events that come in these blocks."""
    builder = StepFactsBuilder()
    for block in blocks:
        builder.update(block)
    return builder.finish()


def some_spans(phases: Sequence[Phase]) -> st.SearchStrategy[list[tuple[int, int, Phase]]]:
    """Begins, lengths and phases."""
    times = st.integers(0, 10 * STEP_NS), st.integers(1, 3 * STEP_NS)
    return st.lists(st.tuples(*times, st.sampled_from(phases)), max_size=30)


# Backward within an optimizer is its closure, which has a test of its own.
SPANS = st.sampled_from([Phase.OPTIMIZER, Phase.BACKWARD]).flatmap(
    lambda left_out: some_spans([phase for phase in KINDS if phase != left_out])
)


@given(SPANS, st.data())
def test_each_nanosecond_counts_once_and_for_the_first_phase(
    spans: list[tuple[int, int, Phase]], data: st.DataObject
) -> None:
    """Against a count of every nanosecond; in one block and in any others."""
    every = [marks(10), *(span(begin, begin + length, phase) for begin, length, phase in spans)]
    owner = np.full(14 * STEP_NS, len(Phase))
    for begin, length, phase in sorted(spans, key=lambda each: -each[2]):
        inside = len([mark for mark in range(0, 11 * STEP_NS, STEP_NS) if begin < mark < begin + length])
        if phase != Phase.SPAN or inside < 2:
            owner[begin : begin + length] = phase
    wanted = np.array(
        [[(owner[at : at + STEP_NS] == phase).sum() for phase in Phase] for at in range(0, 10 * STEP_NS, STEP_NS)]
    )
    found = facts([join_blocks(every)])
    np.testing.assert_array_equal(found["phases"], wanted)
    assert (found["phases"].sum(axis=1) <= found["end"] - found["begin"]).all()
    cut = data.draw(st.integers(1, len(every)))
    again = facts([join_blocks(every[:cut]), *every[cut:]])
    assert all((again[name] == found[name]).all() for name in ("step", "begin", "phases", "operators", "operator_ns"))


@pytest.mark.parametrize("on", [TRACK, OTHER])
@pytest.mark.parametrize("together", [True, False])
def test_an_optimizer_begins_behind_its_closure(on: int, together: bool) -> None:
    """The closure's forward and backward count as such, also if backward runs on a thread of autograd."""
    spans = [
        span(110, 250, Phase.FORWARD),
        span(300, 600, Phase.BACKWARD, on),
        span(650, 800, Phase.FORWARD),
        span(100, 900, Phase.OPTIMIZER),
    ]
    (found,) = facts([marks(1), *([join_blocks(spans)] if together else spans)])
    phases = found["phases"]
    assert phases[Phase.FORWARD] == 140 and phases[Phase.OPTIMIZER] == 300
    assert phases[Phase.BACKWARD if on == TRACK else Phase.BACKWARD_ELSEWHERE] == 300


def test_an_optimizer_in_backward_is_an_optimizer() -> None:
    """As hooks that step as soon as a gradient is there."""
    (found,) = facts([marks(1), span(300, 500, Phase.OPTIMIZER), span(100, 600, Phase.BACKWARD)])
    assert found["phases"][Phase.OPTIMIZER] == 200 and found["phases"][Phase.BACKWARD] == 300


def test_long_runs_are_finished_on_the_way() -> None:
    """The same facts, and no memory is used for steps that are over."""
    builder = StepFactsBuilder()
    count = 4 * MANY_OPEN
    for step in range(count):
        begin = step * STEP_NS
        builder.update(marks(count)[step : step + 1])
        builder.update(span(begin + 100, begin + 300, Phase.FORWARD))
        builder.update(span(begin + 200, begin + 500, Phase.DATA))
    builder.update(marks(count)[count:])
    assert len(builder._intervals) <= 3 * MANY_OPEN  # pyright: ignore[reportPrivateUsage]
    found = builder.finish()
    assert len(found) == count and found["step"].tolist() == list(range(count))
    assert (found["phases"][:, Phase.FORWARD] == 100).all() and (found["phases"][:, Phase.DATA] == 300).all()
    assert (found["operators"] == 1).all()


def test_a_step_without_end_is_finished_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for a run that never steps does not grow, and its phases add up all the same."""
    monkeypatch.setattr(step_facts, "MOST_INTERVALS", 200)
    monkeypatch.setattr(step_facts, "MANY_INTERVALS", 100)
    builder = StepFactsBuilder()
    builder.update(marks(0))
    for at in range(0, 5000, 10):
        builder.update(span(at, at + 5, Phase.FORWARD))
        builder.update(span(at, at + 7, Phase.SPAN))
        assert len(builder._intervals) <= 201  # pyright: ignore[reportPrivateUsage]
    (found,) = builder.finish(5000)
    assert found["begin"] == 0 and found["end"] == 5000 and found["operators"] == 500
    assert found["phases"][Phase.FORWARD] == 2500 and found["phases"][Phase.SPAN] == 1000


def test_a_span_around_steps_hides_none_of_its_own() -> None:
    """One block holds it and those that lie in it; also if it ends where steps are finished already."""
    spans = [
        span(100, 200, Phase.SPAN),
        span(50, 5 * STEP_NS, Phase.SPAN),
        span(4 * STEP_NS + 100, 4 * STEP_NS + 150, Phase.SPAN),
    ]
    found = facts([join_blocks([marks(10), *spans])])
    assert found["phases"][:, Phase.SPAN].tolist() == [100, 0, 0, 0, 50, 0, 0, 0, 0, 0]


def test_work_of_other_threads_is_no_part_of_the_step() -> None:
    """But for autograd's thread, while nothing else is open here."""
    found = facts(
        [
            marks(1),
            span(0, 400, Phase.FORWARD, OTHER),
            span(100, 600, Phase.BACKWARD, OTHER),
            span(200, 300, Phase.FORWARD),
        ]
    )
    assert found["phases"][0, Phase.FORWARD] == 100 and found["phases"][0, Phase.BACKWARD] == 0
    assert found["phases"][0, Phase.BACKWARD_ELSEWHERE] == 400


def test_spans_of_other_tasks_count_while_these_run() -> None:
    """On the thread that steps, and not while they wait; meanwhile the task that steps does not wait for something else. A span of
    a task on another thread is none of it."""
    threads = [tracks.new(tracks.TrackKind.THREAD, 1, tid, "thread") for tid in (1, 2)]
    stepping, one, other, elsewhere = (
        tracks.new(tracks.TrackKind.TASK, 1, 10 + number, "task", thread)
        for number, thread in enumerate((threads[0], threads[0], threads[0], threads[1]))
    )
    steps: Any = marks(3)
    steps["track"] = [threads[0], stepping, stepping, stepping]
    events = [
        span(0, 2000, Phase.SPAN, one),
        span(100, 1500, Phase.SUSPENDED, one),
        span(50, 150, Phase.SPAN, other),
        span(200, 300, Phase.SPAN, other),
        span(210, 290, Phase.SPAN, other),
        span(0, 3000, Phase.SPAN, elsewhere),
        span(250, 900, Phase.SUSPENDED, stepping),
    ]
    for blocks in ([join_blocks([steps, *events])], [*events[::-1], steps]):
        found = facts(blocks)["phases"]
        assert found[:, Phase.SPAN].tolist() == [250, 500, 0]
        assert found[:, Phase.SUSPENDED].tolist() == [600, 0, 0]


def test_signals_of_a_step_are_differences_of_its_readings() -> None:
    """Memory is what there was at its end; what was not read is NaN."""
    block: Any = empty_block(4)
    block["kind"], block["category"], block["ts"] = Kind.COUNTER, strings.category(SIGNAL), [0, 0, STEP_NS, STEP_NS]
    block["name"] = [strings.intern(name) for name in ("cpu_ns", "resident_bytes")] * 2
    block["value"] = [500.0, 1e6, 1200.0, 3e6]
    found = facts([marks(2), block])
    assert found["cpu_ns"][0] == 700 and found["resident_bytes"][0] == 3e6
    assert np.isnan(found["cpu_ns"][1]), "the end of this step was not read: no other reading is taken for it"
    assert all(np.isnan(found[name]).all() for name in SIGNALS if name not in {"cpu_ns", "resident_bytes"})


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("ncclDevKernel_AllReduce", "kernel", Device.COMMUNICATION),
        ("sgemm", "kernel", Device.COMPUTE),
        ("Memcpy HtoD", "gpu_memcpy", Device.COPY),
    ],
)
def test_devices_are_counted_apart(name: str, category: str, kind: Device) -> None:
    """On rows of their own, whatever the thread does."""
    block: Any = empty_block(1)
    block["kind"], block["track"], block["ts"], block["dur"] = Kind.SPAN, OTHER, 100, 50
    block["name"], block["category"] = strings.intern(name), strings.category(category)
    found = facts([marks(1), block])
    assert found["device"][0, kind] == 50 and not found["phases"].any()


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)), max_size=20), st.lists(st.integers(0, 150), max_size=5)
)
def test_unions_of_intervals_and_their_length_before_a_time(intervals: list[tuple[int, int]], at: list[int]) -> None:
    """Against sets of numbers."""
    begin, end = union(
        *(np.array(each, np.int64) for each in zip(*[(a, a + b) for a, b in intervals], strict=True))
        if intervals
        else (np.zeros(0, np.int64),) * 2
    )
    numbers = {each for a, b in intervals for each in range(a, a + b)}
    assert numbers == {each for a, b in zip(begin.tolist(), end.tolist(), strict=True) for each in range(a, b)}
    assert covered_before(begin, end, np.array(at, np.int64)).tolist() == [
        len([each for each in numbers if each < limit]) for limit in at
    ]


def test_intervals_are_read_by_one_thread_at_a_time() -> None:
    """Memory that another thread moves without the GIL is not copied."""
    intervals = _core.SpanIntervals(255, 13, 100)
    spans = np.concatenate([span(at, at + 5, Phase.FORWARD) for at in range(0, 1000, 10)] * 1000)
    names = int(spans["name"][0]) + 1
    categories = np.full(names, spans["category"][0], np.uint16)
    refused = threading.Event()

    def add() -> None:
        while not refused.is_set():
            with contextlib.suppress(RuntimeError):
                intervals.add(spans, bytes(names), categories, 0)
                intervals.drop_until(2000)

    thread = threading.Thread(target=add)
    thread.start()
    for read in (intervals.to_bytes, lambda: intervals.ends(1)):
        while not refused.is_set():
            try:
                read()
            except RuntimeError:
                break
    refused.set()
    thread.join()


@pytest.mark.parametrize(
    ("name", "category", "phase"),
    [
        ("TupleIterator.__next__", "dataloader", Phase.DATA),
        ("Default/network-Net/fc-Dense/MatMul-op3", "cpu_op", Phase.FORWARD),
        ("Gradients/Default/Grad_MatMul/MatMul-op2", "cpu_op", Phase.BACKWARD),
        ("Default/optimizer-Momentum/AssignAdd-op4", "cpu_op", Phase.OPTIMIZER),
        ("Default/ApplyMomentum-op1", "cpu_op", Phase.OPTIMIZER),
        ("apply Default/ApplyMomentum-op1", "", Phase.SPAN),
        ("Default/network-Net/AllReduce-op4", "cpu_op", Phase.COMMUNICATION),
        ("Gradients/Default/grad_layer/AllReduce-op7", "cpu_op", Phase.COMMUNICATION),
        ("Default/AlltoAllVC-op1", "cpu_op", Phase.COMMUNICATION),
        ("Default/Receive-op2", "cpu_op", Phase.COMMUNICATION),
        ("Default/ReduceSum-op2", "cpu_op", Phase.FORWARD),
        ("exchange of halos", "communication", Phase.COMMUNICATION),
        *((f"{prefix}{name}", "user_annotation", phase) for name in COLLECTIVES for prefix, phase in PREFIXES),
        ("ProfilerStep#3", "user_annotation", NO_PHASE),
        ("f (x.py:3)", "python_function", NO_PHASE),
    ],
)
def test_phases(name: str, category: str, phase: int) -> None:
    """Of MindSpore by the scopes of its operators, collectives in any of them, and the waiting of its data sets; collectives as
    torch names them, for each library of process groups, and as programs do. Spans of steps cover the whole step."""
    assert class_of(name, category) == phase
