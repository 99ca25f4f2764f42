"""Windows that are opened afterwards: the stored events are those of the last steps, and every event is accounted for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.events.record import Block, EventBatch, Kind, join_blocks
from stepscope.runtime.flight.late_windows import FlightWindows
from stepscope.runtime.flight.retention import Retention
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.windows.open_window import STEPS, OpenWindow
from stepscope.runtime.windows.router import RECORDER
from stepscope.runtime.windows.step_marks import StepMark, WindowEnds
from tests.support.blocks import gap_block, instant_block, mark_block, span_block

SERIAL = 7
STEP = 100
"""Length of a step in ns: step n lasts from n * STEP."""


class Run:
    """A run whose time the test moves."""

    def __init__(
        self, *, directory: Path | None = None, steps: int = 3, after: int = 0, max_bytes: int = 128 << 20
    ) -> None:
        settings = FlightRecorder(steps=steps, after=after, max_bytes=max_bytes)
        self.windows = FlightWindows(SERIAL, 1000, 99, settings, directory)
        self.windows.open(StepMark(0, 0, 1))
        self.batches: list[EventBatch] = []
        self.closed: list[OpenWindow] = []
        self.now = 0

    def until(self, at: int, *blocks: Block, device: Block | None = None) -> Run:
        """The recorder has delivered up to `at`, with these events."""
        marks = mark_block(SERIAL, *((ts, ts // STEP) for ts in range((self.now // STEP + 1) * STEP, at + 1, STEP)))
        self.windows.add_marks(marks)
        self.batches += self.windows.route(RECORDER, marks[marks["ts"] > 0], b"")
        for block in blocks:
            self.batches += self.windows.route(RECORDER, block, b"")
        if device is not None:
            self.batches += self.windows.route("device", device, b"")
        self.windows.watermark(RECORDER, at)
        self.now = at
        return self

    def save(self, at: int, at_once: bool = False) -> OpenWindow:
        """A trigger has fired."""
        return self.windows.save(at, at_once, self.now)

    def advance(self, open_spans: Block | None = None, *, close: bool = True) -> Run:
        """Gives windows what they wait for, closes those that are ready, lets go."""
        while (more := self.windows.deliver()) is not None:
            self.batches += more
        if close and self.windows.closable(self.now):
            for window, batches in self.windows.finish(span_block() if open_spans is None else open_spans):
                self.closed.append(window)
                self.batches += batches
        self.windows.discard(1 << 62)
        return self

    def events(self, window: int, *kinds: Kind, source: str | None = None) -> Block:
        """The events that a window got."""
        wanted = [
            batch.events
            for batch in self.batches
            if batch.window == window and (batch.source != STEPS if source is None else batch.source == source)
        ]
        events = join_blocks(wanted)
        return events[np.isin(events["kind"], [int(kind) for kind in kinds])] if kinds else events

    def steps(self, window: int) -> list[int]:
        """Numbers of a window's steps."""
        return [step.number for step in self.closed[window].steps()]

    def check_accounts(self) -> None:
        """Everything that was seen is somewhere, once."""
        known = self.windows.statistics()
        for source, seen in known.seen.items():
            parts = (known.accepted, known.outside, known.late, known.superseded, known.retained)
            assert seen == sum(part.get(source, 0) for part in parts), source
            assert all(part.get(source, 0) >= 0 for part in parts), known


def test_late_device() -> None:
    """The window waits for a device; what comes after it has closed is late, and counted when it is let go."""
    run = Run()
    run.windows.add_source("device")
    run.until(5 * STEP)
    run.save(5 * STEP - 1)
    run.advance()
    assert not run.closed
    run.until(6 * STEP, device=instant_block(450, 550))
    run.windows.watermark("device", 6 * STEP)
    run.advance()
    assert run.events(0, source="device")["ts"].tolist() == [450]
    run.until(7 * STEP, device=instant_block(460))
    list(run.windows.end_retention())
    known = run.windows.statistics()
    assert (known.accepted["device"], known.late["device"], known.outside["device"]) == (1, 1, 1)
    assert known.dropped["device"] == {"late": 1}


def test_pause_lies_in_the_window() -> None:
    """A pause before the trigger is a gap of the window; a step with a pause in it is not judged by its time."""
    run = Run().until(3 * STEP + 20)
    assert run.windows.ended_steps(320).numbers.tolist() == [0, 1, 2]
    run.windows.pause(350)
    assert run.windows.paused
    run.batches += run.windows.resume(370)
    run.until(5 * STEP, instant_block(340, 360, 380))
    assert run.windows.ended_steps(500).numbers.tolist() == [4]
    run.save(5 * STEP - 1)
    run.advance()
    assert run.events(0, Kind.INSTANT)["ts"].tolist() == [340, 380]
    (gap,) = run.events(0, Kind.GAP, source=STEPS)
    assert (gap["ts"], gap["dur"]) == (350, 20)
    run.check_accounts()


def test_losses_are_counted_in_the_window_of_their_time() -> None:
    """Gaps of rings, and what a source says that it lost, are in the ledger of the window; older ones are not."""
    run = Run().until(2 * STEP)
    run.windows.add_source("device")
    run.windows.source_dropped("device", "source", 3, 150)
    run.until(6 * STEP, gap_block(420, 430, 11))
    run.windows.source_dropped("device", "source", 4, 450)
    run.windows.source_dropped("device", "source", 5, 460)
    run.save(6 * STEP - 1)
    run.windows.watermark("device", 700)
    run.advance()
    ledger = run.closed[0].ledger()
    assert ledger["device"].dropped == {"source": 9}
    assert ledger[RECORDER].dropped == {"overflow": 11} and ledger[RECORDER].balanced()


def test_a_burst_of_steps() -> None:
    """A hundred thousand steps in one drain: the trigger's are saved, and memory is flat afterwards."""
    run = Run(steps=10)
    marks = mark_block(SERIAL, (STEP, 1))
    burst = np.repeat(marks, 100_000)
    burst["ts"], burst["step"] = 100 + np.arange(100_000), 1 + np.arange(100_000)
    run.windows.add_marks(burst)
    run.batches += run.windows.route(RECORDER, burst, b"")
    run.windows.watermark(RECORDER, 200_000)
    assert len(run.windows.ended_steps(200_000)) == 100_000
    run.save(100 + 50_000)
    run.advance()
    assert run.steps(0) == list(range(49_992, 50_002))
    assert len(run.windows.steps) < 100
    run.check_accounts()


def test_blocks_are_let_go_while_a_window_waits_for_them() -> None:
    """The limit wins: a window gets its remaining events at once, and none is lost."""
    run = Run(max_bytes=1 << 20, steps=50)
    run.until(STEP, instant_block(*range(10, 90)))
    window = run.save(50, at_once=True)
    for round_ in range(2, 40):
        run.batches += run.windows.route(RECORDER, instant_block(*range(round_ * 1000, round_ * 1000 + 900)), b"")
    assert run.windows.retention.statistics().discarded_early > 0
    run.advance()
    assert run.events(window.index, Kind.INSTANT)["ts"].tolist() == list(range(10, 50))
    run.check_accounts()


def test_blocks_of_uneven_events_keep_the_limit() -> None:
    """A block of small events, and of a few with large arguments at its end, is divided by what each piece takes."""
    limit, large = 1 << 20, 1 << 13
    block = instant_block(*range(8_200))
    block["args_at"][8_000:] = np.arange(200) * large
    block["args_len"][8_000:] = large
    retention = Retention(None, 1, limit, lambda block: None)
    pieces = list(retention.add(RECORDER, block, bytes(200 * large)))
    assert sum(len(events) for _, events, _ in pieces) == 8_200
    assert [len(heap) for _, _, heap in pieces] == [int(events["args_len"].sum()) for _, events, _ in pieces]
    found = retention.statistics()
    assert found.peak_bytes <= limit
    assert found.bytes > limit * 3 // 4 and found.events > 90


def test_damaged_files_are_counted(tmp_path: Path) -> None:
    """A file that cannot be read back belongs to no window, and the ledger counts it."""
    run = Run(directory=tmp_path).until(3 * STEP, instant_block(150, 250))
    for path in tmp_path.glob("kept-*"):
        path.write_bytes(bytes(len(path.read_bytes())))
    run.save(3 * STEP - 1)
    run.advance()
    assert not len(run.events(0, Kind.INSTANT))
    assert run.closed[0].ledger()[RECORDER].dropped["unreadable"] == 5
    assert run.windows.retention.statistics().unreadable == 5
    list(run.windows.end_retention())
    run.windows.retention.remove_files()
    assert not list(tmp_path.iterdir())
    run.check_accounts()


DELIVERIES = st.lists(
    st.tuples(
        st.integers(0, 30),  # how many steps later it arrives
        st.integers(0, 40 * STEP - 1),  # when it began
        st.sampled_from([0, 0, 5, 150, 1200]),  # how long it lasted; 0: an instant
    ),
    max_size=60,
)


@given(
    in_files=st.booleans(),
    deliveries=DELIVERIES,
    saves=st.dictionaries(st.integers(1, 40), st.booleans(), max_size=6),
    steps=st.integers(1, 12),
    after=st.integers(0, 3),
    linger=st.booleans(),
)
def test_saved_events_are_those_of_the_last_steps(
    in_files: bool,
    deliveries: list[tuple[int, int, int]],
    saves: dict[int, bool],
    steps: int,
    after: int,
    linger: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """In any order of arrival, a window has the events that had arrived and touch it, cut to it; each event counts once."""
    directory = tmp_path_factory.mktemp("session") if in_files else None
    run = Run(directory=directory, steps=steps, after=after)
    if linger:
        run.windows.add_source("device")  # says nothing: windows wait for it until the linger time is over
    arrived: list[tuple[int, int, int, int]] = []
    asked: dict[int, int] = {}
    closed_at: dict[int, int] = {}
    for step in range(1, 41):
        blocks: list[Block] = []
        for number, (delay, ts, dur) in enumerate(deliveries):
            due = max(-(-(ts + dur) // STEP) + delay, 1)
            if due == step or (step == 40 and due > 40 and ts + dur <= 40 * STEP):
                block = span_block((ts, ts + dur), first_id=number + 1) if dur else instant_block(ts)
                block["id"] = number + 1
                blocks.append(block)
                arrived.append((step, number + 1, ts, dur))
        run.until(step * STEP, *blocks)
        at = step * STEP - 1
        if step in saves and not run.windows.saved_at(at) and run.windows.window_at(at) is None:
            asked[run.save(at, at_once=saves[step]).index] = step - 1
        run.advance()
        for window in run.closed:
            closed_at.setdefault(window.index, step)
        run.check_accounts()
    run.windows.close(WindowEnds(40 * STEP, complete=True), run.now)
    run.now += 2000
    run.advance()
    ends = [0]
    for window in run.closed:
        start, end = window.interval
        first = asked[window.index] - steps + 1
        assert start == max(first * STEP, 0, ends[-1])
        ends.append(end)
        limit = closed_at.get(window.index, 99)
        expected = {
            number: (max(ts, start), min(ts + dur, end) - max(ts, start) if dur else 0)
            for step, number, ts, dur in arrived
            if step <= limit and ts < end and (ts >= start or (dur and ts + dur > start))
        }
        found = run.events(window.index, Kind.SPAN, Kind.INSTANT)
        rows = {int(row["id"]): (int(row["ts"]), int(row["dur"])) for row in found}
        assert len(rows) == len(found)
        assert rows == expected
        assert window.ledger().get(RECORDER) is None or window.ledger()[RECORDER].balanced()
    list(run.windows.end_retention())
    run.check_accounts()
    known = run.windows.statistics()
    assert not any(known.retained.values())
    run.windows.retention.remove_files()
    assert directory is None or not list(directory.iterdir())
