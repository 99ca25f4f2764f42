"""The native encoder of Perfetto's format, read by a decoder of others."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Flag, Kind, empty_block
from stepscope.runtime.events.tracks import TrackKind
from tests.support.messages import refused
from tests.support.pftrace import COUNTER, INSTANT, Slice, Trace
from tests.support.viewers.scene import PID, START, Scene, make_run
from tests.unit.exporters.test_chrome_encoder import INT64, VALUES
from tests.unit.exporters.test_perfetto_nesting import read


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An empty scene; its process is 4242, its main thread 4242."""
    return Scene(make_run(tmp_path))


def encode(scene: Scene) -> Trace:
    """The trace of the scene."""
    batch = scene.batch()
    return read(_core.PerfettoEncoder(1, 4711).encode(batch.events, batch.args, 0))


def only(trace: Trace) -> Slice:
    """The only slice."""
    (drawn,) = trace.slices()
    return drawn


def test_span(scene: Scene) -> None:
    """A span has its times in nanoseconds, its names, and its arguments by type."""
    scene.span("aten::add", 1.5, 2.001, shape=[2, [3, None]], how={"a b": True, "e": {}}, fast=True, none=None, low=-(2**63),
               big=2**64 - 1, ratio=0.1, nan=math.nan, text='"\n€')  # fmt: skip
    drawn = only(encode(scene))
    assert (drawn.name, drawn.category, drawn.ts, drawn.dur) == ("aten::add", "cpu_op", START + 1500, 2001)
    assert drawn.args == {
        "shape": [2, [3, "null"]], "how": {"a b": True, "e": "{}"}, "fast": True, "none": "null", "low": -(2**63),
        "big": str(2**64 - 1), "ratio": 0.1, "nan": "NaN", "text": '"\n€',
    }  # fmt: skip
    assert isinstance(drawn.args["fast"], bool)


def test_flags_are_reported(scene: Scene) -> None:
    """A span that was open, cut or left by an exception says so, next to arguments of any name."""
    scene.span("x", 0, 1, flags=Flag.OPEN | Flag.CLIPPED | Flag.ERROR, error=3)
    assert only(encode(scene)).args == {"had not ended": True, "was cut": True, "left by exception": True, "error": 3}


def test_inline_argument_and_numbered_name(scene: Scene) -> None:
    """The one argument that a record holds itself is written like any other; a step's name has its number."""
    scene.span("ProfilerStep", 0, 1)
    events = scene.batch().events.copy()
    events["flags"], events["step"] = Flag.ARG_INLINE | Flag.NUMBERED, 7
    events["args_at"], events["args_len"] = strings.intern("Sequence number"), 2**32 - 1
    drawn = only(read(_core.PerfettoEncoder(1, 4711).encode(events, b"", 0)))
    assert (drawn.name, drawn.args) == ("ProfilerStep#7", {"Sequence number": 2**32 - 1})


def test_spans_that_do_not_nest_are_pairs(scene: Scene) -> None:
    """Their ids keep them apart."""
    for n in range(3):
        scene.span("request", n, 2, flags=Flag.ASYNC, size=n)
    trace = encode(scene)
    assert trace.slices() == []
    assert [(pair.ts - START, pair.dur, pair.args) for pair in trace.pairs()] == [
        (1000 * n, 2000, {"size": n}) for n in range(3)
    ]


def test_points(scene: Scene) -> None:
    """Instants and metadata are points of their row; what is unknown is shown, not lost."""
    scene.add(Kind.INSTANT, "here", 1)
    scene.add(Kind.METADATA, "batch size", 2, size=32)
    scene.add(Kind.STEP, "step", 3)
    scene.add(99, "from the future", 4)  # type: ignore[arg-type]
    points = encode(scene).of(INSTANT)
    assert [(point.name, point.ts - START, point.args) for point in points] == [
        ("here", 1000, {}),
        ("batch size", 2000, {"size": 32}),
        ("from the future", 4000, {"unknown kind": 99}),
    ]


def test_counters(scene: Scene) -> None:
    """Counters have rows of their process, with their unit; values that are no number are instants that say so."""
    for value in (1.5, 2.0, -0.0, 1e300, math.nan, math.inf, -math.inf):
        scene.add(Kind.COUNTER, "loss", 1, value=value)
    scene.add(Kind.COUNTER, "overhead %", 1, value=1)
    scene.add(Kind.COUNTER, "bytes read", 1, value=1)
    trace = encode(scene)
    counted = trace.of(COUNTER)
    assert [event.value for event in counted] == [1.5, 2, 0, 1e300, 1, 1]
    assert math.copysign(1, counted[2].value) == -1
    loss, overhead, read_bytes = (trace.tracks[event.track] for event in counted[3:])
    assert (loss.name, overhead.name, read_bytes.name) == ("loss", "overhead %", "bytes read")
    assert (loss.counter.unit_name, overhead.counter.unit_name, read_bytes.counter.unit) == ("", "%", 3)
    assert trace.tracks[loss.parent_uuid].process.pid == PID
    assert [event.name for event in trace.of(INSTANT)] == ["loss is NaN", "loss is Infinity", "loss is -Infinity"]


def test_flows_follow_the_slices(scene: Scene) -> None:
    """Flows bind to the slice that is open at their time, which therefore comes first; their ids are those of the run."""
    scene.add(Kind.FLOW_START, "f", 1, id=5)
    scene.add(Kind.FLOW_STEP, "f", 2, id=5)
    scene.add(Kind.FLOW_END, "f", 3, id=5)
    scene.span("x", 1, 1)
    events = encode(scene).events
    assert [event.type for event in events[:2]] == [1, 2]
    assert [event.phase for event in events[2:]] == ["s", "t", "f"]
    (flow,) = {event.id for event in events[2:]}
    scene.add(Kind.FLOW_START, "f", 1, id=5)
    batch = scene.batch()
    assert read(_core.PerfettoEncoder(2, 4711).encode(batch.events, batch.args, 0)).events[0].id != flow


def test_gaps_overlap_nothing(scene: Scene) -> None:
    """A gap is a pair of its own with the number of events that are missing, never a slice of the row."""
    scene.add(Kind.GAP, "dropped", 1, 5, id=17)
    scene.add(Kind.GAP, "paused", 2, 5, id=0)
    trace = encode(scene)
    assert [(pair.name, pair.dur, pair.args) for pair in trace.pairs()] == [
        ("dropped", 5000, {"count": 17}),
        ("paused", 5000, {}),
    ]


def test_memory_and_async(scene: Scene) -> None:
    """Memory events say address and total; asynchronous events are pairs by id, whoever ends them."""
    scene.add(Kind.MEMORY, "any", 1, value=8192, id=3, Bytes=4096)
    scene.add(Kind.ASYNC_BEGIN, "load", 3, id=2**64 - 1)
    scene.add(Kind.ASYNC_END, "load", 4, id=2**64 - 1, track=scene.other)
    trace = encode(scene)
    (memory,) = trace.of(INSTANT)
    assert (memory.name, memory.args) == ("[memory]", {"Bytes": 4096, "Addr": 3, "Total Allocated": 8192})
    (pair,) = trace.pairs()
    assert (pair.name, pair.ts - START, pair.dur) == ("load", 3000, 1000)


def row(trace: Trace, name: str) -> Any:
    """The descriptor of the row that has a span."""
    return trace.tracks[next(drawn.track for drawn in trace.slices() if drawn.name == name)]


def test_rows(scene: Scene) -> None:
    """Threads hang on their process, tasks on their thread, streams on a device of the run's process."""
    task = tracks.new(TrackKind.TASK, PID, 1 << 30, "task 3", scene.main)
    stream = tracks.new(TrackKind.STREAM, 1, 7, "stream 7")
    twin = tracks.new(TrackKind.THREAD, PID, PID, "steps", scene.process)
    for name, track in (
        ("m", scene.main),
        ("t", task),
        ("s", stream),
        ("twin", twin),
        ("p", scene.process),
        ("?", 1 << 31),
    ):
        scene.span(name, 0, 1, track=track)
    trace = encode(scene)
    main = row(trace, "m")
    assert (main.thread.pid, main.thread.tid, main.thread.thread_name) == (PID, PID, "MainThread")
    assert trace.tracks[main.parent_uuid].process.process_name == "trainer"
    assert (row(trace, "t").name, row(trace, "t").parent_uuid) == ("task 3", main.uuid)
    device = trace.tracks[row(trace, "s").parent_uuid]
    assert (row(trace, "s").name, device.name) == ("stream 7", "device 1")
    assert (row(trace, "twin").name, row(trace, "twin").HasField("thread")) == ("steps", False)
    assert row(trace, "p").process.pid == PID
    assert row(trace, "?").uuid == _core.PerfettoEncoder(1, 4711).process(4711) == device.parent_uuid


def test_state_goes_on(scene: Scene) -> None:
    """Names are written once; forgotten ones are written again."""
    scene.span("a long enough name", 0, 1, key=1)
    batch = scene.batch()
    encoder = _core.PerfettoEncoder(1, 4711)
    first, second = (encoder.encode(batch.events, batch.args, 0) for _ in range(2))
    assert b"a long enough name" in first
    assert b"a long enough name" not in second
    encoder.forget()
    again = encoder.encode(batch.events, batch.args, 0)
    assert again == first
    assert only(read(again)).args == {"key": 1}


def test_refused_spans_are_not_half_there(scene: Scene) -> None:
    """Begins that were in bytes that did not reach the file are left out, as their ends are."""
    encoder = _core.PerfettoEncoder(1, 4711)
    scene.span("kept", 0, 1, parent=1, flags=Flag.CLIPPED, text="kept with its arguments")
    batch = scene.batch()
    written = encoder.encode(batch.events, batch.args, 0)
    scene.span("refused", 2, 1, parent=1, flags=Flag.CLIPPED)
    refused = scene.batch()
    encoder.encode(refused.events, refused.args, 0)
    encoder.forget()
    drawn = only(read(written, encoder.release()))
    assert (drawn.name, drawn.dur, drawn.args["text"]) == ("kept", 1000, "kept with its arguments")


def test_spans_written_before_a_refusal_are_nested_with(scene: Scene) -> None:
    """Spans that cross one in the file are drawn apart from it; those that cross refused ones are not."""
    encoder = _core.PerfettoEncoder(1, 4711)

    def encode(name: str, begin: int) -> bytes:
        scene.span(name, begin, 100)
        batch = scene.batch()
        return encoder.encode(batch.events, batch.args, 0)

    written = encode("written", 0)
    encode("refused", 200)
    encoder.forget()
    trace = read(written, encode("crosses it", 50), encode("crosses nothing", 250))
    assert sorted(drawn.name for drawn in trace.slices()) == ["crosses nothing", "written"]
    assert [drawn.name for drawn in trace.pairs()] == ["crosses it"]


@given(base=INT64, at=st.integers(0, 2**62), dur=st.integers(-10, 2**60))
def test_times_are_exact(base: int, at: int, dur: int) -> None:
    """Times keep every nanosecond; a negative duration is none."""
    ts = min(base + at, 2**63 - 1)
    if ts + dur >= 2**63:
        dur = 0
    block = empty_block(2)
    block["kind"], block["ts"], block["dur"] = Kind.SPAN, ts, dur
    block["flags"][1] = Flag.ASYNC
    trace = read(_core.PerfettoEncoder(1, 4711).encode(block, b"", 0))
    for drawn in (only(trace), *trace.pairs()):
        assert (drawn.ts, drawn.dur) == (ts, max(dur, 0))


def shown(value: Any) -> Any:
    """The text of a debug annotation for an argument."""
    if value is None:
        return "null"
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, list):
        return [shown(item) for item in cast(Any, value)] or "[]"
    if isinstance(value, dict):
        return {key: shown(item) for key, item in cast(dict[str, Any], value).items()} or "{}"
    return value


@given(
    name=st.text(),
    category=st.sampled_from(["", 'a "quoted"\ncategory']),
    args=st.dictionaries(st.text(), VALUES, max_size=6),
)
def test_any_name_and_argument(name: str, category: str, args: dict[str, Any]) -> None:
    """Names and arguments of any text and type survive."""
    block = empty_block(1)
    block["kind"], block["name"], block["category"] = Kind.SPAN, strings.intern(name), strings.category(category)
    heap = _core.encode_arguments(args)
    block["args_len"] = len(heap)
    drawn = only(read(_core.PerfettoEncoder(1, 4711).encode(block, heap, 0)))
    assert (drawn.name, drawn.category) == (strings.text(int(block["name"][0])), category)
    assert drawn.args == {key: shown(value) for key, value in _core.decode_arguments(heap, 0, len(heap)).items()}


@given(st.lists(st.binary(max_size=64 * 6), max_size=3), st.binary(max_size=200))
def test_any_bytes(blocks: list[bytes], heap: bytes) -> None:
    """Any blocks with any heap become a trace, with a begin for every end."""
    encoder = _core.PerfettoEncoder(1, 4711)
    pieces = [encoder.encode(block[: len(block) // 64 * 64], heap, 0) for block in blocks]
    read(*pieces, encoder.release())


@given(st.binary(max_size=120), st.integers(0, 200))
def test_any_heap(heap: bytes, length: int) -> None:
    """Arguments that cannot be read are marked as bad; the event stays."""
    block = empty_block(1)
    block["kind"], block["args_len"] = Kind.SPAN, length
    drawn = only(read(_core.PerfettoEncoder(1, 4711).encode(block, heap, 0)))
    if length > len(heap):
        assert drawn.args == {"bad arguments": True}


@given(
    st.one_of(
        st.binary(max_size=40),
        st.text(alphabet='[]{}",:0123456789.eE+-truefalsn\\u \n\t', max_size=40).map(str.encode),
        st.recursive(
            st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_foreign_json_is_split(text: bytes) -> None:
    """JSON of a producer becomes lists, mappings and values if it is JSON, and a text if it is not."""
    key = strings.intern("k")
    heap = key.to_bytes(4, "little") + len(text).to_bytes(2, "little") + b"j\0" + text
    block = empty_block(1)
    block["kind"], block["args_len"] = Kind.SPAN, len(heap)
    value = only(read(_core.PerfettoEncoder(1, 4711).encode(block, heap, 0))).args["k"]
    try:
        # Producers write UTF-8; of bytes, this would also take UTF-16.
        wanted = json.loads(text.decode(), parse_constant=_refuse, object_pairs_hook=_unique)
    except ValueError:
        assert isinstance(value, str) or value is not None
        return
    assert value == shown(_without_halves(wanted))


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {_without_halves(key): value for key, value in pairs}


def _without_halves(value: Any) -> Any:
    """Halves of surrogate pairs are no characters."""
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in value)
    if isinstance(value, list):
        return [_without_halves(item) for item in cast(Any, value)]
    if isinstance(value, dict):
        return {key: _without_halves(item) for key, item in cast(dict[str, Any], value).items()}
    return value


def test_a_span_takes_few_bytes(scene: Scene) -> None:
    """Two packets, of which names, row and most of the time are left out."""
    for n in range(10_000):
        scene.span("name", n * 3, 1)
    batch = scene.batch()
    assert len(_core.PerfettoEncoder(1, 4711).encode(batch.events, b"", 0)) < 32 * 10_000


def test_misuse_is_named() -> None:
    """A block that is not whole is refused; so are two threads in one encoder, which costs neither its state."""
    with refused(ValueError, "63", "64"):
        _core.PerfettoEncoder(1, 1).encode(bytes(63), b"", 0)
    encoder = _core.PerfettoEncoder(1, 4711)
    block = empty_block(200_000)
    block["kind"] = Kind.SPAN
    errors: list[BaseException] = []

    def use() -> None:
        for _ in range(20):
            try:
                encoder.encode(block, b"", 0)
            except RuntimeError as error:
                errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("two threads" in str(error) for error in errors)
    encoder.forget()
    assert len(read(encoder.encode(block[:1], b"", 0)).events) == 2
