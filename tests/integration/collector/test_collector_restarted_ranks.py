"""Ranks that were started again, and several jobs at a time, in the live state."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.job_windows import window_detail
from stepscope.collector.live.live import Live
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams, rank_id
from stepscope.collector.live.views import WindowView
from stepscope.collector.runs.windows import MAX_WINDOWS, MOST_REASONS, OTHER, StreamWindows, losses
from stepscope.exporters.stream import protocol
from stepscope.runtime.accounting.ledger import Ledger, OutputLedger, SourceLedger
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import EndRecord, RunRecord, WindowOpened, WindowRecord, encode_record
from tests.support.basics import at_once
from tests.support.collecting import CollectorProcess, collecting, send_request, wait_until
from tests.support.collectors import COMMAND, answer, connected
from tests.support.collectors import collecting as collecting_here
from tests.support.journals import events_payloads
from tests.support.launch import run_to_end
from tests.support.ranks.cluster import start_rank
from tests.support.ranks.worker import Rank
from tests.support.streams import CONNECTION, SYNC
from tests.unit.collector.test_collector_live import SECOND, START, events_frame, record_frame, steps

Frame = tuple[int, int, bytes]


def run_of(rank: int, *, job: str = "", name: str = "job", world: int | None = None, at: int = START) -> RunRecord:
    """A rank whose process began then."""
    return RunRecord(name=name, anchor=ClockAnchor(at, at, 0), rank=rank, world_size=world, job=job, host="host", pid=7)


def window(index: int, first: int, count: int, at: int) -> list[Frame]:
    """A window of some steps of a second each, which begins then."""
    rows = [(first + n, at + n * SECOND, at + (n + 1) * SECOND) for n in range(count)]
    closed = WindowRecord(
        index=index,
        start_ns=at,
        end_ns=at + count * SECOND,
        steps=np.array(rows, "<i8").tobytes(),
        complete=True,
        ledger=Ledger(sources={"recorder": SourceLedger(produced=count, accepted=count)}),
    )
    opened = record_frame(fmt.FrameType.WINDOW_OPENED, WindowOpened(index, at))
    return [opened, record_frame(fmt.FrameType.WINDOW_CLOSED, closed)]


def life(id: int, run: RunRecord, windows: list[tuple[int, int, int]], seen: int | None = None) -> Stream:
    """A stream with windows (index, first step, steps), one after the other."""
    stream = Stream(f"{id:032x}", run, born_ns=run.anchor.wall_ns if seen is None else seen)
    at = run.anchor.wall_ns
    for index, first, count in windows:
        frames = window(index, first, count, at)
        stream.add_frames(frames, 0, stream.next + len(frames))
        at += count * SECOND
    return stream


def live_of(*lives: Stream) -> tuple[Live, Streams]:
    """The live view of these streams."""
    streams = Streams(64)
    for stream in lives:
        streams.add(stream)
    return Live(streams, Downloads(Path("/nowhere")), exposed=False), streams


async def rows_of(live: Live, index: int, job: str | None = None) -> list[tuple[str, int, int]]:
    """(rank, start, its index) of a window."""
    (group,) = await live.window(index, job)
    return [(row.rank, row.start, row.window.index) for row in window_detail(group).ranks]


async def test_windows_of_all_starts_are_grouped_by_their_steps() -> None:
    """Rank 1 was killed in step 25 and went on from step 20 with window 0, which is the job's window 2."""
    first = life(1, run_of(1), [(0, 0, 10), (1, 10, 10)])
    cut = [record_frame(fmt.FrameType.WINDOW_OPENED, WindowOpened(2, START + 20 * SECOND))]
    cut.append(events_frame(steps([SECOND] * 5, START + 20 * SECOND, number=20)))
    first.add_frames(cut, 0, first.next + len(cut))
    again = life(2, run_of(1, at=START + 60 * SECOND), [(0, 20, 10), (1, 30, 10)])
    steady = life(3, run_of(0), [(n, 10 * n, 10) for n in range(4)])
    for order in ((first, again, steady), (steady, again, first)):
        live, _ = live_of(*order)
        windows: list[WindowView] = await live.windows(50)
        assert sorted(one.index for one in windows) == [0, 1, 2, 3]
        by_index = {one.index: one for one in windows}
        assert [by_index[n].ranks for n in range(4)] == [2, 2, 2, 2]
        assert by_index[2].open == 0, "it was done by the start after"
        assert await rows_of(live, 0) == [("job-0", 1, 0), ("job-1", 1, 0)]
        assert await rows_of(live, 2) == [("job-0", 1, 2), ("job-1", 1, 2), ("job-1", 2, 0)]
        assert await rows_of(live, 3) == [("job-0", 1, 3), ("job-1", 2, 1)]
        (view,) = [one for one in (await live.snapshot()).ranks if one.rank == 1]
        assert (view.incarnation, view.stream) == (2, again.id)


async def test_windows_go_on_counting_when_all_ranks_were_started_again() -> None:
    """First starts have windows 0 to 2, the last of which was cut differently; the second ones go on from step 20."""
    lives: list[Stream] = []
    for rank in range(3):
        lives.append(life(10 * rank, run_of(rank), [(0, 0, 10), (1, 10, 10), (2, 20, 1 + rank)]))
        again = run_of(rank, at=START + 90 * SECOND)
        lives.append(life(10 * rank + 1, again, [(n, 20 + 10 * n, 10) for n in range(5)]))
    live, _ = live_of(*lives)
    windows = sorted(await live.windows(50), key=lambda one: one.index)
    assert [(one.index, one.ranks) for one in windows] == [(n, 3) for n in range(7)]
    assert [row[1:] for row in await rows_of(live, 2)] == [(1, 2), (2, 0)] * 3
    assert [row[1:] for row in await rows_of(live, 6)] == [(2, 4)] * 3


def test_a_start_that_comes_late_is_not_the_latest() -> None:
    """A journal is delivered when the rank runs again: what it does now counts, whenever the other came."""
    now = life(1, run_of(0, at=START + 60 * SECOND), [(0, 20, 10)])
    late = life(2, run_of(0), [(0, 0, 10)], seen=START + 1000 * SECOND)
    live, streams = live_of(now, late)
    (rank,) = streams
    assert rank.latest is now and late.superseded and not now.superseded
    assert at_once(live.snapshot()).ranks[0].stream == now.id
    # Clocks that are ahead of the collector's are none: it is seen before it began, then.
    ahead = life(3, run_of(0, at=START + 10**6 * SECOND), [], seen=START + 30 * SECOND)
    streams.add(ahead)
    assert rank.latest is now


def test_a_start_that_was_seen_earlier_is_not_the_latest_any_more() -> None:
    """Its files say so. The clock of its host is ahead."""
    before = life(1, run_of(0, at=START + 10**6 * SECOND), [], seen=START + 20 * SECOND)
    stream = life(2, run_of(0, at=START + 10**6 * SECOND), [], seen=START + 30 * SECOND)
    _, streams = live_of(before, stream)
    (rank,) = streams
    assert rank.latest is stream and before.superseded
    streams.seen_first(stream, START)
    assert rank.latest is before and stream.superseded and not before.superseded


def test_a_stream_that_was_deleted_is_forgotten() -> None:
    """Not while it is connected; a rank that has nothing else is gone."""
    first, second = life(1, run_of(0), [(0, 0, 10)]), life(2, run_of(0), [(0, 0, 10)])
    live, streams = live_of(first, second)
    streams.unread["9" * 32] = Path("/nowhere")
    streams.deleted("9" * 32)
    assert not streams.unread
    second.connection = CONNECTION
    streams.deleted(second.id)
    assert len(streams.all) == 2
    second.connection = None
    streams.deleted(second.id)
    assert list(streams.all) == [first.id] and not first.superseded
    assert at_once(live.snapshot()).job.ranks == 1
    streams.deleted(first.id)
    assert not streams.all and not streams.ranks


async def test_jobs_are_not_mixed() -> None:
    """Ranks, windows, slow ranks and missing ones of two jobs are separate, though their runs have one name."""
    ours = [life(n, run_of(n, job="1001", world=2), [(0, 0, 10)]) for n in (0, 1)]
    theirs = [life(10 + n, run_of(n, job="1002", world=3), [(0, 0, 20)]) for n in (0, 1)]
    unnamed = [life(20, run_of(0, world=1), [(0, 0, 5)])]
    for stream in (*ours, *theirs, *unnamed):
        stream.steps.add_events(steps([SECOND * (3 if stream in theirs else 1)] * 20), 0, START, START + 10**13)
    live, _ = live_of(*ours, *theirs, *unnamed)
    snapshot = await live.snapshot()
    assert [view.id for view in snapshot.ranks] == ["1001~job-0", "1001~job-1", "1002~job-0", "1002~job-1", "job-0of1"]
    assert {view.job_id for view in snapshot.ranks} == {"1001", "1002", "job x1"}
    assert (snapshot.job.world_size, snapshot.job.absent) == (6, [2])
    assert sorted((group.job, len(group.rows)) for group in await live.window(0, None)) == [
        ("1001", 2),
        ("1002", 2),
        ("job x1", 1),
    ]
    assert await rows_of(live, 0, "1002") == [("1002~job-0", 1, 0), ("1002~job-1", 1, 0)]
    assert await live.window(0, "1003") == await live.window(7, None) == []


def test_ids_of_jobs_do_not_meet() -> None:
    """Each rank of each job and run has an id of its own that is fit for an address, however they are named."""
    names = ["", "a", "a~b", "b", "a-b", "b-a", "a/b", "é", "x" * 300, "~", "1", "a-1", "a-1of2", "1of2"]
    ids = {rank_id(run_of(1, job=job, name=name), "a") for job in names for name in names}
    assert len(ids) == len(names) ** 2
    sizes = {rank_id(run_of(1, name=name, world=world), "a") for name in names for world in (None, 2, 12)}
    assert len(sizes) == 3 * len(names) and len(sizes & ids) == len(names)
    ids |= sizes
    assert all(id.isascii() and "/" not in id and len(id) < 200 for id in ids)
    nameless = msgspec.structs.replace(run_of(1), rank=None)
    assert rank_id(nameless, "a") != rank_id(nameless, "b") and rank_id(run_of(1), "a") == rank_id(run_of(1), "b")


def test_reasons_of_losses_are_bounded() -> None:
    """A client that names a new reason with each window fills no memory, and no event that was lost is forgotten."""
    windows = StreamWindows()
    for index in range(300):
        dropped = {f"why {index} {n}": 1 for n in range(50)}
        ledger = Ledger(
            sources={"recorder": SourceLedger(produced=50, accepted=0, dropped=dropped)},
            outputs={"collector": OutputLedger(dropped={f"out {index}": 2})},
        )
        assert losses(ledger).total() == 52
        windows.closed(encode_record(WindowRecord(index=index, start_ns=0, end_ns=1, ledger=ledger)))
    assert windows.dropped.total() == 300 * 52 and windows.dropped[OTHER] > 0
    assert len(windows.dropped) <= MOST_REASONS + 1
    many = {f"source {n}": SourceLedger(produced=1, accepted=0, dropped={"why": 1}) for n in range(1000)}
    lost = losses(Ledger(sources=many))
    assert lost.total() == 1000 and len(lost) <= MOST_REASONS + 1
    assert len(windows.newest()) <= MAX_WINDOWS


async def test_too_many_connections_are_asked_to_come_again(tmp_path: Path) -> None:
    """A place may become free."""
    async with (
        collecting_here(tmp_path, max_streams=1) as running,
        connected(running.url) as one,
        connected(running.url) as other,
    ):
        for made, stream in ((one, "a" * 32), (other, "b" * 32)):
            await made.send(protocol.encode(protocol.Hello(stream, SYNC, run_of(0))))
            if made is one:
                assert isinstance(await answer(one), protocol.Welcome)
        refused = await answer(other)
        assert isinstance(refused, protocol.Refused) and refused.retry and "limit" in refused.reason


def delivered(collector: CollectorProcess, directory: Path) -> None:
    """Delivers what a killed rank has left."""
    (run,) = [path.parent for path in directory.glob("run-*/rank0/session")]
    done = run_to_end([*COMMAND, "deliver", str(run), "--json", "--url", collector.url], timeout=60, server="command")
    assert done.returncode == 0, done.stderr
    (sent,) = json.loads(done.stdout)
    assert sent["journal"].startswith(str(run)) and sent["events"] > 0 and not sent["left_out"]


def test_a_first_life_is_delivered_while_the_second_is_over(tmp_path: Path) -> None:
    """Both are shown, each event is counted once, merged downloads hold both, and a restart of the collector changes nothing."""
    with collecting(tmp_path / "c") as collector:
        assert start_rank(collector.url, tmp_path, Rank(rank=0, killed_at=7), 1).wait(60) == -9
        assert start_rank(collector.url, tmp_path, Rank(rank=0, first_step=5), 1).wait(60) == 0
        second = collector.when(lambda ranks: ranks[0]["incarnation"] == 2 and ranks[0]["state"] == "ended")[0]
        delivered(collector, tmp_path)
        view = wait_until(lambda: (view := collector.ranks()[0])["incarnation"] == 2 and view)
        assert view["stream"] == second["stream"], "the latest start stays the latest"
        _check(collector, view)
    with collecting(tmp_path / "c") as collector:
        wait_until(lambda: collector.get("/v1/job")["restoring"] == 0)
        _check(collector, view)


def _check(collector: CollectorProcess, view: Any) -> None:
    streams = collector.get(f"/v1/ranks/{view['id']}")["streams"]
    assert [one["state"] for one in streams] == ["ended", "ended"]
    # The state of the job may be a moment old.
    wait_until(lambda: collector.get("/v1/job")["events"] == sum(one["events"] for one in streams))
    windows = {one["index"]: one for one in collector.get("/v1/windows")}
    assert sorted(windows) == [0, 1]
    rows = collector.get("/v1/windows/1")["ranks"]
    assert [(row["start"], row["window"]["index"]) for row in rows] == [(1, 1), (2, 0)]
    found = send_request(f"{collector.url}/v1/windows/1/chrome?job={windows[1]['job_id'].replace(' ', '%20')}")
    assert found.status == 200, found.body
    events = _events(found.body)
    assert sum(event["name"] == "compute" for event in events) == 3 + 5, "steps 5 to 7, and 5 to 9"


def _events(body: bytes) -> list[Any]:
    found: list[Any] = msgspec.json.decode(gzip.decompress(body))
    return [event for event in found if event.get("ph") == "X"]


def test_the_end_of_a_stream_closes_its_windows() -> None:
    """A window that was open is closed, and no steps lead to it."""
    stream = life(1, run_of(0), [(0, 0, 3)])
    frames = [
        record_frame(fmt.FrameType.WINDOW_OPENED, WindowOpened(1, START)),
        events_frame(steps([SECOND], START, number=3)),
    ]
    frames[1] = _of_window(frames[1], 1)
    stream.add_frames(frames, 0, stream.next + 2)
    assert [mark for mark, _ in stream.windows.newest()] == [(1, (3, 3)), (0, (0, 2))]
    stream.add_frames([record_frame(fmt.FrameType.END, EndRecord())], 0, stream.next + 1)
    assert [mark for mark, _ in stream.windows.newest()] == [(0, (0, 2))]


def _of_window(frame: Frame, index: int) -> Frame:
    kind, flags, payload = frame
    decoded = fmt.decode_unnamed(payload, flags)
    assert decoded is not None
    ((flags, payload),) = events_payloads(EventBatch("steps", index, decoded[0], b""))
    return kind, flags, payload
