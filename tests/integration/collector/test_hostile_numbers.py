"""Numbers that clients, records and settings claim: whatever they are, they cost little, and are refused with words."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection

import stepscope as sc
from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.live import Live
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.merge.merge import Merge
from stepscope.collector.merge.plan import Selection, plan
from stepscope.collector.orders.order import WindowOrder
from stepscope.collector.orders.orders import Orders, addressees
from stepscope.collector.problems import ProblemError
from stepscope.collector.runs.job import Job, chosen_job
from stepscope.collector.runs.recording import MAX_SYNCS, Recording, recordings_in
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.specimens import run_in
from stepscope.exporters.stream import protocol
from stepscope.runtime.control.entry_points.control_file import decode_control_file
from stepscope.runtime.control.rate import Pace
from stepscope.runtime.errors import ControlError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import ClockSync, RunRecord, WindowOpened, encode_record
from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.command import MAX_RATE, Answer, Command
from stepscope.runtime.requests.end_change import EndRequest, choose_end
from stepscope.runtime.requests.placement import ASK_TO_WAIT, choose_steps, place
from stepscope.runtime.requests.window_request import MAX_STEP, WindowRequest
from stepscope.runtime.session import ranks
from stepscope.runtime.session.job import rank_from_environment
from stepscope.runtime.session.ranks import MAX_RANKS, ranks_from, ranks_text, usual_size
from tests.support.basics import ROOT, at_once
from tests.support.collecting import send_request
from tests.support.collectors import Running, answer, collecting, connected
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.ranks.streams import write_stream
from tests.support.streams import RUN, STREAM, SYNC, frames_header

RUNNING = {"run_id": "", "trigger": "call", "requested": "", "state": "running"}

UNREADABLE: list[dict[str, Any]] = [
    {"step": 1, "rate": 1e308},
    {"step": 1 << 62, "rate": 1.0},
    {"step": 10**400},
    {"pid": 1 << 70},
    {"step": 1, "rate": 1.0, "windows": [RUNNING | {"first": 0, "last": 10, "granularity": 0}]},
    {"step": 1, "rate": 1.0, "armed": {"accepted": True, "first": 1 << 70, "last": 1 << 70}},
]
AT_THE_BOUNDS: list[dict[str, Any]] = [
    {"step": MAX_STEP, "rate": 1.0},
    {"step": 1, "rate": 1.0, "windows": [RUNNING | {"first": 0, "last": (1 << 62) - 1}]},
    {"step": 1, "rate": 1.0, "armed": {"accepted": True, "first": (1 << 62) - 1, "last": (1 << 62) - 1}},
    {"step": 1, "rate": 1.0, "armed": {"accepted": False, "nearest": (1 << 62) - 1}},
]


def first_message(rank: int, **changes: Any) -> bytes:
    """Hello of a process that takes commands."""
    run = msgspec.to_builtins(RUN) | {"rank": rank, "world_size": 2, "job": "j"} | changes
    header = msgspec.msgpack.encode([1, f"{rank:032x}", SYNC, run, 1])
    return len(header).to_bytes(4, "little") + header


async def obey(made: ClientConnection, payload: bytes) -> None:
    """Gives every order this answer."""
    while True:
        header = await answer(made)
        if isinstance(header, protocol.Order):
            await made.send(protocol.encode(protocol.Obeyed(header.number, payload)))


@contextlib.asynccontextmanager
async def two_ranks(running: Running, payload: bytes) -> AsyncGenerator[None]:
    """The ranks of a job, which answer that."""
    async with connected(running.url) as one, connected(running.url) as other:
        tasks: list[asyncio.Task[None]] = []
        for rank, made in enumerate((one, other)):
            await made.send(first_message(rank))
            assert isinstance(await answer(made), protocol.Welcome)
            tasks.append(asyncio.create_task(obey(made, payload)))
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def order(running: Running, **fields: Any) -> Any:
    """The collector's answer to an operator; always with 200."""
    body = json.dumps({"job": "j", "patience": 5, **fields}).encode()
    headers = {"Content-Type": "application/json"}
    answer = await asyncio.to_thread(
        send_request, f"http://127.0.0.1:{running.port}/v1/windows", headers, method="POST", body=body
    )
    assert answer.status == 200, answer.body
    return answer.json()


@pytest.mark.parametrize("answer", UNREADABLE + AT_THE_BOUNDS, ids=lambda answer: str(answer)[:60])
async def test_answers_with_odd_numbers(answer: dict[str, Any], tmp_path: Path) -> None:
    """Every order of that job is answered; an answer that cannot be is named."""
    async with collecting(tmp_path) as running, two_ranks(running, json.dumps(answer).encode()):
        for fields in (
            {"command": "arm", "steps": 1},
            {"command": "arm", "steps": 1, "overlap": "queue"},
            {"command": "arm", "start_step": MAX_STEP, "steps": MAX_STEP, "granularity": 2},
            {"command": "extend", "steps": 1},
            {"command": "extend", "steps": MAX_STEP},
            {"command": "abort"},
            {"command": "status"},
        ):
            result = await order(running, **fields)
            if answer in UNREADABLE:
                assert result["outcome"] == "refused"
                assert "the answer cannot be read: Expected" in result["ranks"][0]["text"]


def test_steps_beyond_the_last_number() -> None:
    """They are refused with the number."""
    request = WindowRequest(steps=5)
    chosen = choose_steps(request, MAX_STEP, 0, 0, "a rank is at step 7")
    assert chosen.request is None and f"{MAX_STEP + 4:,}" in chosen.reason and chosen.reason.endswith("is at step 7")
    timed = choose_steps(WindowRequest(seconds=5), MAX_STEP + 1, 0, 0, "")
    assert timed.request is None and f"{MAX_STEP + 1:,}" in timed.reason
    window = ArmedStatus(run_id="", trigger="", requested="", state="running", first=0, last=MAX_STEP - 1)
    for asked, ahead in ((EndRequest(command="extend", steps=9), 1), (EndRequest(command="abort"), MAX_STEP + 9)):
        ended = choose_end(asked, {0: [window]}, ahead)
        assert ended.change is None and f"{MAX_STEP + 8:,}" in ended.reason


def test_the_own_rate_stays_within_its_bounds() -> None:
    """Also if the number of the step is set to a large one: the answer can be read."""
    pace = Pace()
    for at, step in ((0.0, 0), (0.3, 1), (0.6, MAX_STEP)):
        pace.add(at, step)
    assert pace.per_second == MAX_RATE
    sent = msgspec.json.encode(Answer(step=MAX_STEP, rate=pace.per_second))
    assert msgspec.json.decode(sent, type=Answer).rate == MAX_RATE


async def test_a_clock_that_no_integer_of_64_bits_has(tmp_path: Path) -> None:
    """The stream is refused with words; the pages of the others are answered."""
    async with collecting(tmp_path) as running, connected(running.url) as made:
        await made.send(first_message(0, anchor={"monotonic_ns": (1 << 64) - 1, "wall_ns": 0, "error_ns": 0}))
        refused = await answer(made)
        assert isinstance(refused, protocol.Refused) and "monotonic_ns" in refused.reason
        assert (await asyncio.to_thread(send_request, f"http://127.0.0.1:{running.port}/v1/ranks")).json() == []


@pytest.mark.parametrize("value", [-1, (1 << 63) - 1, -(1 << 63)])
async def test_records_with_odd_numbers(value: int, tmp_path: Path) -> None:
    """Every page of the interface is answered whatever the clocks, counts and steps of a stream are."""
    source = {"produced": value, "accepted": value, "dropped": {f"why{number}": (1 << 64) - 1 for number in range(5)}}
    output = {"offered": value, "dropped": {f"why{number}": value for number in range(5)}}
    ledger = {"sources": {"a": source, "b": source}, "outputs": {"collector": output}}
    steps = b"".join(value.to_bytes(8, "little", signed=True) for _ in range(9))
    window = {"index": value, "start_ns": value, "end_ns": -value - 1, "steps": steps, "ledger": ledger}
    round_trip = {"sent": value, "arrived": -value - 1, "answered": value, "returned": -value - 1, "clock": "c"}
    anchor = {"monotonic_ns": value, "wall_ns": value, "error_ns": value}
    records: list[tuple[fmt.FrameType, Any]] = [
        (fmt.FrameType.WINDOW_OPENED, {"index": value, "at_ns": value}),
        (fmt.FrameType.CLOCK_SYNC, round_trip),
        (fmt.FrameType.CLOCK, anchor),
        (fmt.FrameType.WINDOW_CLOSED, window),
        (fmt.FrameType.LEDGER, ledger),
        (fmt.FrameType.CAP, {"limit_bytes": value, "dropped": value}),
        (fmt.FrameType.END, {"events": value}),
    ]
    async with collecting(tmp_path) as running, connected(running.url) as made:
        await made.send(first_message(0, anchor=anchor, pid=value, created_ns=value))
        assert isinstance(await answer(made), protocol.Welcome)
        run = msgspec.msgpack.encode(msgspec.to_builtins(RUN) | {"rank": 0, "anchor": anchor})
        packed = [(fmt.FrameType.RUN, run), *((kind, msgspec.msgpack.encode(record)) for kind, record in records)]
        for number, (kind, payload) in enumerate(packed):
            frame = b"".join(map(bytes, fmt.encode_frame(SYNC, kind, number, [payload])))
            await made.send(protocol.encode(frames_header(number, 1), frame))
            assert isinstance(await answer(made), protocol.Ack), kind
        await made.send(protocol.encode(protocol.Ping(value)))
        assert isinstance(await answer(made), protocol.Pong)
        url = f"http://127.0.0.1:{running.port}"
        (rank,) = (await asyncio.to_thread(send_request, f"{url}/v1/ranks")).json()
        pages = ["job", "jobs", "ranks", "windows", "steps", f"ranks/{rank['id']}", f"streams/{rank['stream']}"]
        for page in [*(f"v1/{page}" for page in pages), "metrics", "healthz"]:
            response = await asyncio.to_thread(send_request, f"{url}/{page}")
            assert response.status in (200, 404), (page, response.body)
    recordings, unusable = recordings_in([tmp_path])
    assert unusable == []
    described = Job(*chosen_job(recordings, None))
    windows = plan(described, Selection())
    if windows:
        report = await Merge(described, windows, tmp_path).together(MemoryExporter())
        assert msgspec.json.encode(report) and report.text()


async def test_steps_whose_numbers_no_integer_of_64_bits_has() -> None:
    """A summary that has them costs no other stream its windows."""
    streams = Streams(8)
    for number in range(2):
        streams.add(stream := Stream(f"{number:032x}", msgspec.structs.replace(RUN, rank=number)))
        stream.add_frames([(fmt.FrameType.WINDOW_OPENED, 0, encode_record(WindowOpened(number, 0)))], 0, 1)
        runs = [protocol.StepRun(number, first, 0, bytes(8 * 3)) for first in (5, (1 << 63) - 2)]
        stream.add_summary(protocol.StepSummary(0, 0, 0, runs[: number + 1], b""))
    windows = await Live(streams, Downloads(Path("/nowhere")), exposed=False).windows(10)
    assert {window.index for window in windows} == {0, 1}


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
            answered = await asyncio.to_thread(
                send_request, url, {"Content-Type": "application/json"}, method="POST", body=body
            )
            assert answered.status == status, answered.body


class Willing:
    """A process that takes commands, of which none comes."""

    control = 1

    async def order(self, command: Command, seconds: float) -> Answer:
        raise AssertionError(f"no command was sent, got {command}")


def test_one_rank_does_not_say_how_large_a_job_is() -> None:
    """The number that most ranks report counts: a window of all is for those, and no million of ranks is missed."""
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
    header = msgspec.msgpack.encode([1, STREAM, SYNC, record, 1])
    async with collecting(tmp_path) as running, connected(running.url) as made:
        await made.send(len(header).to_bytes(4, "little") + header)
        assert isinstance(await answer(made), protocol.Welcome)
        assert f"the world size {1 << 62} is ignored" in caplog.text
        (rank,) = running.collector.streams
        assert rank.latest.run.world_size is None
        assert len(rank.latest.run.job) == len(rank.latest.run.id) == protocol.MAX_NAME
        url = f"http://127.0.0.1:{running.port}"
        order = {"command": "status", "patience": 0.2, "ranks": "all"}
        response = await asyncio.to_thread(
            send_request,
            f"{url}/v1/windows",
            {"Content-Type": "application/json"},
            method="POST",
            body=msgspec.json.encode(order),
        )
        assert response.status == 200 and "no answer" in response.json()["ranks"][0]["text"]


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
    assert warning.startswith(f"WORLD_SIZE: the world size {text[:20]} is ignored, sizes are ")
    assert "counts as unknown" in warning
    with refused(ValueError, "world_size", f"{MAX_RANKS:,}"):
        sc.trace(world_size=1 << 62)
    with refused(ValueError, "rank", f"{MAX_RANKS:,}"):
        sc.trace(rank=1 << 62)


@pytest.mark.parametrize("text", ["-1", str(MAX_RANKS), "'x'"])
def test_a_rank_in_the_environment_that_cannot_be_is_ignored(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next variable counts."""
    monkeypatch.setenv("RANK", text.strip("'"))
    monkeypatch.setenv("MS_NODE_ID", "any name")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert rank_from_environment()[0] == rank_from_environment()[0] == 3
    (warning,) = caplog.messages
    assert warning.startswith(f"RANK: the rank {text} is ignored, ranks are whole numbers from 0 to {MAX_RANKS - 1}: ")


@pytest.mark.parametrize("value", [-1, MAX_RANKS + 1])
def test_ranks_of_a_journal_that_cannot_be_are_ignored(value: int, caplog: pytest.LogCaptureFixture) -> None:
    """As in the first message of a stream: one warning for each number."""
    sent = msgspec.msgpack.encode(msgspec.to_builtins(RUN) | {"rank": value, "world_size": value})
    for _ in range(3):
        record = msgspec.msgpack.decode(sent, type=RunRecord)
        assert (record.rank, record.world_size) == (None, None)
    assert [f"rank {value}" in text or f"world size {value}" in text for text in caplog.messages] == [True, True]


def test_clock_samples_of_a_long_run_are_thinned(tmp_path: Path) -> None:
    """Of neighbours the quickest stays, over the whole run."""
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
    syncs = Recording.of(path, "x").syncs
    assert MAX_SYNCS // 4 <= len(syncs) <= MAX_SYNCS
    assert syncs[0].sent < 8000 and syncs[-1].sent > (total - 8) * 1000
    assert [sync.sent for sync in syncs] == sorted(sync.sent for sync in syncs)
    quick = sum(sync.returned - sync.sent == 10 for sync in syncs)
    assert quick > 0.6 * len(syncs)
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
