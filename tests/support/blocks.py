"""Blocks for tests, built in numpy."""

from __future__ import annotations

import msgspec
import numpy as np

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, EventBatch, Kind, empty_block


def span_block(*spans: tuple[int, int], first_id: int = 1, self_ns: int | None = None) -> Block:
    """Spans of `(begin, end)` in ns, with ids from `first_id`; all of the time is self time by default."""
    block = empty_block(len(spans))
    for number, (row, (begin, end)) in enumerate(zip(block, spans, strict=True)):
        row["ts"], row["dur"], row["kind"] = begin, end - begin, Kind.SPAN
        row["self_dur"] = end - begin if self_ns is None else self_ns
        row["id"], row["name"] = first_id + number, strings.intern("work")
    return block


def instant_block(*times: int) -> Block:
    """Instants at these times in ns."""
    block = empty_block(len(times))
    block["ts"], block["kind"], block["name"] = times, Kind.INSTANT, strings.intern("instant")
    return block


def mark_block(serial: int, *marks: tuple[int, int]) -> Block:
    """Step marks of `(time, step number)` of the profiler with this serial."""
    block = empty_block(len(marks))
    for row, (ts, number) in zip(block, marks, strict=True):
        row["ts"], row["step"], row["id"], row["kind"], row["track"] = ts, number, serial, Kind.STEP, 1
    return block


def gap_block(ts: int, end: int, dropped: int) -> Block:
    """A gap in which events were dropped."""
    block = empty_block(1)
    block["ts"], block["dur"], block["id"], block["kind"] = ts, end - ts, dropped, Kind.GAP
    return block


def scattered(batch: EventBatch) -> EventBatch:
    """The same batch with ids at random: a journal needs every byte of them, 16 an event."""
    events, random = batch.events.copy(), np.random.default_rng(1)
    for field in ("id", "parent"):
        events[field] = random.integers(1, 1 << 63, len(events))
    return msgspec.structs.replace(batch, events=events)
