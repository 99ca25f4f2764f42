"""How spans nest in Perfetto's format, whatever begins and ends at the same time and however they were cut into blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Flag, Kind, empty_block
from stepscope.runtime.events.tracks import TrackKind
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


def ended(forest: list[Span], parent: int = 0, depth: int = 0) -> Iterator[Span]:
    """The spans in the order in which they ended, as a thread records them; numbered on the way."""
    for span in forest:
        span.number = next(_numbers)
        span.parent, span.depth = parent, depth
        yield from ended(span.children, span.number, depth + 1)
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
    """What an encoder wrote, behind the description of its process that others write."""
    process = encoder().process(4711)
    head = bytes.fromhex("5001e203") + bytes([len(_varint(process)) + 1]) + b"\x08" + _varint(process)
    return Trace(b"\x0a" + bytes([len(head)]) + head + b"".join(pieces))


def _varint(number: int) -> bytes:
    made = b""
    while number > 127:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])


def wanted(spans: list[Span]) -> list[tuple[str, int, int]]:
    """Names and times."""
    return sorted((f"span {span.number - (1 << 40)}", 1000 + span.begin, span.end - span.begin) for span in spans)


def found(slices: list[Slice]) -> list[tuple[str, int, int]]:
    """Names and times."""
    return sorted((drawn.name, drawn.ts, drawn.dur) for drawn in slices)


@settings(max_examples=400)
@given(forests())
def test_a_block_nests_as_the_program_did(forest: list[Span]) -> None:
    """In one block every span has its times, and its depth: also empty ones, and those that begin or end together."""
    spans = list(ended(forest))
    trace = read(encoder().encode(block_of(spans), b"", 0))
    assert trace.pairs() == []
    assert found(trace.slices()) == wanted(spans)
    depths = {drawn.name: drawn.depth for drawn in trace.slices()}
    assert depths == {f"span {span.number - (1 << 40)}": span.depth for span in spans}


@settings(max_examples=300)
@given(forests(), st.lists(st.integers(0, 40), max_size=6), st.randoms(use_true_random=False))
def test_blocks_of_any_size(forest: list[Span], cuts: list[int], random: object) -> None:
    """However spans are cut into blocks, each has its times; one that cannot nest any more is drawn apart."""
    spans = list(ended(forest))
    borders = [0, *sorted(min(cut, len(spans)) for cut in cuts), len(spans)]
    made = encoder()
    pieces = [made.encode(block_of(spans[a:b]), b"", 0) for a, b in zip(borders, borders[1:], strict=False)]
    trace = read(*pieces, made.release())
    assert found([*trace.slices(), *trace.pairs()]) == wanted(spans)


@settings(max_examples=300)
@given(forests(), st.lists(st.integers(0, 40), max_size=6))
@example(  # as long as the one that was written before, in which another begins with it and ends earlier
    forest=[Span(9, 11, [Span(9, 11, [Span(9, 10)]), Span(11, 11), Span(11, 11)])], cuts=[4]
)
def test_borders_nest_across_blocks(forest: list[Span], cuts: list[int]) -> None:
    """What begins where recording began nests as it should, though what encloses it comes blocks later."""
    outer = [Span(0, 12, [Span(0, 12, [Span(0, 3), Span(3, 5), *shifted(forest)])])]
    spans = list(ended(outer))
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
    assert found([*trace.slices(), *trace.pairs()]) == wanted(spans)


def shifted(forest: list[Span]) -> list[Span]:
    """The same, but later than the first spans of `test_borders_nest_across_blocks`."""
    return [Span(max(span.begin, 6), max(span.end, 6), shifted(span.children)) for span in forest]


@settings(max_examples=300)
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
        assert found([*trace.slices(), *trace.pairs()]) == wanted(spans)
    assert len(trace.slices()) + len(trace.pairs()) == len(spans)
