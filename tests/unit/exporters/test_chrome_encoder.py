"""The native encoder of Chrome JSON."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Flag, Kind, empty_block
from stepscope.runtime.events.tracks import TrackKind
from tests.support.messages import refused
from tests.support.viewers.scene import START, Scene, make_run

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    INT64,
    st.integers(0, 2**64 - 1),
    st.floats(),
    st.text(),
    st.lists(st.one_of(st.integers(-(2**53), 2**53), st.text(max_size=20), st.none()), max_size=8),
    st.dictionaries(st.text(max_size=5), st.booleans(), max_size=3),
)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An empty scene; its process is 4242, its main thread 4242."""
    return Scene(make_run(tmp_path))


def lines(data: bytes) -> list[dict[str, Any]]:
    """The events of encoded lines, each parsed on its own."""
    parts = data.split(b",\n")
    assert parts.pop() == b""
    return [json.loads(part) for part in parts]


def encode(scene: Scene, dialect: str = "kineto", base: int = START) -> list[dict[str, Any]]:
    """The Chrome events of the scene."""
    batch = scene.batch()
    return lines(_core.encode_chrome(batch.events, batch.args, base, dialect))


HERE = {"pid": 4242, "tid": 4242}


def test_span(scene: Scene) -> None:
    """A span is a complete event with its times in microseconds, its arguments typed."""
    scene.span("aten::add", 1.5, 2.001, shape=[2, 3], fast=True, none=None, big=2**64 - 1, ratio=0.1, text='"\n€')
    (event,) = encode(scene)
    assert event == {
        "ph": "X", "cat": "cpu_op", "name": "aten::add", **HERE, "ts": 1.5, "dur": 2.001,
        "args": {"shape": [2, 3], "fast": True, "none": None, "big": 2**64 - 1, "ratio": 0.1, "text": '"\n€'},
    }  # fmt: skip


def test_flags_are_reported(scene: Scene) -> None:
    """A span that was open, cut or left by an exception says so, next to arguments of any name."""
    scene.span("x", 0, 1, flags=Flag.OPEN | Flag.CLIPPED | Flag.ERROR, error=3)
    (event,) = encode(scene)
    assert event["args"] == {"had not ended": True, "was cut": True, "left by exception": True, "error": 3}


def test_inline_argument(scene: Scene) -> None:
    """The one argument that a record holds itself is written like any other."""
    scene.span("aten::add", 0, 1)
    batch = scene.batch()
    events = batch.events.copy()
    events["flags"], events["args_at"], events["args_len"] = (
        Flag.ARG_INLINE,
        strings.intern("Sequence number"),
        2**32 - 1,
    )
    assert lines(_core.encode_chrome(events, b"", START, "kineto"))[0]["args"] == {"Sequence number": 2**32 - 1}


@pytest.mark.parametrize("dialect", ["kineto", "tensorboard"])
def test_numbered_span(scene: Scene, dialect: str) -> None:
    """A span of a step is called by its name and the step, and stays an annotation."""
    scene.span("ProfilerStep", 0, 1, flags=Flag.NUMBERED, category="user_annotation")
    batch = scene.batch()
    events = batch.events.copy()
    events["step"] = 7
    (event,) = lines(_core.encode_chrome(events, b"", START, dialect))
    assert (event["name"], event["cat"]) == ("ProfilerStep#7", "user_annotation")


def test_async_span_is_a_pair(scene: Scene) -> None:
    """A span that does not nest becomes two events linked by its id."""
    scene.span("request", 1, 2, flags=Flag.ASYNC, id=255, size=3)
    begin, end = encode(scene)
    assert (begin["ph"], begin["ts"], begin["args"]) == ("b", 1, {"size": 3})
    assert (end["ph"], end["ts"]) == ("e", 3)
    assert begin["id2"] == end["id2"] == {"local": "0xff"}


def test_points(scene: Scene) -> None:
    """Instants belong to their thread, metadata to the process; what is unknown is shown, not lost."""
    scene.add(Kind.INSTANT, "here", 1)
    scene.add(Kind.METADATA, "batch size", 2, size=32)
    scene.add(Kind.ASYNC_BEGIN, "load", 3, id=10)
    scene.add(Kind.ASYNC_END, "load", 4, id=10)
    scene.add(Kind.STEP, "step", 5)
    scene.add(99, "from the future", 6)  # type: ignore[arg-type]
    here, metadata, begin, end, unknown = encode(scene)
    assert (here["ph"], here["s"], here["ts"]) == ("i", "t", 1)
    assert (metadata["ph"], metadata["s"], metadata["args"]) == ("i", "p", {"size": 32})
    assert (begin["ph"], end["ph"], begin["id2"] == end["id2"]) == ("b", "e", True)
    assert (unknown["ph"], unknown["args"]) == ("i", {"unknown kind": 99})


def test_counters(scene: Scene) -> None:
    """Counters belong to the process; values that JSON does not know are instants that say so."""
    for value in (1.5, 2.0, -0.0, 1e300, math.nan, math.inf, -math.inf):
        scene.add(Kind.COUNTER, "loss", 1, value=value)
    events = encode(scene)
    assert [event["args"]["value"] for event in events[:4]] == [1.5, 2, 0, 1e300]
    assert math.copysign(1, events[2]["args"]["value"]) == -1
    assert events[0] == {"ph": "C", "cat": "cpu_op", "name": "loss", "pid": 4242, "ts": 1, "args": {"value": 1.5}}
    assert [(event["ph"], event["name"]) for event in events[4:]] == [
        ("i", "loss is NaN"), ("i", "loss is Infinity"), ("i", "loss is -Infinity"),
    ]  # fmt: skip


def test_flows_follow_the_slices(scene: Scene) -> None:
    """Flows bind to the enclosing slice, which therefore comes first in the file."""
    scene.add(Kind.FLOW_START, "f", 1, id=5)
    scene.add(Kind.FLOW_STEP, "f", 2, id=5)
    scene.add(Kind.FLOW_END, "f", 3, id=5)
    scene.span("x", 1, 1)
    span, start, step, end = encode(scene)
    assert span["ph"] == "X"
    assert [(event["ph"], event["id"], event.get("bp")) for event in (start, step, end)] == [
        ("s", 5, None), ("t", 5, "e"), ("f", 5, "e"),
    ]  # fmt: skip


def test_gaps_overlap_nothing(scene: Scene) -> None:
    """A gap is a pair of its own with the number of events that are missing, never a slice on the track."""
    scene.add(Kind.GAP, "dropped", 1, 5, id=17)
    scene.add(Kind.GAP, "paused", 2, 5, id=0)
    begin, end, paused, _ = encode(scene)
    assert (begin["ph"], begin["args"], end["ph"], end["ts"]) == ("b", {"count": 17}, "e", 6)
    assert "args" not in paused
    assert paused["id2"] != begin["id2"]


def test_memory_events_have_the_keys_of_the_plugin(scene: Scene) -> None:
    """Memory events carry every key of the memory view, from the record where the arguments do not say it."""
    scene.add(Kind.MEMORY, "any", 1, value=8192, id=3, Bytes=4096)
    (event,) = encode(scene)
    assert (event["ph"], event["name"]) == ("i", "[memory]")
    assert event["args"] == {
        "Bytes": 4096, "Addr": 3, "Device Type": 0, "Device Id": -1, "Total Allocated": 8192, "Total Reserved": 0,
    }  # fmt: skip


def test_dialects(scene: Scene) -> None:
    """The plugin's names and links are written for the plugin, and only for it."""
    stream = tracks.new(TrackKind.STREAM, 2, 9, "stream 9")
    expected = [
        ("cuda_runtime", "x", "runtime"),
        ("cuda_driver", "x", "runtime"),
        ("user_annotation", "forward", "cpu_op"),
        ("user_annotation", "ProfilerStep#3", "user_annotation"),
        ("kernel", "x", "kernel"),
        ("python_function", "x", "python_function"),
        ("my own", "x", "my own"),
    ]

    def add() -> None:
        for category, name, _ in expected:
            scene.span(name, 0, 1, category=category, parent=6, id=7, track=stream if category == "kernel" else 0)
        scene.add(Kind.FLOW_START, "fwdbwd", 0, category="fwdbwd")

    add()
    *kineto, flow = encode(scene)
    assert [event["cat"] for event in kineto] == [category for category, _, _ in expected]
    assert flow["cat"] == "fwdbwd"
    assert [event.get("args") for event in kineto] == [None] * 4 + [{"device": 2, "stream": 9}] + [None] * 2
    add()
    *tensorboard, flow = encode(scene, "tensorboard")
    assert [event["cat"] for event in tensorboard] == [renamed for _, _, renamed in expected]
    assert flow["cat"] == "forward_backward"
    links = [event.get("args") for event in tensorboard]
    assert links[0] == {"External id": 6, "correlation": 7}
    assert links[2] == {"External id": 7}
    assert links[4] == {"device": 2, "stream": 9, "External id": 6, "correlation": 0}
    assert links[5:] == [None, None]


def test_arguments_say_it_better(scene: Scene) -> None:
    """Links of a producer stay."""
    given_links = {"External id": 11, "correlation": 12, "device": 13, "stream": 14}
    scene.span("k", 0, 1, category="kernel", parent=6, **given_links)
    assert encode(scene, "tensorboard")[0]["args"] == given_links


@given(base=INT64, at=st.integers(0, 2**62), dur=st.integers(-10, 2**60), before=st.booleans())
def test_times_are_exact(base: int, at: int, dur: int, before: bool) -> None:
    """Times in microseconds keep every nanosecond, whatever the clocks; a negative duration is none."""
    ts = max(min(base - at if before else base + at, 2**63 - 1), -(2**63))
    if ts - base + dur >= 2**63:
        dur = 0
    block = empty_block(1)
    block["kind"], block["ts"], block["dur"] = Kind.SPAN, ts, dur
    text = _core.encode_chrome(block, b"", base, "kineto").decode()
    if not -(2**63) <= ts - base < 2**63:
        return
    assert f'"ts":{_decimal(ts - base)},"dur":{_decimal(max(dur, 0))}}}' in text


def _decimal(ns: int) -> str:
    us, rest = divmod(abs(ns), 1000)
    return f"{'-' * (ns < 0)}{us}.{rest:03}"


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**12)), min_size=1, max_size=20), st.integers(0, 10**12)
)
def test_plugin_times_add_up(spans: list[tuple[int, int]], end: int) -> None:
    """For the plugin, which adds doubles, equal ends are equal and every nanosecond can be recovered."""
    spans = spans + [(max(end - dur, 0), min(dur, end)) for _, dur in spans]
    block = empty_block(len(spans))
    block["kind"] = Kind.SPAN
    block["ts"], block["dur"] = np.array(spans).T
    ends: dict[int, float] = {}
    for (ts, dur), event in zip(spans, lines(_core.encode_chrome(block, b"", 0, "tensorboard")), strict=True):
        assert round(Fraction(event["ts"]) * 1000) == ts
        assert round(Fraction(event["dur"]) * 1000) == dur
        assert ends.setdefault(ts + dur, event["ts"] + event["dur"]) == event["ts"] + event["dur"]
    assert sorted(ends.values()) == [ends[key] for key in sorted(ends)]


@given(
    name=st.text(),
    category=st.sampled_from(["", 'a "quoted"\ncategory']),
    args=st.dictionaries(st.text(), VALUES, max_size=6),
)
def test_any_name_and_argument(name: str, category: str, args: dict[str, Any]) -> None:
    """Names and arguments of any text survive; numbers that JSON lacks become strings."""
    block = empty_block(1)
    block["kind"], block["name"], block["category"] = Kind.SPAN, strings.intern(name), strings.category(category)
    heap = _core.encode_arguments(args)
    block["args_len"] = len(heap)
    for dialect in ("kineto", "tensorboard"):
        (event,) = lines(_core.encode_chrome(block, heap, 0, dialect))
        assert event["name"] == strings.text(int(block["name"][0]))
        assert event["cat"] == category
        decoded = _core.decode_arguments(heap, 0, len(heap))
        written = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        plain = {k: written.get(str(v), v) if isinstance(v, float) else v for k, v in decoded.items()}
        assert event.get("args", {}) == plain


@given(st.binary(max_size=64 * 6), st.binary(max_size=200), INT64, st.sampled_from(["kineto", "tensorboard"]))
def test_any_bytes(block: bytes, heap: bytes, base: int, dialect: str) -> None:
    """Any block with any heap becomes JSON."""
    lines(_core.encode_chrome(block[: len(block) // 64 * 64], heap, base, dialect))


@given(st.binary(max_size=120), st.integers(0, 200))
def test_any_heap(heap: bytes, length: int) -> None:
    """Arguments that cannot be read are marked as bad; the event stays."""
    block = empty_block(1)
    block["kind"], block["args_len"] = Kind.SPAN, length
    (event,) = lines(_core.encode_chrome(block, heap, 0, "kineto"))
    assert event["ph"] == "X"
    if length > len(heap):
        assert event["args"] == {"bad arguments": True}


@given(
    st.one_of(
        st.binary(max_size=40), st.text(alphabet='[]{}",:0123456789.eE+-truefalsn\\u \n\t', max_size=40).map(str.encode)
    )
)
def test_foreign_json_is_checked(text: bytes) -> None:
    """JSON text of a producer stays if it is JSON, on one line, and becomes a string if it is not."""
    key = strings.intern("k")
    heap = key.to_bytes(4, "little") + len(text).to_bytes(2, "little") + b"j\0" + text
    block = empty_block(1)
    block["kind"], block["args_len"] = Kind.SPAN, len(heap)
    data = _core.encode_chrome(block, heap, 0, "kineto")
    assert data.count(b"\n") == 1
    value = lines(data)[0]["args"]["k"]
    try:
        assert value == json.loads(text.decode(), parse_constant=_refuse)
    except ValueError:
        assert value == text.decode("utf-8", "replace") or isinstance(value, str)


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def test_large_blocks_grow_the_output(scene: Scene) -> None:
    """Long names and arguments that outgrow every estimate are written whole."""
    name = "\x01" * 1024
    for _ in range(50):
        scene.span(name, 0, 1, text="\x02" * 4096)
    events = encode(scene)
    assert len(events) == 50
    assert all(event["name"] == name and event["args"]["text"] == "\x02" * 4096 for event in events)


def test_misuse_is_named() -> None:
    """A block that is not whole and an unknown dialect are refused."""
    with refused(ValueError, "63", "64"):
        _core.encode_chrome(bytes(63), b"", 0, "kineto")
    with refused(ValueError, "dialect", "kineto", "tensorboard", "chrome"):
        _core.encode_chrome(b"", b"", 0, "chrome")
