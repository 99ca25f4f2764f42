"""Kineto mode of the torch backend: against torch's own export, and on a recorded trace of a GPU."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepscope as sc
from stepscope.backends.collecting import CollectingSink
from stepscope.backends.conformance import CHECKS, Case
from stepscope.backends.kineto_blocks import KinetoConverter, nest
from stepscope.backends.kineto_file import KinetoFile, arguments
from stepscope.backends.kineto_tracks import KinetoTracks
from stepscope.backends.kineto_worker import FinishedTrace, KinetoWorker
from stepscope.backends.torch import TorchBackend
from stepscope.backends.torch_kineto import KinetoMode
from stepscope.backends.torch_settings import TorchSettings
from stepscope.backends.torch_symbols import free_without_gil, save_without_gil
from stepscope.runtime import _core, clock, strings, tracks
from stepscope.runtime.action import ProfilerAction
from stepscope.runtime.clock import ClockAnchor, ClockMapping
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import Block, Kind, empty_block, join_blocks
from stepscope.runtime.schedule import schedule
from stepscope.runtime.tracks import TrackKind
from tests.operators import record, texts, torch, train

GPU_TRACE = Path(__file__).parent / "data" / "kineto-gpu.json"
WALL, OURS = 1_795_176_395_000_000_000, 5_000_000_000
SAME_RATE = ClockMapping(WALL, OURS)
NONE, WARMUP, RECORD, SAVE = ProfilerAction

Row = tuple[str, str, str, int, int, str]
"""Phase, category, name, begin in ns, duration in ns, and arguments as JSON."""


def add() -> None:
    for _ in range(3):
        torch.add(torch.ones(2), 1)


def recorded_by_torch(**asked: bool) -> Any:
    """A finished profile of torch, with a training step in it."""
    profile = torch.autograd.profiler.profile(use_kineto=True, **asked)
    with profile, torch.profiler.record_function('odd "name"\n\\ 😀'):
        train(1)
    return profile.kineto_results


def decoded(block: Block, args: bytes) -> list[dict[str, Any]]:
    return [_core.decode_arguments(args, int(e["args_at"]), int(e["args_len"])) if e["args_len"] else {} for e in block]


def rows_of(sink: CollectingSink) -> Counter[Row]:
    """What was delivered, in the terms of kineto's file."""
    phases = {Kind.SPAN: "X", Kind.MEMORY: "i", Kind.INSTANT: "i", Kind.FLOW_START: "s", Kind.FLOW_END: "f"}
    return Counter(
        (
            phases[Kind(int(event["kind"]))],
            strings.text(int(event["category"])),
            strings.text(int(event["name"])),
            int(event["ts"]),
            int(event["dur"]) if event["kind"] == Kind.SPAN else 0,
            json.dumps(args, sort_keys=True),
        )
        for delivery in sink.deliveries
        for event, args in zip(delivery.events, decoded(delivery.events, delivery.args), strict=True)
    )


def rows_of_export(path: Path, mapping: ClockMapping) -> Counter[Row]:
    """What torch's own export holds, read by the standard library."""
    trace = json.loads(path.read_text())
    return Counter(
        (
            event["ph"],
            event["cat"],
            event["name"],
            mapping.to_ours(trace["baseTimeNanoseconds"] + round(event["ts"] * 1000)),
            round(event.get("dur", 0) * 1000),
            json.dumps(event.get("args", {}), sort_keys=True),
        )
        for event in trace["traceEvents"]
        if event["ph"] != "M" and isinstance(event["pid"], int)
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_kineto_mode_keeps_the_contract_of_backends(check: Any) -> None:
    """The conformance suite, with operators that really run."""
    check(Case(lambda: TorchBackend("kineto"), add))


@pytest.mark.parametrize(
    "asked", [{}, {"record_shapes": True, "profile_memory": True}, {"with_stack": True, "with_modules": True}], ids=str
)
async def test_every_event_is_that_of_torchs_own_export(tmp_path: Path, asked: dict[str, bool]) -> None:
    """One to one: kinds, names, times to the ns and all arguments of one and the same recording."""
    anchor = ClockAnchor.read()
    result = recorded_by_torch(**asked)
    result.save(str(tmp_path / "own.json"))
    sink = CollectingSink()
    worker = KinetoWorker(sink)
    worker.put(FinishedTrace(result, until=anchor.monotonic_ns, anchors=(anchor,), brackets=(), flops=False))
    await worker.aclose()
    assert not worker.problems
    assert sink.passed == anchor.monotonic_ns
    theirs = rows_of_export(tmp_path / "own.json", ClockMapping(anchor.wall_ns, anchor.monotonic_ns))
    assert rows_of(sink) == theirs
    names = {name for _, _, name, *_ in theirs}
    assert {'odd "name"\n\\ 😀', "aten::convolution", "Optimizer.step#SGD.step"} <= names


def test_export_and_release_leave_the_interpreter_alone(tmp_path: Path) -> None:
    """The direct calls write what torch's binding writes, and leave a result that can still be dropped."""
    result = recorded_by_torch(record_shapes=True, with_stack=True)
    result.save(str(tmp_path / "own.json"))
    assert save_without_gil(result, str(tmp_path / "direct.json"))
    own, direct = (json.loads((tmp_path / name).read_text()) for name in ("own.json", "direct.json"))
    assert own.pop("traceName") != direct.pop("traceName")
    assert own == direct
    assert free_without_gil(result)
    assert result.trace_start_ns() == 0
    del result
    assert not save_without_gil(object(), str(tmp_path / "none.json"))


def test_shapes_and_memory_arrive_with_their_operators(tmp_path: Path) -> None:
    """Inputs of operators, allocations with their totals, and the track of the thread that recorded spans."""
    backend = TorchBackend(record_shapes=True, profile_memory=True)

    def work(_: sc.Profiler) -> None:
        with sc.span("around"):
            torch.mm(torch.ones(3, 5), torch.ones(5, 7))

    memory = record(tmp_path, work, backend)
    found = {name: args for name, args in zip(memory.names(), memory.arguments(), strict=True) if args}
    assert found["aten::mm"]["Input Dims"] == [[3, 5], [5, 7]]
    allocations = memory.events(kind=Kind.MEMORY)
    assert allocations["value"].max() == 4 * (15 + 35 + 21)
    spans = memory.events(kind=Kind.SPAN)
    track = {name: int(span["track"]) for name, span in zip(texts(spans), spans, strict=True)}
    assert track["around"] == track["aten::mm"]
    report = backend.report()
    assert (report.mode, report.notes) == ("kineto", ())
    assert report.training_thread_ns > 0


def test_flops_are_torchs(tmp_path: Path) -> None:
    """Estimates of floating-point operations become arguments of their operators."""
    memory = record(tmp_path, lambda _: torch.mm(torch.ones(3, 5), torch.ones(5, 7)), TorchBackend(with_flops=True))
    found = dict(zip(memory.names(), memory.arguments(), strict=True))
    assert found["aten::mm"]["FLOPs"] == 2 * 3 * 5 * 7
    assert "FLOPs" not in found["aten::fill_"]


def test_python_functions_enclose_their_operators(tmp_path: Path) -> None:
    """With stacks the functions that called an operator are its ancestors."""

    def innermost() -> None:
        torch.ones(2).relu()

    memory = record(tmp_path, lambda _: innermost(), TorchBackend(with_stack=True))
    spans = memory.events(kind=Kind.SPAN)
    by_id = {int(span["id"]): span for span in spans}
    span = spans[texts(spans).index("aten::relu")]
    ancestors = []
    while span["parent"]:
        span = by_id[int(span["parent"])]
        ancestors.append(strings.text(int(span["name"])))
    assert any(name.endswith(": innermost") for name in ancestors), ancestors


def test_windows_that_follow_each_other_directly_are_whole(tmp_path: Path) -> None:
    """Each of three adjacent windows has the operators of its steps, and no others."""

    def work(profiler: sc.Profiler) -> None:
        for step in range(6):
            for _ in range(step + 1):
                torch.ones(1).tanh()
            profiler.step()

    memory = record(tmp_path, work, TorchBackend("kineto"), schedule=schedule(wait=0, warmup=0, active=2, repeat=3))
    spans = memory.events(kind=Kind.SPAN)
    tanh = spans[[name == "aten::tanh" for name in texts(spans)]]
    assert Counter(tanh["step"].tolist()) == {step: step + 1 for step in range(6)}
    assert [memory.names(window).count("aten::tanh") for window in range(3)] == [3, 7, 11]


def test_another_profiler_of_torch_is_left_alone(tmp_path: Path) -> None:
    """While another profiler of torch is active a window goes without operators; the next one has them again."""
    backend = TorchBackend("kineto")

    def work(profiler: sc.Profiler) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as other:
            profiler.step()
            torch.ones(1).tanh()
            profiler.step()
        assert "aten::tanh" in {event.key for event in other.key_averages()}
        profiler.step()
        torch.ones(1).tanh()
        profiler.step()

    memory = record(tmp_path, work, backend, schedule=schedule(wait=1, warmup=0, active=1, repeat=2))
    assert memory.names(0).count("aten::tanh") == 0
    assert memory.names(1).count("aten::tanh") == 1
    assert "torch's profiler did not prepare: another profiler of torch is active" in " ".join(backend.report().notes)


def test_another_thread_is_refused_with_a_note(tmp_path: Path) -> None:
    """Changes that come from another thread than start() do nothing but leave a note."""
    backend = TorchBackend("kineto")

    def work(profiler: sc.Profiler) -> None:
        thread = threading.Thread(target=lambda: [profiler.step() for _ in range(2)])
        thread.start()
        thread.join()

    record(tmp_path, work, backend, schedule=schedule(wait=1, warmup=0, active=1))
    assert "was refused: it came from another thread than start()" in " ".join(backend.report().notes)
    assert not torch.autograd._profiler_enabled()


async def test_a_warm_up_that_leads_nowhere_is_undone() -> None:
    """After WARMUP and NONE torch's profiler is off, nothing is delivered, and recording works as ever."""
    sink = CollectingSink()
    mode = KinetoMode(TorchSettings(), sink)
    for before, after in ((NONE, WARMUP), (WARMUP, NONE)):
        mode.transition(before, after, clock.now())
    assert not torch.autograd._profiler_enabled()
    assert len(sink.events) == 0
    mode.transition(NONE, RECORD, clock.now())
    add()
    end = clock.now()
    mode.transition(RECORD, NONE, end)
    await mode.aclose()
    assert texts(sink.events).count("aten::add") == 3
    assert sink.passed == end


async def test_times_are_ours() -> None:
    """Operators lie between readings of our clock around them, within the bound that the report states."""
    sink = CollectingSink()
    mode = KinetoMode(TorchSettings(), sink)
    mode.transition(NONE, RECORD, clock.now())
    readings = [clock.now()]
    for _ in range(20):
        torch.ones(1).tanh()
        readings.append(clock.now())
    mode.transition(RECORD, NONE, clock.now())
    await mode.aclose()
    spans = sink.events[[name == "aten::tanh" for name in texts(sink.events)]]
    bound = int(mode.report().clock.partition("; ")[2].split()[0])
    assert bound < 1_000_000
    for span, before, after in zip(spans, readings, readings[1:], strict=False):
        # The markers bound the error where they are; between them both clocks run evenly.
        assert before - 2 * bound - 1000 <= span["ts"] <= span["ts"] + span["dur"] <= after + 2 * bound + 1000


async def test_a_trace_that_is_lost_is_told() -> None:
    """A result that cannot be exported costs its window only: the watermark goes on, and the report says why."""

    class Broken:
        def trace_start_ns(self) -> int:
            return 1

        def save(self, path: str) -> None:
            raise RuntimeError("no space left")

    sink = CollectingSink()
    worker = KinetoWorker(sink)
    worker.put(FinishedTrace(Broken(), until=7, anchors=(ClockAnchor.read(),), brackets=(), flops=False))
    worker.put(9)
    await worker.aclose()
    assert worker.problems["a trace was lost: no space left"] == 1
    assert sink.watermarks == [7, 9]


# The file


def convert(path: Path, slice_bytes: int = 1 << 19) -> tuple[Block, list[dict[str, Any]]]:
    """A file's events with their arguments."""
    file = KinetoFile(path, slice_bytes)
    converter: KinetoConverter | None = None
    blocks: list[Block] = []
    args: list[dict[str, Any]] = []
    for events in file.slices():
        converter = converter or KinetoConverter(KinetoTracks(), file.base_ns, SAME_RATE, {})
        block, heap = converter.convert(events)
        blocks.append(block)
        args += decoded(block, heap)
    whole = join_blocks(blocks)
    nest(whole)
    return whole, args


@pytest.fixture(scope="module")
def gpu() -> tuple[Block, list[dict[str, Any]]]:
    return convert(GPU_TRACE)


def event_of(
    gpu: tuple[Block, list[dict[str, Any]]], category: str, kind: Kind = Kind.SPAN
) -> tuple[Any, dict[str, Any]]:
    events, args = gpu
    return next(
        (event, arg)
        for event, arg, name in zip(events, args, texts(events, "category"), strict=True)
        if name == category and event["kind"] == kind
    )


def test_kernels_are_drawn_on_their_streams(gpu: tuple[Block, list[dict[str, Any]]]) -> None:
    """A kernel keeps its arguments, its time to the ns, and lies on the track of its device and stream."""
    kernel, args = event_of(gpu, "kernel")
    assert strings.text(int(kernel["name"])) == 'void gemm<float, 128, "odd">(float*)'
    assert int(kernel["ts"]) == OURS + 1_790_857_026_000_000_000 + 4_319_369_095_055_500 - WALL
    assert int(kernel["dur"]) == 120_003
    assert args["grid"] == [2, 1, 1] and args["est. achieved occupancy %"] == 38 and args["warps per SM"] == 12.0
    track = tracks.get(int(kernel["track"]))
    assert track is not None
    assert (track.kind, track.pid, track.tid, track.name) == (TrackKind.STREAM, 0, 7, "stream 7")
    process = tracks.get(track.parent)
    assert process is not None and (process.kind, process.name) == (TrackKind.PROCESS, "GPU 0")


def test_launches_are_linked_to_kernels(gpu: tuple[Block, list[dict[str, Any]]]) -> None:
    """Operator, runtime call and kernel share their numbers, and an arrow leads from the call to the kernel."""
    operator, operator_args = event_of(gpu, "cpu_op")
    call, call_args = event_of(gpu, "cuda_runtime")
    kernel, kernel_args = event_of(gpu, "kernel")
    assert call["parent"] == operator["id"] and call["track"] == operator["track"]
    assert operator_args["External id"] == call_args["External id"] == kernel_args["External id"] == 2
    assert call_args["correlation"] == kernel_args["correlation"] == 101
    start, _ = event_of(gpu, "ac2g", Kind.FLOW_START)
    end, _ = event_of(gpu, "ac2g", Kind.FLOW_END)
    assert start["id"] == end["id"]
    assert (start["ts"], start["track"]) == (call["ts"], call["track"])
    assert (end["ts"], end["track"]) == (kernel["ts"], kernel["track"])


def test_device_memory_and_counters_are_kept(gpu: tuple[Block, list[dict[str, Any]]]) -> None:
    """An allocation on the device, and the numbers of a counter."""
    allocation, args = event_of(gpu, "cpu_instant_event", Kind.MEMORY)
    assert (allocation["value"], allocation["id"]) == (4096.0, 140_000_000_000_000)
    assert (args["Device Type"], args["Device Id"], args["Total Reserved"]) == (1, 0, 2_097_152)
    counter, _ = event_of(gpu, "counters", Kind.COUNTER)
    assert (strings.text(int(counter["name"])), counter["value"]) == ("sm active", 0.5)


def test_kinetos_notes_on_itself_are_left_out(gpu: tuple[Block, list[dict[str, Any]]]) -> None:
    """Steps are ours, on the host and on devices; what kineto says of its own run is no event."""
    names = texts(gpu[0])
    assert not [name for name in names if name.startswith(("ProfilerStep", "PyTorch Profiler", "Record Window"))]
    assert "nccl:all_reduce" in names and "Activity Buffer Request" in names


def test_links_of_two_traces_do_not_meet() -> None:
    """Kineto numbers links anew in each trace; ours differ."""
    ids = [{int(e["id"]) for e in convert(GPU_TRACE)[0] if e["kind"] == Kind.FLOW_START} for _ in range(2)]
    assert len(ids[0]) == len(ids[1]) == 1 and ids[0] != ids[1]


@given(slice_bytes=st.integers(16, 4000))
def test_slices_of_any_size_give_the_same(slice_bytes: int) -> None:
    """Where the file is cut for reading changes nothing."""
    whole = [event for events in KinetoFile(GPU_TRACE).slices() for event in events]
    pieces = [event for events in KinetoFile(GPU_TRACE, slice_bytes).slices() for event in events]
    assert [(e.ph, e.name, e.ts, arguments(e)) for e in pieces] == [(e.ph, e.name, e.ts, arguments(e)) for e in whole]
    assert len(whole) == len(json.loads(GPU_TRACE.read_text())["traceEvents"])


def test_an_event_that_is_no_json_is_skipped_and_counted(tmp_path: Path) -> None:
    """Older versions did not escape every name: the others of the slice are saved."""
    path = tmp_path / "trace.json"
    path.write_text(GPU_TRACE.read_text().replace('"cudaLaunchKernel"', '"cuda"Launch"'))
    file = KinetoFile(path)
    names = [event.name for events in file.slices() for event in events]
    assert file.skipped == 1
    assert "aten::mm" in names and "Memcpy HtoD (Pageable -> Device)" in names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no traceEvents"),
        ('{"traceEvents": []}', "it has no traceEvents"),
        ('{"baseTimeNanoseconds": nothing, "traceEvents": [\n  ]}', "is no trace of kineto"),
        (GPU_TRACE.read_text()[:3000], "ends inside an event: it was not written to the end"),
    ],
    ids=["empty", "other", "head", "cut"],
)
def test_other_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    """What is no whole trace of kineto is an error that says so, never half a trace."""
    path = tmp_path / "trace.json"
    path.write_text(text.replace('"traceEvents": []', '"events": []'))
    with pytest.raises(FormatError, match=said):
        list(KinetoFile(path).slices())


def test_a_trace_without_events_is_one(tmp_path: Path) -> None:
    """A window in which nothing ran."""
    path = tmp_path / "trace.json"
    path.write_text('{"baseTimeNanoseconds": 5, "traceEvents": [\n  ],"traceName": "x" }')
    assert [event for events in KinetoFile(path).slices() for event in events] == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ns=st.lists(st.integers(0, 7_889_238_000_000_000), min_size=1, max_size=20))
def test_times_are_exact(tmp_path: Path, ns: list[int]) -> None:
    """Every ns of the three months that kineto counts from its base survives its decimals and our reading."""
    path = tmp_path / "trace.json"
    events = ",".join(
        f'\n  {{\n    "ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": {t // 1000}.{t % 1000:03d}, '
        f'"dur": {t // 1000}.{t % 1000:03d}\n  }}'
        for t in ns
    )
    path.write_text(f'{{"baseTimeNanoseconds": {WALL}, "traceEvents": [{events}\n  ],"traceName": "x" }}')
    block, _ = convert(path)
    assert block["ts"].tolist() == [OURS + t for t in ns]
    assert block["dur"].tolist() == ns


def nested(draw: st.DrawFn, start: int, end: int, depth: int) -> Iterator[tuple[int, int]]:
    """Intervals that lie in one another or apart."""
    at = start
    while at < end and draw(st.booleans()):
        begin = draw(st.integers(at, end - 1))
        finish = draw(st.integers(begin + 1, end))
        yield begin, finish
        if depth:
            yield from nested(draw, begin, finish, depth - 1)
        at = finish


@st.composite
def intervals(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    return [(track, *pair) for track in (1, 2) for pair in nested(draw, 0, 50, 3)]


@given(rows=intervals(), order=st.randoms(use_true_random=False))
def test_parents_are_the_innermost_around(rows: list[tuple[int, int, int]], order: Any) -> None:
    """Against the plain definition: the shortest enclosing span of the track, and what children leave over."""
    rows = list(dict.fromkeys(rows))
    order.shuffle(rows)
    block = empty_block(len(rows))
    block["kind"] = Kind.SPAN
    for number, (span, (track, start, end)) in enumerate(zip(block, rows, strict=True), 1):
        span["id"], span["track"], span["ts"], span["dur"] = number, track, start, end - start
    nest(block)
    for number, (track, start, end) in enumerate(rows, 1):
        around = [
            (e - s, i)
            for i, (t, s, e) in enumerate(rows, 1)
            if t == track and s <= start and e >= end and e - s > end - start
        ]
        span = block[number - 1]
        assert int(span["parent"]) == (min(around)[1] if around else 0)
        children = sum(e - s for i, (_, s, e) in enumerate(rows, 1) if int(block[i - 1]["parent"]) == number)
        assert int(span["self_dur"]) == end - start - children
    assert np.array_equal(block["dur"], [end - start for _, start, end in rows])
