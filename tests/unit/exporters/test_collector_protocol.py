"""Messages of exporters and collectors, with facts of steps in few bytes: they come back as they were sent, and nothing else is one."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cli.main import parser
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.step_summary import SUMS_DTYPE, count_steps, facts_of, shares_of, steps_in, summary_of
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, SIGNALS, Facts, Phase

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
    st.builds(protocol.Hello, IDS, st.binary(min_size=4, max_size=4), RUNS, st.integers(0, 65535)),
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
    hello = protocol.Hello("0" * 32, b"\xf5abc", protocol.short(run))
    assert len(protocol.encode(hello)) < protocol.MAX_HEADER // 8


def test_every_frame_fits_a_message() -> None:
    """The largest frame of a journal is accepted by a collector, unless its limit is lower."""
    assert fmt.MAX_PAYLOAD + fmt.FRAME_HEADER.size + protocol.MAX_HEADER + 4 <= protocol.MAX_MESSAGE
    defaults = CollectorSettings(directory=Path("x"))
    assert defaults.max_message == protocol.MAX_MESSAGE
    limits = [name for name in CollectorSettings.__struct_fields__ if name.startswith("max_")]
    options = parser().parse_args(["collect", "--dir", "x"])
    assert [getattr(options, name) for name in limits] == [getattr(defaults, name) for name in limits]


BEGIN = 10**15


def facts_with(durations: list[int], *, first: int = 7, window: int = 2) -> Facts:
    """Facts of consecutive steps without phases and readings."""
    facts: Any = np.zeros(len(durations), FACTS_DTYPE)
    facts["end"] = BEGIN + np.cumsum(np.array(durations, np.int64))
    facts["begin"] = facts["end"] - np.array(durations, np.int64)
    facts["step"], facts["window"] = first + np.arange(len(durations)), window
    for name in SIGNALS:
        facts[name] = np.nan
    return facts  # type: ignore[no-any-return]


def sent(summary: protocol.StepSummary) -> protocol.StepSummary:
    """As it arrives at the collector."""
    header, rest = protocol.decode(protocol.encode(summary))
    assert isinstance(header, protocol.StepSummary) and not len(rest)
    return header


def test_numbers_times_and_phases_come_back() -> None:
    """Each step has its duration, its collectives and its data; a phase that is unusual in a step is that step's."""
    facts = facts_with([20_000_000] * 9 + [100_000_000])
    took = facts["end"] - facts["begin"]
    facts["phases"][:, Phase.COMMUNICATION] = took // 4
    facts["phases"][:, Phase.DATA] = took // 10
    facts["phases"][:9, Phase.FORWARD] = took[:9] // 2
    facts["phases"][9, Phase.CHECKPOINT] = 60_000_000
    facts["cpu_ns"], facts["resident_bytes"] = took * 0.5, np.linspace(1e9, 2e9, 10)
    found = facts_of([sent(summary_of(facts, events=1000, lost=3))])
    assert found["step"].tolist() == facts["step"].tolist() and set(found["window"].tolist()) == {2}
    assert np.abs(found["begin"] - facts["begin"]).max() < 1000 and np.abs(found["end"] - facts["end"]).max() < 1000
    for phase in (Phase.COMMUNICATION, Phase.DATA):
        assert np.abs(found["phases"][:, phase] - facts["phases"][:, phase]).max() <= took.max() / 255
    checkpoints = found["phases"][:, Phase.CHECKPOINT]
    assert checkpoints[9] == pytest.approx(60_000_000, rel=0.01) and not checkpoints[:9].any()
    assert found["phases"][:9, Phase.FORWARD].sum() == pytest.approx(9 * 10_000_000, rel=0.02)
    assert (found["phases"].sum(axis=1) <= found["end"] - found["begin"]).all()
    assert found["cpu_ns"].sum() == pytest.approx(facts["cpu_ns"].sum()) and found["resident_bytes"][-1] == 2e9
    assert np.isnan(found["run_queue_ns"]).all(), "a value that was not read is unknown"


def test_bytes_of_a_summary() -> None:
    """A second of one step, and of a thousand, with all numbers large."""
    one = summary_of(facts_with([10**9]), events=10**12, lost=10**9)
    many = summary_of(facts_with([10**6] * 1000), events=10**12, lost=10**9)
    assert len(protocol.encode(one)) <= 200 and len(protocol.encode(many)) <= 200 + 8 * 1000


def test_steps_that_do_not_follow_each_other() -> None:
    """Other windows, gaps in time and in numbers keep their begins and numbers."""
    parts = [facts_with([5, 6], first=0), facts_with([7], first=2), facts_with([8], first=9)]
    parts[1]["begin"] += 10**9
    parts[1]["end"] += 10**9
    parts[2]["window"] = 5
    parts[2]["begin"] += 2 * 10**9
    parts[2]["end"] += 2 * 10**9
    facts: Any = np.concatenate(parts)
    found = steps_in(sent(summary_of(facts, events=0, lost=0)))
    for name, field in (("step", "number"), ("window", "window"), ("begin", "begin"), ("end", "end")):
        assert [getattr(step, field) for step in found] == facts[name].tolist()


def test_too_many_steps_are_left_out_and_counted() -> None:
    """The newest are sent."""
    summary = summary_of(facts_with([1000] * 3000), events=0, lost=0)
    assert summary.left_out == 3000 - protocol.MAX_SUMMARY_STEPS
    assert steps_in(summary)[-1].number == 7 + 2999 and count_steps(summary) == protocol.MAX_SUMMARY_STEPS


def test_windows_of_one_step_fit_a_header() -> None:
    """However many runs of steps there are, the collector reads the message."""
    facts = facts_with([10**9] * 2000, first=1 << 40)
    facts["window"] = (1 << 40) + np.arange(2000)
    summary = sent(summary_of(facts, events=1 << 60, lost=1 << 60))
    assert len(summary.runs) == protocol.MAX_SUMMARY_RUNS and summary.left_out == 2000 - protocol.MAX_SUMMARY_RUNS
    assert steps_in(summary)[-1].number == (1 << 40) + 1999


def test_no_steps() -> None:
    """It says that the process is there."""
    summary = sent(summary_of(facts_with([]), events=5, lost=1))
    assert (summary.events, summary.lost) == (5, 1) and not len(facts_of([summary])) and not steps_in(summary)


numbers = st.integers(-(1 << 63), (1 << 63) - 1)
runs = st.builds(protocol.StepRun, numbers, numbers, numbers, st.binary(min_size=8, max_size=80))


@given(
    st.lists(runs, max_size=8),
    st.one_of(st.binary(max_size=200), st.binary(min_size=SUMS_DTYPE.itemsize, max_size=SUMS_DTYPE.itemsize)),
)
def test_any_step_facts_of_a_sender_can_be_computed_with(runs: list[protocol.StepRun], sums: bytes) -> None:
    """Times that no clock shows are left out; nothing overflows, and phases are no longer than their steps."""
    summary = sent(protocol.StepSummary(0, 0, 0, runs, sums))
    with np.errstate(all="raise", under="ignore"):
        steps, facts = steps_in(summary), facts_of([summary])
        shares = shares_of(summary, steps)
    assert len(steps) <= count_steps(summary) and len(facts) <= count_steps(summary)
    assert all(step.begin <= step.begin + step.own <= step.end < 1 << 63 for step in steps)
    assert shares.resident_bytes is None or shares.resident_bytes >= 0
    took = facts["end"] - facts["begin"]
    assert (
        (took >= 0).all() and (facts["phases"] >= 0).all() and (facts["phases"].sum(axis=1) <= took + len(Phase)).all()
    )


def test_a_message_may_not_claim_too_much() -> None:
    """Its parts are bounded before they are read."""
    for harmful in (
        protocol.StepSummary(0, 0, 0, [protocol.StepRun(0, 0, 0, b"x" * (8 * protocol.MAX_SUMMARY_STEPS + 8))], b""),
        protocol.StepSummary(0, 0, 0, [], b"x" * 2000),
        protocol.StepSummary(-1, 0, 0, [], b""),
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(harmful), type=protocol.StepSummary)
