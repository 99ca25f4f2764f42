"""How spans nest in Perfetto's format, however they were cut into blocks; and spans of two sources that cross on one row."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.nesting import FRAMES, MAX_CUT_NS, MAX_CUT_SHARE, cut_frames
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, empty_block, join_blocks
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.windows.router import RECORDER, WindowRouter
from stepscope.runtime.windows.step_marks import StepMark, WindowEnds
from tests.support.nesting import overlaps
from tests.support.pftrace import Slice, Trace

TRACK = tracks.new(TrackKind.THREAD, 4711, 4711, "row")


@dataclass
class Span:
    """A span of a made-up program."""

    begin: int
    end: int
    children: list[Span] = field(default_factory=lambda: [])
    number: int = 0
    parent: int = 0
    depth: int = 0


@st.composite
def forests(draw: st.DrawFn, begin: int = 0, end: int = 12, depth: int = 0) -> list[Span]:
    """Spans side by side in a stretch of time, with others inside; on so coarse a clock much is at the same time."""
    made: list[Span] = []
    at = begin
    for _ in range(draw(st.integers(0, 3 if depth < 4 else 0))):
        first = draw(st.integers(at, end))
        last = draw(st.integers(first, end))
        made.append(Span(first, last, draw(forests(first, last, depth + 1))))
        at = last
    return made


def in_order_of_their_ends(forest: list[Span], parent: int = 0, depth: int = 0) -> Iterator[Span]:
    """The spans in the order in which they ended, as a thread records them; numbered on the way."""
    for span in forest:
        span.number = next(_numbers)
        span.parent, span.depth = parent, depth
        yield from in_order_of_their_ends(span.children, span.number, depth + 1)
        yield span


def _count() -> Iterator[int]:
    number = 1 << 40
    while True:
        yield (number := number + 1)


_numbers = _count()


def block_of(spans: list[Span], flags: int = 0) -> Block:
    """Their events."""
    block = empty_block(len(spans))
    for event, span in zip(block, spans, strict=True):
        event["kind"], event["track"], event["flags"] = Kind.SPAN, TRACK, flags
        event["ts"], event["dur"] = 1000 + span.begin, span.end - span.begin
        event["id"], event["parent"] = span.number, span.parent
        event["name"] = strings.intern(f"span {span.number - (1 << 40)}")
    return block


def encoder() -> _core.PerfettoEncoder:
    """A fresh one, for process 4711, which the decoder need not know."""
    return _core.PerfettoEncoder(1, 4711)


def read(*pieces: bytes) -> Trace:
    """An encoder's output, after the description of its process that others write."""
    process = encoder().process(4711)
    head = bytes.fromhex("5001e203") + bytes([len(_varint(process)) + 1]) + b"\x08" + _varint(process)
    return Trace(b"\x0a" + bytes([len(head)]) + head + b"".join(pieces))


def _varint(number: int) -> bytes:
    made = b""
    while number > 127:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])


def expected_slices(spans: list[Span]) -> list[tuple[str, int, int]]:
    """Names and times."""
    return sorted((f"span {span.number - (1 << 40)}", 1000 + span.begin, span.end - span.begin) for span in spans)


def drawn_slices(slices: list[Slice]) -> list[tuple[str, int, int]]:
    """Names and times."""
    return sorted((drawn.name, drawn.ts, drawn.dur) for drawn in slices)


@settings(max_examples=200)
@given(forests(), st.lists(st.integers(0, 40), max_size=6))
def test_blocks_of_any_size(forest: list[Span], cuts: list[int]) -> None:
    """However spans are cut into blocks, each has its times; one that cannot nest any more is drawn apart. In one block each has
    its depth: also empty ones, and those that begin or end together."""
    spans = list(in_order_of_their_ends(forest))
    borders = [0, *sorted(min(cut, len(spans)) for cut in cuts), len(spans)]
    made = encoder()
    pieces = [made.encode(block_of(spans[a:b]), b"", 0) for a, b in zip(borders, borders[1:], strict=False)]
    trace = read(*pieces, made.release())
    assert drawn_slices([*trace.slices(), *trace.pairs()]) == expected_slices(spans)
    if not cuts:
        depths = {drawn.name: drawn.depth for drawn in trace.slices()}
        assert depths == {f"span {span.number - (1 << 40)}": span.depth for span in spans}


@settings(max_examples=150)
@given(forests(), st.lists(st.integers(0, 40), max_size=6))
@example(  # as long as the one that was written before, in which another begins with it and ends earlier
    forest=[Span(9, 11, [Span(9, 11, [Span(9, 10)]), Span(11, 11), Span(11, 11)])], cuts=[4]
)
def test_borders_nest_across_blocks(forest: list[Span], cuts: list[int]) -> None:
    """A span that begins where recording began nests as it should, though the one around it comes blocks later."""
    outer = [Span(0, 12, [Span(0, 12, [Span(0, 3), Span(3, 5), *shifted(forest)])])]
    spans = list(in_order_of_their_ends(outer))
    borders = [0, *sorted(min(cut, len(spans)) for cut in cuts), len(spans)]
    made = encoder()
    pieces: list[bytes] = []
    for a, b in zip(borders, borders[1:], strict=False):
        block = block_of(spans[a:b])
        block["flags"] = [Flag.CLIPPED if span.begin == 0 else 0 for span in spans[a:b]]
        pieces.append(made.encode(block, b"", 0))
    trace = read(*pieces, made.release())
    drawn = {slice.name: slice for slice in trace.slices()}
    for span in spans:
        if span.begin == 0:
            assert drawn[f"span {span.number - (1 << 40)}"].depth == span.depth
    assert drawn_slices([*trace.slices(), *trace.pairs()]) == expected_slices(spans)


def shifted(forest: list[Span]) -> list[Span]:
    """The same, but later than the first spans of `test_borders_nest_across_blocks`."""
    return [Span(max(span.begin, 6), max(span.end, 6), shifted(span.children)) for span in forest]


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=12), st.lists(st.integers(0, 12), max_size=3)
)
def test_any_intervals(intervals: list[tuple[int, int]], cuts: list[int]) -> None:
    """Spans that overlap in any way, in any order: each is there with its times."""
    spans = [Span(begin, begin + length, number=next(_numbers)) for begin, length in intervals]
    borders = [0, *sorted(min(cut, len(spans)) for cut in cuts), len(spans)]
    made = encoder()
    pieces = [made.encode(block_of(spans[a:b]), b"", 0) for a, b in zip(borders, borders[1:], strict=False)]
    trace = read(*pieces, made.release())
    if len(borders) == 2:
        assert drawn_slices([*trace.slices(), *trace.pairs()]) == expected_slices(spans)
    assert len(trace.slices()) + len(trace.pairs()) == len(spans)


CROSSED = tracks.new(tracks.TrackKind.THREAD, 4711, 4712, "row")
SERIAL, START = 3, 1_000_000


def crossing_block(spans: list[Span], category: str, scale: int) -> Block:
    """Events of a made-up program, `scale` ns for each of its moments."""
    events = empty_block(len(spans))
    for event, span in zip(events, spans, strict=True):
        event["kind"], event["track"], event["category"] = Kind.SPAN, CROSSED, strings.category(category)
        event["ts"], event["dur"] = START + span.begin * scale, (span.end - span.begin) * scale
        event["id"], event["parent"] = span.number, span.parent
        event["name"] = strings.intern(f"{category} {span.number}")
    return events


def times(events: Block) -> list[tuple[str, int, int]]:
    """Names and times."""
    return sorted((strings.text(int(row["name"])), int(row["ts"]), int(row["dur"])) for row in events)


def through(parts: list[tuple[str, Block]], steps: list[int]) -> list[EventBatch]:
    """Batches of one window for exporters, with steps that begin at these times."""
    windows = WindowRouter(SERIAL, 0, fallback_track=99)
    windows.add_source("torch")
    windows.open(StepMark(START, 0, CROSSED))
    marks = empty_block(len(steps))
    for number, (mark, at) in enumerate(zip(marks, steps, strict=True), 1):
        mark["kind"], mark["id"], mark["track"], mark["ts"], mark["step"] = Kind.STEP, SERIAL, CROSSED, at, number
    windows.add_marks(marks)
    batches = [batch for source, events in parts for batch in windows.route(source, events, b"")]
    end = START + 20_000_000_000
    windows.close(WindowEnds(end, True, ""), end)
    windows.watermark(RECORDER, end)
    windows.watermark("torch", end)
    assert windows.closable(end)
    return batches + [batch for _, last in windows.finish(empty_block()) for batch in last]


def drawn_by_chrome(batches: list[EventBatch]) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
    """Slices and async pairs of the Chrome JSON of these batches."""
    text = b"".join(_core.encode_chrome(batch.events, batch.args, 0, "kineto") for batch in batches)
    found = [json.loads(line.rstrip(b",")) for line in text.splitlines()]
    slices = [
        (event["name"], round(event["ts"] * 1000), round(event["dur"] * 1000)) for event in found if event["ph"] == "X"
    ]
    begun: dict[tuple[str, Any], int] = {}
    pairs: list[tuple[str, int, int]] = []
    for event in found:
        key = event["name"], str(event.get("id2"))
        if event["ph"] == "b":
            begun[key] = round(event["ts"] * 1000)
        elif event["ph"] == "e":
            pairs.append((event["name"], begun[key], round(event["ts"] * 1000) - begun.pop(key)))
    assert not begun
    return slices, pairs


def drawn_by_perfetto(batches: list[EventBatch]) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
    """Slices and async pairs of the native trace of these batches."""
    encoder = _core.PerfettoEncoder(1, 4711)
    pieces = [encoder.encode(batch.events, batch.args, 0) for batch in batches]
    trace = read(*pieces, encoder.release())
    slices = [(one.name, one.ts, one.dur) for one in trace.slices()]
    return slices, [(one.name, one.ts, one.dur) for one in trace.pairs()]


@settings(max_examples=60, deadline=None)
@given(
    forests(),
    forests(),
    st.lists(st.integers(1, 11), max_size=3, unique=True).map(sorted),
    st.sampled_from(["cpu_op", FRAMES]),
    st.sampled_from([7, 1000, 100_000_000]),
    st.lists(st.integers(0, 40), max_size=4),
    st.randoms(use_true_random=False),
)
def test_two_sources_on_one_row(
    program: list[Span],
    other: list[Span],
    steps: list[int],
    category: str,
    scale: int,
    cuts: list[int],
    shuffle: random.Random,
) -> None:
    """Regions and steps have their exact times, whatever blocks the spans of two sources come in, and rows nest."""
    regions, foreign = (
        crossing_block(list(in_order_of_their_ends(program)), "user_annotation", scale),
        crossing_block(list(in_order_of_their_ends(other)), category, scale),
    )
    parts: list[tuple[str, Block]] = []
    for source, events in ((RECORDER, regions), ("torch", foreign)):
        borders = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
        parts += [(source, events[a:b]) for a, b in zip(borders, borders[1:], strict=False) if a < b]
    # A step that begins inside of a region and ends after it is on a row of its own.
    steps = [at for at in steps if not any(span.begin < at < span.end for span in program)]
    early = shuffle.random() < 0.5  # the recorder's are routed first where the other source delivers a finished trace
    if not early:  # each source in its order
        mixed = [(at, part) for part in parts for at in [shuffle.random()]]
        for name in (RECORDER, "torch"):
            own = sorted(at for at, part in mixed if part[0] == name)
            mixed = [(own.pop(0), part) if part[0] == name else (at, part) for at, part in mixed]
        parts = [part for _, part in sorted(mixed, key=lambda one: one[0])]
    batches = through(parts, [START + at * scale for at in steps])
    if not batches:
        return
    exact = times(regions)
    # Perfetto's encoder does not know any more, after a block of another source, which spans of earlier blocks began at one time.
    ambiguous = len(parts) > 2 and len(np.unique(regions["ts"])) < len(regions)
    for drawn in (drawn_by_chrome,) if ambiguous else (drawn_by_chrome, drawn_by_perfetto):
        slices, pairs = drawn(batches)
        shown = sorted(slices + pairs)
        assert [one for one in shown if one[0].startswith("user_annotation")] == exact
        assert len(shown) == len(set(shown)) == len(regions) + len(foreign) + len(steps) + 1
        marks = [one for one in shown if one[0].startswith("ProfilerStep")]
        assert sorted(at for _, at, _ in marks) == [START, *(START + at * scale for at in steps)]
        others = [one for one in shown if one[0].startswith(category) and one[0].split()[0] == category]
        assert len(others) == len(foreign)
        for (name, at, dur), (named, begin, length) in zip(others, times(foreign), strict=True):
            assert name == named
            assert begin <= at and at + dur <= begin + length
            assert length - dur <= (max(MAX_CUT_NS, length * MAX_CUT_SHARE) if category == FRAMES else 0)
    slices, _ = drawn_by_chrome(batches)
    assert overlaps((at, at + dur) for _, at, dur in slices if dur) == []


def test_the_function_that_calls_step_is_cut_at_its_border() -> None:
    """The function loses a small share of its time, also where the call takes long, as when it ends a window."""
    most = MAX_CUT_NS
    steps = crossing_block([Span(0, 100 * most), Span(100 * most, 200 * most)], "user_annotation", 1)
    frames = crossing_block([Span(10, 102 * most, number=1), Span(102 * most + 1, 112 * most, number=2)], FRAMES, 1)
    events = join_blocks([steps, frames])
    cut_frames(events)
    assert not (events["flags"] & int(Flag.ASYNC)).any()
    assert [int(row["ts"] + row["dur"]) - START for row in events[2:]] == [100 * most - 1, 112 * most]


def test_frames_of_a_region_are_cut_at_its_borders() -> None:
    """A frame that enters a region ends where that begins; a frame that would lose more is drawn apart in full length."""
    most = MAX_CUT_NS
    region = crossing_block([Span(1000, 9 * most, number=1)], "user_annotation", 1)
    frames = crossing_block(
        [
            Span(900, 1100, number=2),  # __enter__
            Span(1050, 1080, number=3),  # called by it
            Span(9 * most - 100, 11 * most, number=4),  # __exit__, which goes on for long
            Span(-2 * most, 2 * most, number=5),
            Span(2000, 9 * most, number=6),
        ],
        FRAMES,
        1,
    )
    events = join_blocks([region, frames])
    cut_frames(events)
    assert [(int(row["ts"]) - START, int(row["ts"] + row["dur"]) - START) for row in events] == [
        (1000, 9 * most),
        (900, 999),
        (1050, 1080),
        (9 * most + 1, 11 * most),
        (-2 * most, 2 * most),
        (2000, 9 * most),
    ]
    assert (events["flags"] & int(Flag.ASYNC) != 0).tolist() == [False, False, False, False, True, False]
