"""Reading kineto's file: on a small trace of a GPU, written by hand in kineto's format, and on broken ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.backends.torch.kineto.blocks import KinetoConverter, KinetoTracks, nest
from stepscope.backends.torch.kineto.file import KinetoFile, arguments
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.clock import ClockMapping
from stepscope.runtime.events.record import Block, Kind, empty_block, join_blocks
from stepscope.runtime.events.tracks import TrackKind
from tests.support.basics import ROOT
from tests.support.block_contents import decoded, texts
from tests.support.messages import refused

GPU_TRACE = ROOT / "tests" / "support" / "data" / "kineto-gpu.json"
WALL, OURS = 1_795_176_395_000_000_000, 5_000_000_000
SAME_RATE = ClockMapping(WALL, OURS)


def convert(path: Path, slice_bytes: int = 1 << 19) -> tuple[Block, list[dict[str, Any]]]:
    """A file's events with their arguments."""
    file = KinetoFile(path, slice_bytes)
    rows = KinetoTracks()
    converter: KinetoConverter | None = None
    blocks: list[Block] = []
    args: list[dict[str, Any]] = []
    for events in file.slices():
        converter = converter or KinetoConverter(rows, file.base_ns, SAME_RATE, {})
        block, heap = converter.convert(events)
        blocks.append(block)
        args += decoded(block, heap)
    whole = join_blocks(blocks)
    whole["track"] = rows.rows()[whole["track"]]
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


def test_device_memory_and_counters_are_read(gpu: tuple[Block, list[dict[str, Any]]]) -> None:
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
    """The others of its slice are saved."""
    path = tmp_path / "trace.json"
    path.write_text(GPU_TRACE.read_text().replace('"cbid": 211', '"cbid": x'))
    file = KinetoFile(path)
    names = [event.name for events in file.slices() for event in events]
    assert file.skipped == 1
    assert "aten::mm" in names and "Memcpy HtoD (Pageable -> Device)" in names


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"traceEvents": []}',
        '{"baseTimeNanoseconds": nothing, "traceEvents": [\n  ]}',
    ],
    ids=["empty", "other", "head"],
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """A file that is no trace of kineto is refused with an error that says so."""
    path = tmp_path / "trace.json"
    path.write_text(text.replace('"traceEvents": []', '"events": []'))
    with refused(FormatError, path):
        list(KinetoFile(path).slices())


def test_a_trace_that_is_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """And says that it is."""
    path = tmp_path / "trace.json"
    path.write_text(GPU_TRACE.read_text()[:3000])
    file = KinetoFile(path)
    assert [event for events in file.slices() for event in events]
    assert str(path) in file.problem


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


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    """The system cuts names of threads anywhere: no event is lost for it."""
    path = tmp_path / "a.json"
    path.write_bytes(
        b'{\n    "traceEvents": [\n  {\n    "ph": "X",\n    "name": "caf\xc3",\n    "pid": 1, "tid": 2, "ts": 1695835542481129, "dur": 3\n'
        b'  },\n  {\n    "ph": "X",\n    "name": "b",\n    "pid": 1, "tid": 2, "ts": 4, "dur": 1\n  }\n  ]}'
    )
    file = KinetoFile(path)
    events = [event for some in file.slices() for event in some]
    assert [event.name for event in events] == ["caf\ufffd", "b"] and file.skipped == 0
    assert round(events[0].ts * 1000) == 1695835542481129000, "whole µs of old versions are exact"
