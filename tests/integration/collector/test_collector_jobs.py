"""Several jobs and many ranks in one collector: each is reported by itself, and none holds up the others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncGenerator, Awaitable, Generator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import pytest

from stepscope.cli.main import main
from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live import streams as live_streams
from stepscope.collector.live.live import MOST_JOBS, Live
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.views import RankView, Snapshot
from stepscope.collector.orders.order import WindowOrder
from stepscope.collector.orders.orders import Orders
from stepscope.collector.web.charts import Charts
from stepscope.collector.web.live_events import LiveEvents, changes
from stepscope.exporters.stream.protocol import Hello
from stepscope.exporters.stream.step_summary import StepTime
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import WindowOpened, WindowRecord
from stepscope.runtime.requests.command import Answer, Command
from tests.support.basics import at_once
from tests.support.collecting import CollectorProcess, collecting, send_request, trained, training, wait_until
from tests.support.streams import CONNECTION
from tests.system.collector.test_collector_page import quiet_page
from tests.unit.collector.test_collector_live import SECOND, START, record_frame, run_of, steps, sync

ODD = "a job & of? #1 x1"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Generator[CollectorProcess]:
    """A collector with two jobs: one of two ranks, and one whose name is odd."""
    with collecting(tmp_path_factory.mktemp("collector")) as collector:
        for rank in (0, 1):
            trained(collector.url, rank, world=2, steps=20)
        trained(collector.url, 0, world=1, name=ODD.removesuffix(" x1"), steps=10)
        collector.when(lambda _: all(one["state"] == "ended" for one in collector.get("/v1/ranks")))
        yield collector


def test_each_job_by_itself(two: CollectorProcess) -> None:
    """Ranks, sums, charts and windows of one job are those of no other, and all together are those of all."""
    entries = two.get("/v1/jobs")
    assert [(one["id"], one["ranks"], one["connected"]) for one in entries] == [(ODD, 1, 0), ("job x2", 2, 0)]
    everything = two.get("/v1/job")
    parts = {one["id"]: f"?job={quote(one['id'])}" for one in entries}
    for id, query in parts.items():
        ranks = two.get(f"/v1/ranks{query}")
        job = two.get(f"/v1/job{query}")
        assert {one["job_id"] for one in ranks} == {id}
        assert (job["ranks"], job["world_size"], job["absent"]) == (len(ranks), len(ranks), [])
        assert job["events"] == sum(one["events"] for one in ranks)
        assert job["bytes"] == sum(one["bytes"] for one in ranks)
        windows = two.get(f"/v1/windows{query}")
        assert {one["job_id"] for one in windows} == {id}
        assert {one["ranks"] for one in windows} == {len(ranks)}
        every = ",".join(one["id"] for one in two.get("/v1/ranks"))
        chart = two.get(f"/v1/steps{query}&range=all&ranks={quote(every)}")
        assert [one["id"] for one in chart["series"]] == [one["id"] for one in ranks]
    assert everything["events"] == sum(two.get(f"/v1/job{query}")["events"] for query in parts.values())
    assert len(two.get("/v1/ranks")) == 3
    assert len(two.get("/v1/windows")) == 3


def test_a_job_that_is_not_there(two: CollectorProcess) -> None:
    """Of it there is nothing; that is no error, for it may come."""
    assert two.get("/v1/ranks?job=other") == two.get("/v1/windows?job=other") == []
    assert two.get("/v1/job?job=other")["ranks"] == two.get("/v1/job?job=other")["events"] == 0
    assert two.get("/v1/steps?job=other&ranks=job-0")["times"] == []


def test_two_jobs_of_the_same_name_and_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They look like a rank that was started again, but run at once: the page says that, and so does a merge."""
    with (
        collecting(tmp_path / "c") as collector,
        training(collector.url, 0, name="stepscope", world=1, steps=10_000) as one,
        training(collector.url, 0, name="stepscope", world=1, steps=10_000) as other,
    ):
        (view,) = wait_until(lambda: [view for view in collector.get("/v1/ranks") if view["others"]])
        (text,) = view["others"]
        assert {view["pid"], int(text.rpartition("(pid ")[2].rstrip(")"))} == {one.pid, other.pid}
        assert collector.get("/v1/job")["shared"] == 1
        assert "stepscope_shared_ranks 1.0" in send_request(f"{collector.url}/metrics").body.decode()
        with quiet_page() as page:
            page.goto(collector.url)
            page.get_by_text("rank 0 is several processes at once").wait_for()
            page.get_by_text("If these are several jobs, name them").wait_for()
        wait_until(lambda: collector.get("/v1/ranks")[0]["windows"])
    assert main(["merge", str(tmp_path / "c"), "--out", str(tmp_path / "job.pftrace")]) == 0
    assert "do two processes have one rank?" in capsys.readouterr().out


def test_a_rank_that_was_started_again_is_one_process() -> None:
    """Also while the connection of the first is still there, half-open: it has compared no clocks since."""
    streams = Streams(8)
    for number, times in enumerate(((1, 2), (3, 4))):
        stream = Stream(f"{number:032x}", msgspec.structs.replace(run_of(0), pid=number), born_ns=START + number)
        stream.connection = CONNECTION
        for at in times:
            stream.add_frames([record_frame(fmt.FrameType.CLOCK_SYNC, sync(at, at, 10))], 1, at)
        streams.add(stream)
    (rank,) = streams
    assert rank.others == []
    rank.streams[0].add_frames([record_frame(fmt.FrameType.CLOCK_SYNC, sync(5, 5, 10))], 1, 5)
    assert rank.others == [rank.streams[0]]
    rank.streams[0].connection = None
    assert rank.others == []


async def test_listeners_get_the_changes_of_their_own_job() -> None:
    """Each of its own job only; one to a job that comes later hears of it then."""
    streams = Streams(64)
    for number, job in enumerate(("one", "two")):
        streams.add(stream := Stream(f"{number:032x}", run_of(0, job)))
        stream.connection = CONNECTION
    events = LiveEvents(Live(streams, Downloads(Path("/nowhere")), exposed=False))
    listeners = {job: events.listen(job) for job in (None, "one", "two", "three")}

    async def following() -> dict[str | None, Snapshot]:
        return {job: await _next(listener) for job, listener in listeners.items()}

    first = await following()
    assert {job: len(one.ranks) for job, one in first.items()} == {None: 2, "one": 1, "two": 1, "three": 0}
    assert all(one.full for one in first.values())
    streams.all[f"{1:032x}"].steps.add_events(steps([SECOND] * 3), 0, START, START + 9 * SECOND)
    streams.add(stream := Stream(f"{2:032x}", run_of(0, "three")))
    stream.connection = CONNECTION
    second = await following()
    assert not any(one.full for one in second.values())
    changed = [[one.id for one in update.ranks] for update in second.values()]
    assert changed == [["three-0", "two-0"], [], ["two-0"], ["three-0"]]
    assert all(one.jobs and [job.id for job in one.jobs] == ["one", "three", "two"] for one in second.values())
    third = await following()
    assert all(one.jobs is None and not one.ranks for one in third.values())
    await events.stop()
    for listener in listeners.values():
        await listener.aclose()


async def _next(listener: Any) -> Snapshot:
    data = (await anext(listener)).split(b"data: ")[1]
    return msgspec.json.decode(data, type=Snapshot)


def test_changes_make_of_a_snapshot_the_next_one() -> None:
    """A rank that has not changed is not sent again."""
    streams = Streams(64)
    live = Live(streams, Downloads(Path("/nowhere")), exposed=False)
    for number in range(3):
        streams.add(Stream(f"{number:032x}", run_of(number)))
    before = at_once(live.snapshot(age=0))
    streams.all[f"{0:032x}"].steps.add_events(steps([SECOND] * 3), 0, START, START + 9 * SECOND)
    streams.add(Stream(f"{5:032x}", run_of(1)))
    streams.deleted(f"{2:032x}")
    after = at_once(live.snapshot(age=0))
    update = msgspec.to_builtins(changes(before, after))
    known = {view.id: msgspec.to_builtins(view) for view in before.ranks}
    known |= {view["id"]: view for view in update["ranks"]}
    for id in update["gone"]:
        del known[id]
    assert msgspec.convert(list(known.values()), list[RankView]) == after.ranks
    assert [view["id"] for view in update["ranks"]] == ["job-0", "job-1"]


def test_more_jobs_than_can_be_chosen() -> None:
    """Those are offered of which something came last; the others can be asked for."""
    streams = Streams(4 * MOST_JOBS)
    for number in range(2 * MOST_JOBS):
        stream = Stream(f"{number:032x}", run_of(0, f"job{number}"))
        stream.seen += number
        streams.add(stream)
    live = Live(streams, Downloads(Path("/nowhere")), exposed=False)
    assert {one.id for one in at_once(live.jobs())} == {f"job{number}" for number in range(MOST_JOBS, 2 * MOST_JOBS)}
    assert at_once(live.snapshot("job0")).job.ranks == 1


def test_a_rank_that_makes_up_jobs_and_windows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new job in each connection: what is remembered grows with the limits alone, and the sum over all jobs has them all."""
    monkeypatch.setattr(live_streams, "MOST_JOBS", 50)
    streams = Streams(8)
    for number in range(500):
        hello = Hello(f"{number:032x}", b"sync", run_of(number % 5, f"job{number}"))
        with streams.connected(hello, CONNECTION) as stream:
            stream.add_frames(
                [record_frame(fmt.FrameType.WINDOW_OPENED, WindowOpened(index, 0)) for index in range(300)], 1000, 300
            )
            assert len(list(stream.windows)) <= 64
            stream.events += 1
    assert len(streams.all) <= 2 * 8 and len(streams.ranks) <= 2 * 8
    everything, by_job = at_once(streams.totals())
    assert everything.events == 500
    assert len(by_job) <= 50 + 2 * 8


T = TypeVar("T")

RANKS = 3000
WINDOWS = 32
LONGEST = 0.08
"""Seconds of the processor for which one turn may last; a look at all ranks at once takes several times as long."""


class Turns:
    """The longest turn of the loop."""

    longest = 0.0


@contextlib.asynccontextmanager
async def watched() -> AsyncGenerator[Turns]:
    """The turns inside, by the time that the loop's thread works: neither another process counts nor the search for cycles."""
    found = Turns()

    async def watch() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            found.longest = max(found.longest, time.thread_time() - before)

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    gc.disable()
    try:
        yield found
    finally:
        gc.enable()
        await asyncio.sleep(0)
        task.cancel()


def closed(index: int, start_ns: int) -> tuple[int, int, bytes]:
    """A window without steps."""
    return record_frame(fmt.FrameType.WINDOW_CLOSED, WindowRecord(index=index, start_ns=start_ns, end_ns=start_ns + 1))


async def test_no_request_about_many_ranks_holds_the_loop() -> None:
    """All states, charts and windows of 3,000 ranks, and one rank."""
    streams = Streams(2 * RANKS)
    windows = [closed(index, START + index * SECOND) for index in range(WINDOWS)]
    durations = [StepTime(0, n, START + n * SECOND, START + (n + 1) * SECOND, SECOND) for n in range(20)]
    for rank in range(RANKS):
        streams.add(stream := Stream(f"{rank:032x}", run_of(rank)))
        stream.add_frames(windows, 0, len(windows))
        stream.steps.add_steps(durations, 0, START, START + 100 * SECOND)
    live, charts = Live(streams, Downloads(Path("/nowhere")), exposed=False), Charts(streams)

    async def measured(work: Awaitable[T]) -> T:
        async with watched() as turns:
            found = await work
        assert turns.longest < LONGEST, work
        return found

    assert (await measured(live.snapshot(age=0))).job.ranks == RANKS
    assert [job.ranks for job in await measured(live.jobs())] == [RANKS]
    assert (detail := await measured(live.rank("job-17"))) is not None and detail.rank.rank == 17
    assert [one.ranks for one in await measured(live.windows(200))] == [RANKS] * WINDOWS
    assert [len(group.rows) for group in await measured(live.window(9, "job"))] == [RANKS]
    assert len((await measured(charts.chart("recent", ["job-17"]))).series) == 1


class Willing:
    """A process that answers at once."""

    control = 1

    async def order(self, command: Command, seconds: float) -> Answer:
        await asyncio.sleep(0)
        return Answer(step=7, pid=1)


async def test_no_order_to_many_ranks_holds_the_loop() -> None:
    """All of 3,000 are asked, in many turns."""
    streams = Streams(2 * RANKS)
    for rank in range(RANKS):
        streams.add(stream := Stream(f"{rank:032x}", run_of(rank)))
        stream.connection = Willing()
    async with watched() as turns:
        result = await Orders(streams).obey(WindowOrder(command="status"))
    assert result.outcome == "done" and len(result.ranks) == RANKS and result.ranks[17].id == "job-17"
    assert turns.longest < LONGEST


async def test_a_clock_that_is_wrong_moves_no_window() -> None:
    """A window begins when half of its ranks have, and never before 1970 or after now."""
    streams = Streams(64)
    for rank in range(3):
        streams.add(stream := Stream(f"{rank:032x}", run_of(rank)))
        frames = [closed(index, START + index * SECOND) for index in range(6)]
        stream.add_frames(frames, 0, len(frames))
    live = Live(streams, Downloads(Path("/nowhere")), exposed=False)
    honest = await live.windows(3)
    assert [(one.index, one.started_ns) for one in honest] == [(n, START + n * SECOND) for n in (5, 4, 3)]
    for rank, (start_ns, monotonic_ns) in enumerate([(-(1 << 63), (1 << 62) - 1), ((1 << 62) - 1, -(1 << 62))], 3):
        run = msgspec.structs.replace(run_of(rank), anchor=ClockAnchor(monotonic_ns, 0, 0))
        streams.add(stream := Stream(f"{rank:032x}", run))
        stream.add_frames([closed(5, start_ns), closed(9, start_ns)], 0, 2)
        windows = await live.windows(200)
        assert [(one.index, one.started_ns) for one in windows if one.index < 9] == [
            (n, START + n * SECOND) for n in (5, 4, 3, 2, 1, 0)
        ]
        assert all(0 <= one.started_ns <= time.time_ns() for one in windows)
