"""Messages come back as they were sent, and nothing else is taken for one."""

from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cli.main import parser
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import RunRecord

COUNTS = st.integers(0, (1 << 62) - 1)
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
IDS = st.text("0123456789abcdef", min_size=32, max_size=32)
RUNS = st.builds(
    RunRecord,
    name=st.text(max_size=300),
    anchor=st.builds(ClockAnchor, TIMES, TIMES, TIMES),
    pid=TIMES,
    host=st.text(max_size=300),
    rank=st.none() | TIMES,
    world_size=st.none() | TIMES,
    created_ns=TIMES,
)
HEADERS: st.SearchStrategy[protocol.Header] = st.one_of(
    st.builds(protocol.Hello, IDS, st.binary(min_size=4, max_size=4), COUNTS, RUNS, st.integers(0, 65535)),
    st.builds(protocol.Welcome, COUNTS, COUNTS, COUNTS, st.none() | st.integers(0, (1 << 32) - 1)),
    st.builds(protocol.Refused, st.text(max_size=1000), st.booleans()),
    st.builds(protocol.Frames, COUNTS, st.integers(0, protocol.MAX_FRAMES), st.integers(0, 65535), COUNTS),
    st.builds(protocol.Ack, COUNTS),
    st.builds(protocol.Ping, TIMES),
    st.builds(protocol.Pong, TIMES, TIMES, TIMES, st.text(max_size=64)),
)


@given(HEADERS, st.lists(st.binary(max_size=50), max_size=4))
def test_messages_come_back(header: protocol.Header, payload: list[bytes]) -> None:
    """Header and payload, of every type."""
    if not isinstance(header, protocol.Frames):
        payload = []
    found, rest = protocol.decode(protocol.encode(header, *payload))
    assert (found, bytes(rest)) == (header, b"".join(payload))


@given(HEADERS, st.data())
def test_a_message_that_was_cut_or_changed_is_no_other_one(header: protocol.Header, data: st.DataObject) -> None:
    """It is refused, or is a header again: nothing else is raised."""
    message = bytearray(protocol.encode(header))
    cut = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(FormatError):
        protocol.decode(bytes(message[:cut]))
    message[cut] ^= data.draw(st.integers(1, 255))
    try:
        found, _ = protocol.decode(bytes(message))
    except FormatError:
        return
    assert isinstance(found, typing.get_args(protocol.Header))


@given(HEADERS)
def test_fields_that_are_added_later_are_ignored(header: protocol.Header) -> None:
    """So that newer sides can say more to older ones."""
    fields: list[object] = msgspec.msgpack.decode(msgspec.msgpack.encode(header))
    packed = msgspec.msgpack.encode([*fields, {"more": 1}])
    assert protocol.decode(len(packed).to_bytes(4, "little") + packed)[0] == header


def test_every_run_fits_a_header() -> None:
    """However its name and host were made."""
    run = RunRecord(name="\U0001f600" * 100_000, anchor=ClockAnchor(0, 0, 0), host="h" * 100_000)
    hello = protocol.Hello("0" * 32, b"\xf5abc", 0, protocol.short(run))
    assert len(protocol.encode(hello)) < protocol.MAX_HEADER // 8


def test_every_frame_fits_a_message() -> None:
    """The largest frame of a journal is taken by a collector, unless it is told to take less."""
    assert fmt.MAX_PAYLOAD + fmt.FRAME_HEADER.size + protocol.MAX_HEADER + 4 <= protocol.MAX_MESSAGE
    defaults = CollectorSettings(directory=Path("x"))
    assert defaults.max_message == protocol.MAX_MESSAGE
    limits = [name for name in CollectorSettings.__struct_fields__ if name.startswith("max_")]
    options = parser().parse_args(["collect", "--dir", "x"])
    assert [getattr(options, name) for name in limits] == [getattr(defaults, name) for name in limits]
