"""Perfetto's files as their protocol says they are read, by the decoder that Perfetto's project generates."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.support.basics import require

MONOTONIC = 3
CLEARED, NEEDED = 1, 2
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


class Event(msgspec.Struct):
    """One track event, with everything that its sequence says for it."""

    ts: int
    type: int
    track: int
    name: str
    category: str
    args: dict[str, Any]
    phase: str = ""
    id: int = 0
    value: float = 0


class Slice(msgspec.Struct):
    """A span as it nests on its track."""

    name: str
    category: str
    ts: int
    dur: int
    depth: int
    track: int
    args: dict[str, Any]


class Trace:
    """All that a file says.

    Args:
        data: what was written, plain or gzip; may be cut.

    Raises:
        AssertionError: for what a reader would refuse or count as an error.
    """

    def __init__(self, data: bytes) -> None:
        self.tracks: dict[int, Any] = {}
        self.events: list[Event] = []
        self.anchor: dict[int, int] = {}
        self.packets = 0
        self._states: dict[int, _Sequence] = {}
        for packet in _packets(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data):
            self.packets += 1
            self._read(packet)

    def _read(self, packet: Any) -> None:
        number = packet.trusted_packet_sequence_id
        assert number, "a packet of no sequence"
        if packet.sequence_flags & CLEARED:
            self._states[number] = _Sequence()
        state = self._states.setdefault(number, _Sequence())
        if packet.sequence_flags & NEEDED:
            assert state.cleared or packet.sequence_flags & CLEARED, "state is needed that was never there"
        state.cleared = state.cleared or bool(packet.sequence_flags & CLEARED)
        state.learn(packet)
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert not descriptor.parent_uuid or descriptor.parent_uuid in self.tracks, "a parent that is not there"
            self.tracks[descriptor.uuid] = descriptor
        if packet.HasField("clock_snapshot"):
            clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
            if packet.clock_snapshot.primary_trace_clock:
                self.anchor = clocks
            else:
                assert clocks == {64: 0, MONOTONIC: 0}
        if packet.HasField("track_event"):
            event = state.event(packet)
            assert event.track in self.tracks, "an event of a track that was not described"
            self.events.append(event)

    def sorted(self) -> list[Event]:
        """Events in the order of their times; those of one time as they are in the file."""
        return sorted(self.events, key=lambda event: event.ts)

    def slices(self) -> list[Slice]:
        """Spans on rows; every begin has its end and the other way round."""
        stacks: dict[int, list[Slice]] = {}
        made: list[Slice] = []
        for event in self.sorted():
            stack = stacks.setdefault(event.track, [])
            if event.type == BEGIN:
                stack.append(Slice(event.name, event.category, event.ts, -1, len(stack), event.track, event.args))
                made.append(stack[-1])
            elif event.type == END and stack:
                top = stack.pop()
                top.dur = event.ts - top.ts
        return made

    def pairs(self) -> list[Slice]:
        """Spans that do not nest, and other asynchronous pairs."""
        opened: dict[tuple[str, int], list[Slice]] = {}
        made: list[Slice] = []
        for event in self.sorted():
            stack = opened.setdefault((event.category, event.id), [])
            if event.phase == "b":
                stack.append(Slice(event.name, event.category, event.ts, -1, 0, event.track, event.args))
                made.append(stack[-1])
            elif event.phase == "e" and stack:
                top = stack.pop()
                top.dur = event.ts - top.ts
        return made

    def of(self, type: int) -> list[Event]:
        """Events of one type."""
        return [event for event in self.sorted() if event.type == type]


class _Sequence:
    def __init__(self) -> None:
        self.cleared = False
        self.clock = self.default = self.track = self.last = 0
        self.names: dict[str, dict[int, str]] = {
            "event_names": {},
            "event_categories": {},
            "debug_annotation_names": {},
        }

    def learn(self, packet: Any) -> None:
        for kind, known in self.names.items():
            for entry in getattr(packet.interned_data, kind):
                assert entry.iid, "a number that means nothing"
                assert entry.iid not in known, "a number given twice"
                known[entry.iid] = entry.name if isinstance(entry.name, str) else entry.name.decode()
        if packet.HasField("trace_packet_defaults"):
            self.default = packet.trace_packet_defaults.timestamp_clock_id
            self.track = packet.trace_packet_defaults.track_event_defaults.track_uuid

    def event(self, packet: Any) -> Event:
        event = packet.track_event
        clock = packet.timestamp_clock_id or self.default
        assert clock in (MONOTONIC, 64)
        ts = packet.timestamp
        if clock == 64:
            ts = self.last = _signed(self.last + ts)
        name = self.names["event_names"][event.name_iid] if event.name_iid else event.name
        categories = [self.names["event_categories"][iid] for iid in event.category_iids] or list(event.categories)
        assert len(categories) <= 1
        legacy = event.legacy_event
        value = event.double_counter_value if event.type == COUNTER else 0
        return Event(
            ts=ts,
            type=event.type,
            track=event.track_uuid or self.track,
            name=name,
            category=categories[0] if categories else "",
            args=dict(self._annotation(annotation) for annotation in event.debug_annotations),
            phase=chr(legacy.phase) if legacy.phase else "",
            id=legacy.local_id or legacy.unscoped_id,
            value=value,
        )

    def _annotation(self, annotation: Any) -> tuple[str, Any]:
        names = self.names["debug_annotation_names"]
        name = names[annotation.name_iid] if annotation.name_iid else annotation.name
        if annotation.dict_entries:
            return name, dict(self._annotation(entry) for entry in annotation.dict_entries)
        if annotation.array_values:
            return name, [self._annotation(value)[1] for value in annotation.array_values]
        kind = annotation.WhichOneof("value")
        assert kind in ("bool_value", "int_value", "double_value", "string_value"), kind
        return name, getattr(annotation, kind)


def _packets(data: bytes) -> Iterator[Any]:
    """The whole packets; what was cut off is left out, as readers do."""
    proto: Any = require("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    at = 0
    while at < len(data):
        assert data[at] == 0x0A, "no packet begins here"
        length, begin = _varint(data, at + 1)
        if length is None or begin + length > len(data):
            return
        packet = proto.TracePacket()
        packet.ParseFromString(data[begin : begin + length])
        packet.DiscardUnknownFields()
        yield packet
        at = begin + length


def _varint(data: bytes, at: int) -> tuple[int | None, int]:
    number = shift = 0
    while at < len(data):
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return number, at
    return None, at


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def load(path: Path) -> Trace:
    """Reads a file."""
    return Trace(path.read_bytes())


def names(path: Path) -> list[str]:
    """Names of the spans of a file, all of which have ended."""
    slices = load(path).slices()
    assert all(drawn.dur >= 0 for drawn in slices)
    return [drawn.name for drawn in slices]


def arguments_of(path: Path, name: str) -> dict[str, Any]:
    """Arguments of the only instant of this name."""
    (found,) = (event for event in load(path).of(INSTANT) if event.name == name)
    return found.args
