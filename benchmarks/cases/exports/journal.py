"""The journal's frames: time and bytes of an event without arguments.

Times are processor time, so they are per core whatever else runs on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from benchmarks.cases.exports.exporting import recorded
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

LARGE, SMALL = 20_000, 500
"""Events of a frame: of a program that records much, and of one that records little."""


def _encoder(frame_events: int, *, rates_bytes: bool) -> Callable[[Scale], AbstractContextManager[Round]]:
    """Encodes frames of so many events. The figure is the bytes of an event, or the time in ns that it takes."""

    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        from stepscope.runtime import _core
        from stepscope.runtime.events.record import join_blocks
        from stepscope.runtime.journal.format import FrameType

        events = join_blocks([batch.events for batch in recorded(scale.events)[1]])
        pieces = [events[at : at + frame_events] for at in range(0, len(events), frame_events)]

        def once() -> Sample:
            start = time.process_time_ns()
            frames = [_core.encode_frames(piece, b"", b"sync", int(FrameType.EVENTS), 0, 0, b"") for piece in pieces]
            spent = time.process_time_ns() - start
            size = sum(len(data) for data, _, _ in frames)
            return Sample((size if rates_bytes else spent) / len(events), facts={"bytes per event": size / len(events)})

        yield once

    return probe


ROWS = tuple(
    Row(
        key=f"journal.{key}",
        what=f"the journal, events without arguments in frames of {frame_events:,}: {what}",
        unit=unit,
        budget=budget,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "encode_frames", _encoder(frame_events, rates_bytes=unit == "bytes")),),
    )
    for key, frame_events, what, unit, budget in (
        ("encoder", LARGE, "processor time to encode one", "ns", 80.0),
        ("bytes", LARGE, "size of one", "bytes", 5.0),
        ("small_frames", SMALL, "size of one", "bytes", 8.0),
    )
)
