"""Small requests, records and settings that claim large numbers take little memory, and are refused with words."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

import stepscope as sc
from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.live import Live
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.orders.order import WindowOrder
from stepscope.collector.orders.orders import Orders, addressees
from stepscope.collector.problems import ProblemError
from stepscope.collector.runs.recording import MAX_SYNCS, Recording
from stepscope.exporters.specimens import run_in
from stepscope.exporters.stream import protocol
from stepscope.runtime.control.entry_points.control_file import decode_control_file
from stepscope.runtime.errors import ControlError
from stepscope.runtime.journal.records import ClockSync, RunRecord
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.requests.placement import ASK_TO_WAIT, place
from stepscope.runtime.session import ranks
from stepscope.runtime.session.job import rank_from_environment
from stepscope.runtime.session.ranks import MAX_RANKS, ranks_from, ranks_text, usual_size
from tests.support.basics import ROOT, at_once
from tests.support.collecting import ask
from tests.support.collectors import answer, collecting, connected
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.ranks.streams import write_stream
from tests.support.streams import RUN, STREAM, SYNC

MANY = ",".join(f"{million}000000-{million}999999" for million in range(1, 57))
"""56 million ranks in 1 KB."""

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (600 << 20,) * 2)
from stepscope.runtime.session.ranks import ranks_from
try:
    ranks_from({text!r})
except ValueError as error:
    print(error)
"""


def test_a_text_names_a_bounded_number_of_ranks() -> None:
    """It is counted before anything is made of it: in a process that may have 600 MB."""
    assert len(MANY) < 1000
    done = run_to_end([sys.executable, "-c", LIMITED.format(text=MANY)], timeout=60, cwd=ROOT)
    assert f"names 2,000,000 ranks, the limit is {MAX_RANKS:,}" in done.stdout, done.stderr
    assert len(ranks_from(f"0-{MAX_RANKS - 1}") or ()) == MAX_RANKS
    with refused(ValueError, "ranks", "'x'", "0,3-5", "all") as caught:
        ranks_from(f"{'1,' * 100_000}x")
    assert len(str(caught.value)) < 300


def test_ranks_with_gaps_come_back() -> None:
    """A hundred thousand ranges are written in a time that grows with their number only."""
    gaps = tuple(range(0, 200_000, 2))
    assert ranks_from(ranks_text(gaps)) == gaps


async def test_an_order_for_too_many_ranks_is_a_bad_request() -> None:
    """The control file says the same."""
    with refused(ProblemError, "ranks", "2000000-2999999", "1,048,576", "all") as caught:
        await Orders(Streams(8)).obey(WindowOrder(steps=1, ranks=MANY))
    assert caught.value.status == 400
    with refused(ControlError, "ranks", "2000000-2999999", "1,048,576", "all"):
        decode_control_file(msgspec.json.encode({"start_step": 1, "steps": 1, "ranks": MANY}))


async def test_any_ranks_of_a_large_job_can_be_ordered(tmp_path: Path) -> None:
    """Such as each second of 10,000, of whom none is connected; a text of more ranks than that is refused, and so is a longer body."""
    async with collecting(tmp_path) as running:
        url = f"http://127.0.0.1:{running.port}/v1/windows"
        for ranks, status in (
            (",".join(map(str, range(0, 10_000, 2))), 404),
            ("1," * 40_000 + "1", 400),
            ("1," * 70_000, 413),
        ):
            body = msgspec.json.encode({"ranks": ranks, "steps": 1})
            answered = await asyncio.to_thread(ask, url, {"Content-Type": "application/json"}, method="POST", body=body)
            assert answered.status == status, answered.body


class Willing:
    """A process that takes commands, of which none comes."""

    control = 1

    async def order(self, command: Command, seconds: float) -> Answer:
        raise AssertionError(f"no command was sent, got {command}")


def test_one_rank_does_not_say_how_large_a_job_is() -> None:
    """What most say counts: a window of all is for those, and no million of ranks is missed."""
    streams = Streams(64)
    for rank, size in enumerate((3, 3, 1 << 20)):
        run = msgspec.structs.replace(RUN, rank=rank, job="job", world_size=size)
        streams.add(stream := Stream(f"{rank:032x}", run))
        stream.connection = Willing()
    targets, lacking = addressees(streams, WindowOrder(steps=1), None)
    assert len(targets) == 3 and not lacking
    job = at_once(Live(streams, Downloads(Path("/nowhere")), exposed=False).snapshot()).job
    assert (job.world_size, job.absent) == (3, [])
    assert usual_size([None, 2, 4, 4, 2]) == 4 and usual_size([None]) == 0


async def test_a_rank_that_claims_an_endless_world_costs_no_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its world counts as unknown, and a window is armed for the ranks that are there."""
    record = msgspec.to_builtins(RUN) | {"world_size": 1 << 62, "job": "j" * 20_000, "id": "i" * 20_000}
    header = msgspec.msgpack.encode([1, STREAM, SYNC, 0, record, 1])
    async with collecting(tmp_path) as running, connected(running.url) as made:
        await made.send(len(header).to_bytes(4, "little") + header)
        assert isinstance(await answer(made), protocol.Welcome)
        assert f"the world size {1 << 62} is ignored" in caplog.text
        (rank,) = running.collector.streams
        assert rank.latest.run.world_size is None
        assert len(rank.latest.run.job) == len(rank.latest.run.id) == protocol.MAX_NAME
        url = f"http://127.0.0.1:{running.port}"
        order = {"command": "status", "patience": 0.2, "ranks": "all"}
        said = await asyncio.to_thread(
            ask,
            f"{url}/v1/windows",
            {"Content-Type": "application/json"},
            method="POST",
            body=msgspec.json.encode(order),
        )
        assert said.status == 200 and "no answer" in said.json()["ranks"][0]["text"]


@pytest.fixture(autouse=True)
def _no_warnings_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees the warnings that other tests have had already."""
    monkeypatch.setattr(ranks, "_warned", set[str]())


@pytest.mark.parametrize("text", ["9" * 5000, "0", str(MAX_RANKS + 1)])
def test_a_world_size_in_the_environment_that_cannot_be_is_ignored(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning has the variable, the value and what follows; as arguments such numbers are refused."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", text)
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    for _ in range(3):
        assert rank_from_environment() == (1, None)
    (warning,) = caplog.messages
    assert warning.startswith(f"WORLD_SIZE: the world size {text[:20]} is ignored, sizes are 1 to {MAX_RANKS}: ")
    assert "counts as unknown" in warning
    with refused(ValueError, "world_size", f"{MAX_RANKS:,}"):
        sc.trace(world_size=1 << 62)
    with refused(ValueError, "rank", f"{MAX_RANKS:,}"):
        sc.trace(rank=1 << 62)


@pytest.mark.parametrize("text", ["-1", str(MAX_RANKS)])
def test_a_rank_in_the_environment_that_cannot_be_is_ignored(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next variable counts."""
    monkeypatch.setenv("RANK", text)
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert rank_from_environment()[0] == 3
    assert caplog.messages == [
        f"RANK: the rank {text} is ignored, ranks are 0 to {MAX_RANKS - 1}: the process counts as one without a rank"
    ]


@pytest.mark.parametrize("value", [-1, MAX_RANKS + 1])
def test_ranks_of_a_journal_that_cannot_be_are_ignored(value: int, caplog: pytest.LogCaptureFixture) -> None:
    """As in the first message of a stream: one warning for each number."""
    sent = msgspec.msgpack.encode(msgspec.to_builtins(RUN) | {"rank": value, "world_size": value})
    for _ in range(3):
        record = msgspec.msgpack.decode(sent, type=RunRecord)
        assert (record.rank, record.world_size) == (None, None)
    assert [f"rank {value}" in text or f"world size {value}" in text for text in caplog.messages] == [True, True]


def test_clock_samples_of_a_long_run_are_thinned(tmp_path: Path) -> None:
    """Of neighbours the quickest is kept, over the whole run, whatever there was of it."""
    total = 3 * MAX_SYNCS
    samples = [
        ClockSync(
            sent=number * 1000,
            arrived=number * 1000 + 5,
            answered=number * 1000 + 5,
            returned=number * 1000 + (10 if number % 5 == 0 else 900),
            clock="c" * 32,
        )
        for number in range(total)
    ]
    path = write_stream(tmp_path, run_in(tmp_path), [], [], samples)
    kept = Recording.of(path, "x").syncs
    assert MAX_SYNCS // 4 <= len(kept) <= MAX_SYNCS
    assert kept[0].sent < 8000 and kept[-1].sent > (total - 8) * 1000
    assert [sync.sent for sync in kept] == sorted(sync.sent for sync in kept)
    quick = sum(sync.returned - sync.sent == 10 for sync in kept)
    assert quick > 0.6 * len(kept)
    few = write_stream(tmp_path / "few", run_in(tmp_path), [], [], samples[:100])
    assert Recording.of(few, "x").syncs == samples[:100]


class Scheduled:
    """A process at step 20 whose schedule records 40 of 50 steps, and which does 100 a second."""

    control = 1

    async def order(self, command: Command, seconds: float) -> Answer:
        placed = None
        if command.command == "propose" and command.request is not None:
            found = place(command.request, 21, [], sc.schedule(wait=10, warmup=0, active=40))
            placed = Armed(found.first is not None, found.first, found.last, "", found.reason, found.nearest)
        return Answer(step=20, rate=100.0, pid=1, armed=placed)


async def test_a_window_that_waits_gets_the_next_room_that_all_ranks_have() -> None:
    """Where there is none, no rank says that it should wait."""
    streams = Streams(8)
    for rank in range(2):
        streams.add(stream := Stream(f"{rank:032x}", msgspec.structs.replace(RUN, rank=rank)))
        stream.connection = Scheduled()
    found = await Orders(streams).obey(WindowOrder(steps=5, overlap="queue"))
    assert (found.outcome, found.first, found.last) == ("done", 150, 154)
    found = await Orders(streams).obey(WindowOrder(steps=20, overlap="queue"))
    assert found.outcome == "refused" and "overlap" in found.ranks[0].text and "ask with" not in found.ranks[0].text
    found = await Orders(streams).obey(WindowOrder(steps=20))
    assert found.ranks[0].text.endswith(ASK_TO_WAIT)
