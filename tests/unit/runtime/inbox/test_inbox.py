"""The inbox keeps its contract: a put that returns is processed, a put after close raises; and what profilers hold has limits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.memory import MemoryExporter
from stepscope.runtime import _core
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, cut_block, empty_block
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.inbox.inbox import Inbox
from stepscope.runtime.inbox.messages import Delivery, Dropped, Message
from stepscope.runtime.memory_limits import MemoryLimits, memory_limits
from stepscope.runtime.options import Options
from stepscope.runtime.sources.source import InboxSink
from tests.support.exporter_workers import closed, ledger_of, run_facts
from tests.support.messages import refused


@given(st.lists(st.one_of(st.sampled_from([0, 30, 50, 100]).map(lambda size: ("put", size)), st.just(("take", 0)))))
def test_accounts_hold_after_any_calls(calls: list[tuple[str, int]]) -> None:
    """Every item put is taken once, in order, or still there at the end; items that did not fit are counted only. An item without
    size, such as the end of a window, always fits."""
    inbox: Inbox[int] = Inbox(100, lambda: None)
    expected: list[int] = []
    received: list[int] = []
    too_large = 0
    for number, (call, size) in enumerate(calls):
        if call == "take":
            received += inbox.pop_all()
        elif inbox.put(number, size):
            expected.append(number)
        else:
            assert size
            too_large += 1
        assert inbox.statistics().waiting_bytes <= 100
    stats = inbox.statistics()
    assert (stats.put, stats.received, stats.refused) == (len(expected), len(received), too_large)
    assert stats.put == stats.received + stats.waiting
    assert received + inbox.close() == expected
    with pytest.raises(ClosedError):
        inbox.put(2)


def test_patient_items_wake_the_consumer_later() -> None:
    """Begins and ends of windows are looked at together."""
    wakes: list[str] = []
    inbox: Inbox[int] = Inbox(10, lambda: wakes.append("now"), lambda: wakes.append("later"))
    inbox.put(1, later=True)
    inbox.put(2)
    assert wakes == ["later", "now"]
    assert inbox.pop_all() == [1, 2]


def test_puts_from_many_threads_and_a_close_in_between() -> None:
    """Each put is wholly before the close, and processed, or wholly after, and raises."""
    inbox: Inbox[int] = Inbox(1 << 20, lambda: None)
    accepted: list[int] = []
    started = threading.Barrier(9)

    def produce(base: int) -> None:
        started.wait()
        for number in range(base, base + 2000):
            try:
                inbox.put(number)
            except ClosedError:
                return
            accepted.append(number)

    threads = [threading.Thread(target=produce, args=(base * 10_000,)) for base in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    received = inbox.pop_all() + inbox.pop_all() + inbox.close()
    for thread in threads:
        thread.join()
    assert sorted(received) == sorted(accepted)


def block(count: int, arguments: int = 0) -> tuple[Block, bytes]:
    """Spans, numbered from 1, each with that many arguments."""
    events: Any = empty_block(count)
    args = b""
    for number, row in enumerate(events, 1):
        row["name"], row["kind"], row["id"], row["ts"] = strings.intern("work"), int(Kind.SPAN), number, number
        heap = _core.encode_arguments({f"key {index}": number * 100 + index for index in range(arguments)})
        row["args_at"], row["args_len"] = len(args), len(heap)
        args += heap
    return events, args


@given(
    count=st.integers(0, 60),
    arguments=st.integers(0, 3),
    step=st.sampled_from([1, 2, -1]),
    room=st.integers(-100, 9000),
)
def test_the_first_events_that_fit(count: int, arguments: int, step: int, room: int) -> None:
    """They fit with their arguments, in any order of these, and one more would not; all are the block itself."""
    whole, args = block(count, arguments)
    events = whole[::step]
    cut, heap = cut_block(events, args, room)
    assert cut["id"].tolist() == events["id"][: len(cut)].tolist()
    for row in cut:
        decoded = _core.decode_arguments(heap, int(row["args_at"]), int(row["args_len"])) if row["args_len"] else {}
        assert decoded == {f"key {index}": int(row["id"]) * 100 + index for index in range(arguments)}
    if len(cut) == len(events):
        assert cut is events or cut.nbytes + len(heap) <= max(room, 0)
        return
    assert cut.nbytes + len(heap) <= max(room, 0)
    more = events[: len(cut) + 1]
    reach = int((more["args_at"] + more["args_len"]).max())
    assert more.nbytes + reach > room


def test_arguments_that_point_nowhere_cost_nothing() -> None:
    """A backend's mistake raises no error where its block is cut."""
    events, _ = block(40)
    events["args_at"], events["args_len"] = 7, 1 << 20
    events["flags"][:20] = int(Flag.ARG_INLINE)
    cut, heap = cut_block(events, b"", 1000)
    assert len(cut) == 15 and heap == b""


def test_the_inbox_takes_the_first_events_of_a_block() -> None:
    """The others are dropped and counted; the watermark arrives all the same."""
    inbox: Inbox[Message] = Inbox(64 * 50, lambda: None)
    sink = InboxSink("device", inbox)
    assert sink.deliver(*block(30), watermark=1) == 30
    assert sink.deliver(*block(30), watermark=9) == 20
    assert sink.deliver(*block(30)) == 0
    messages = inbox.pop_all()
    assert [len(message.events) for message in messages if isinstance(message, Delivery)] == [30, 20]
    lost = [(message.reason, message.count) for message in messages if isinstance(message, Dropped)]
    assert lost == [("inbox", 10), ("inbox", 30)]
    assert len(messages) == 6


def worker(path: Path, *, drop_oldest: bool) -> ExporterWorker:
    """One that was not started, with room for 100 events without arguments."""
    return ExporterWorker(MemoryExporter(), run_facts(path), 64 * 100, drop_oldest=drop_oldest)


@pytest.mark.parametrize(("drop_oldest", "queued"), [(False, [40, 40, 20, 0]), (True, [0, 0, 40, 40])])
async def test_a_full_queue(drop_oldest: bool, queued: list[int], tmp_path: Path) -> None:
    """Of a batch that comes the first events that fit are queued, or the oldest batches are dropped whole; each is counted for its
    window, and ends of windows stay in their places."""
    queue = worker(tmp_path, drop_oldest=drop_oldest)
    for window in range(4):
        queue.offer(EventBatch("recorder", window, *block(40)))
        queue.close_window(closed(window))
    assert [ledger_of(queue, window).in_flight for window in range(4)] == queued
    lost = [{"queue": 40 - number} if number < 40 else {} for number in queued]
    assert [ledger_of(queue, window).dropped for window in range(4)] == lost
    statistics = queue.statistics()
    assert (statistics.waiting_events, statistics.waiting_bytes) == (sum(queued), 64 * sum(queued))
    assert queue.windows_waiting == 4 and queue.handled == (2 if drop_oldest else 0)


@pytest.mark.parametrize("drop_oldest", [False, True])
async def test_a_batch_that_is_larger_than_the_queue(drop_oldest: bool, tmp_path: Path) -> None:
    """It passes into an empty queue, as it would nowhere else; otherwise a part of it does."""
    queue = worker(tmp_path, drop_oldest=drop_oldest)
    queue.offer(EventBatch("recorder", 0, *block(150)))
    assert ledger_of(queue).in_flight == 150
    queue.offer(EventBatch("recorder", 1, *block(150)))
    assert ledger_of(queue, 1).in_flight == (100 if drop_oldest else 0)
    assert queue.statistics().ledger.dropped == {"queue": 200 if drop_oldest else 150}


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Kind.SPAN, "kind", 13),
        (Kind.INSTANT, "ts", 1 << 62),
        (Kind.GAP, "dur", 1 << 62),
        (Kind.GAP, "id", 1 << 48),
    ],
)
def test_the_inbox_refuses_impossible_events(kind: Kind, field: str, value: int) -> None:
    """Their block costs the backend its own events: in a journal they would spoil all accounts."""
    inbox: Inbox[Message] = Inbox(1 << 20, lambda: None)
    sink = InboxSink("device", inbox)
    events, args = block(3)
    events["kind"][1] = int(kind)
    events[field][1] = value
    with refused(ValueError, "event 1", "'device'", field, str(value), "EVENT_DTYPE"):
        sink.deliver(events, args)
    assert not inbox.pop_all()


MIB = 1 << 20


def total(limits: MemoryLimits, exporters: int) -> int:
    """Bytes of all parts together."""
    return limits.ring_bytes + limits.drained_bytes + limits.inbox_bytes + exporters * limits.queue_bytes


@pytest.mark.parametrize("exporters", [0, 1, 2, 7])
@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(memory_bytes=16 * MIB),
        Options(ring_bytes=96 * MIB),
        Options(inbox_bytes=10 * MIB, queue_bytes=10 * MIB),
        Options(ring_bytes=4096, inbox_bytes=1, queue_bytes=1),
    ],
)
def test_the_limits_of_all_parts_fit_into_the_memory(options: Options, exporters: int) -> None:
    """All parts fit for any options, and each has room."""
    limits = memory_limits(options, exporters)
    assert total(limits, exporters) <= options.memory_bytes
    assert min(limits.ring_bytes, limits.inbox_bytes, limits.queue_bytes) > 0
    for name in ("ring_bytes", "inbox_bytes", "queue_bytes"):
        assert getattr(options, name) in (None, getattr(limits, name))


def test_shares_without_settings() -> None:
    """A quarter each; exporters and what is drained divide theirs."""
    limits = memory_limits(Options(), 1)
    assert (limits.ring_bytes, limits.inbox_bytes, limits.queue_bytes) == (64 * MIB, 64 * MIB, 32 * MIB)
    assert limits.worker_ring_bytes == 64 * MIB and total(limits, 1) == 256 * MIB


def test_too_little_memory_is_refused_with_the_needed_size() -> None:
    """The message has the sum, and the setting that it advises is accepted."""
    options = Options(ring_bytes=100 * MIB, queue_bytes=20 * MIB)
    with refused(ValueError, "Options.memory_bytes", "memory_bytes=269 << 20"):
        memory_limits(options, 2)
    enough = Options(memory_bytes=269 << 20, ring_bytes=100 * MIB, queue_bytes=20 * MIB)
    assert memory_limits(enough, 2).inbox_bytes == 9 * MIB
