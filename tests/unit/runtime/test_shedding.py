"""Shedding: what is kept of a block for which there is no room, in the inbox and in an exporter's queue."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.memory import MemoryExporter
from stepscope.runtime import _core
from stepscope.runtime.events import clock, strings
from stepscope.runtime.events.record import EVENT_DTYPE, Block, EventBatch, Flag, Kind, empty_block
from stepscope.runtime.export.drop_priority import Shedding
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.loop.inbox import Inbox
from stepscope.runtime.loop.messages import Delivery, Dropped, Message
from stepscope.runtime.options import Options
from stepscope.runtime.sources.source import InboxSink
from tests.support.blocks import gap_block, mark_block
from tests.support.outlets import run_facts

KINDS = {
    "small frame": ("python_function", 10, "f"),
    "large frame": ("python_function", 50_000, "f"),
    "small op": ("cpu_op", 10, "aten::add"),
    "large op": ("cpu_op", 50_000, "aten::mm"),
    "span": ("user_annotation", 10, "mine"),
    "collective": ("cpu_op", 10, "c10d::allreduce_"),
    "kernel": ("kernel", 10, "gemm"),
}
ORDER = {"small frame": 0, "large frame": 1, "small op": 4, "large op": 5, "span": 6, "collective": 6, "kernel": 6}


def block(*kinds: str, arguments: int = 0) -> tuple[Block, bytes]:
    """Spans of these kinds, numbered from 1, each with that many arguments."""
    events: Any = empty_block(len(kinds))
    args = b""
    for number, (row, kind) in enumerate(zip(events, kinds, strict=True), 1):
        category, row["dur"], name = KINDS[kind]
        row["category"], row["name"] = strings.category(category), strings.intern(name)
        row["kind"], row["id"], row["ts"] = int(Kind.SPAN), number, number
        heap = _core.encode_arguments({f"key {index}": number * 100 + index for index in range(arguments)})
        row["args_at"], row["args_len"] = len(args), len(heap)
        args += heap
    return events, args


def order(**options: Any) -> Shedding:
    return Shedding.of(Options(**options))


def test_levels_are_in_the_order_of_the_options() -> None:
    """Small ones of a category, its large ones, the next category; then what is kept; then step marks and gaps."""
    events, _ = block(*KINDS)
    shedding = order()
    assert list(_core.shed_levels(events, shedding.native)) == [ORDER[kind] for kind in KINDS]
    assert list(_core.shed_levels(mark_block(1, (5, 1)), shedding.native)) == [7]
    assert list(_core.shed_levels(gap_block(1, 2, 3), shedding.native)) == [7]
    assert list(shedding.shares) == sorted(shedding.shares) and len(shedding.shares) == 8
    assert list(_core.shed_levels(events, order(shed=()).native)) == [0] * len(KINDS)


@given(
    kinds=st.lists(st.sampled_from(list(KINDS)), max_size=60),
    arguments=st.integers(0, 3),
    used=st.integers(0, 5000),
    limit=st.integers(1, 8000),
    overflow=st.sampled_from(["drop_newest", "drop_oldest", "block", "sample"]),
)
def test_what_is_admitted(kinds: list[str], arguments: int, used: int, limit: int, overflow: str) -> None:
    """It fits, in order and with its arguments; no event was left out for the sake of one that goes before it."""
    events, args = block(*kinds, arguments=arguments)
    shedding = order(overflow=overflow)
    kept, heap = shedding.admit(events, args, used, limit)
    assert kept["id"].tolist() == sorted(kept["id"].tolist())
    for row in kept:
        number = int(row["id"])
        decoded = _core.decode_arguments(heap, int(row["args_at"]), int(row["args_len"])) if row["args_len"] else {}
        assert decoded == {f"key {index}": number * 100 + index for index in range(arguments)}
        assert KINDS[kinds[number - 1]][0] == strings.text(int(row["category"]))
    if len(kept) == len(events):
        assert kept is events and heap is args
        return
    assert used + kept.nbytes + len(heap) <= limit or not len(kept)
    cost = 64 + (len(args) // len(events))
    have, total = (
        Counter(ORDER[kinds[int(number) - 1]] for number in kept["id"]),
        Counter(ORDER[kind] for kind in kinds),
    )
    for level, share in enumerate(shedding.shares):
        if have[level] < total[level] and overflow != "sample":
            above = used + sum(count * cost for other, count in have.items() if other >= level)
            assert above + cost > share * limit - 1


@given(
    batches=st.lists(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=12), min_size=1, max_size=8),
    need=st.integers(1, 3000),
)
def test_what_is_evicted(batches: list[list[str]], need: int) -> None:
    """Enough goes; the lowest first, and of these the oldest."""
    waiting = [EventBatch("recorder", 0, *block(*kinds)) for kinds in batches]
    after = list(waiting)
    for place, left in order(overflow="drop_oldest").evict(waiting, need):
        assert len(left) < len(waiting[place])
        after[place] = left
    gone: list[tuple[int, int]] = []
    stays: list[tuple[int, int]] = []
    for age, (batch, left) in enumerate(zip(waiting, after, strict=True)):
        for row in batch.events:
            level = ORDER[batches[age][int(row["id"]) - 1]]
            (stays if row["id"] in left.events["id"] else gone).append((level, age))
    assert not gone or not stays or max(gone) <= min(stays)
    freed = sum(batch.nbytes for batch in waiting) - sum(batch.nbytes for batch in after)
    assert freed >= need or not stays
    assert freed - 64 < need


def test_arguments_that_point_nowhere_are_left_out() -> None:
    """A backend's mistake does not become an error of whoever sheds its block."""
    events, _ = block(*["span"] * 40)
    events["args_at"], events["args_len"] = 7, 1 << 20
    events["flags"][:20] = int(Flag.ARG_INLINE)
    kept, heap = order().admit(events, b"", 0, 1000)
    assert 0 < len(kept) < 40 and heap == b""


def test_the_inbox_keeps_the_higher_ranks_of_a_block() -> None:
    """Frames of a flood are dropped and counted, spans of the same block arrive, and the watermark does, too."""
    options = Options(inbox_bytes=64 * 100)
    inbox: Inbox[Message] = Inbox(options.inbox_bytes, lambda: None)
    sink = InboxSink("device", inbox, options)
    events, args = block(*["small frame"] * 200, *["span"] * 30)
    assert sink.deliver(events, args, watermark=9) == 50
    delivery, dropped, _ = inbox.take()
    assert isinstance(delivery, Delivery) and isinstance(dropped, Dropped)
    taken = Counter(strings.text(int(category)) for category in delivery.events["category"])
    assert taken == {"python_function": 20, "user_annotation": 30}
    assert (dropped.reason, dropped.count) == ("inbox", 180)


def outlet(path: Path, **options: Any) -> ExporterWorker:
    chosen = Options(**options)
    return ExporterWorker(
        MemoryExporter(), run_facts(path), chosen.queue_bytes, clock.now, shedding=Shedding.of(chosen)
    )


async def test_a_full_queue_keeps_the_newest_if_asked(tmp_path: Path) -> None:
    """`drop_oldest` takes out of the queue what has waited longest, operators before spans, window by window."""
    queue = outlet(tmp_path, queue_bytes=64 * 100, overflow="drop_oldest")
    for window in range(4):
        queue.offer(EventBatch("recorder", window, *block(*["small op"] * 20, *["span"] * 20)))
    ledgers = [queue.ledger(window) for window in range(4)]
    # Each window brings 40 and 100 fit. The third makes an eighth of the queue free besides the 20 that are missing.
    assert [ledger.dropped.get("queue", 0) for ledger in ledgers] == [20, 20, 20, 13]
    assert all(ledger.in_flight >= 20 for ledger in ledgers)  # no span
    stats = queue.statistics()
    assert stats.waiting_events == stats.ledger.in_flight and stats.waiting_bytes <= 64 * 100


async def test_a_full_queue_lets_spans_in_before_operators(tmp_path: Path) -> None:
    """Under the other policies what comes is divided: operators fill a part of the queue only."""
    queue = outlet(tmp_path, queue_bytes=64 * 100)
    queue.offer(EventBatch("recorder", 0, *block(*["small op"] * 60)))
    queue.offer(EventBatch("recorder", 1, *block(*["small op"] * 60)))
    queue.offer(EventBatch("recorder", 2, *block(*["span"] * 20)))
    assert [queue.ledger(window).in_flight for window in range(3)] == [60, 20, 13]
    assert queue.statistics().ledger.dropped == {"queue": 47}


def test_blocks_of_any_layout_are_read() -> None:
    """Events that are a slice with a step, as numpy makes it, have the levels of their copies."""
    events, _ = block(*KINDS)
    shedding = order()
    sliced = events[::2]
    kept, _ = shedding.admit(sliced, b"", 0, 64 * 5)
    assert EVENT_DTYPE == kept.dtype and np.isin(kept["id"], sliced["id"]).all()
