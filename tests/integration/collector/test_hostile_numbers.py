"""Numbers that connected processes send: whatever they are, requests are answered, and what cannot be is said in words."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection

from stepscope.collector.merge.merge import Merge
from stepscope.collector.merge.plan import Selection, plan
from stepscope.collector.runs.job import Job, chosen_job
from stepscope.collector.runs.recording import recordings_in
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.stream import protocol
from stepscope.runtime.control.rate import Pace
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.requests.armed import ArmedStatus
from stepscope.runtime.requests.command import MAX_RATE, Answer
from stepscope.runtime.requests.end_change import EndRequest, choose_end
from stepscope.runtime.requests.placement import choose_steps
from stepscope.runtime.requests.window_request import MAX_STEP, WindowRequest
from tests.support.collecting import ask
from tests.support.collectors import Running, answer, collecting, connected
from tests.support.streams import RUN, SYNC, frames_header

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
    header = msgspec.msgpack.encode([1, f"{rank:032x}", SYNC, 0, run, 1])
    return len(header).to_bytes(4, "little") + header


async def obey(made: ClientConnection, said: bytes) -> None:
    """Gives every order this answer."""
    while True:
        header = await answer(made)
        if isinstance(header, protocol.Order):
            await made.send(protocol.encode(protocol.Obeyed(header.number, said)))


@contextlib.asynccontextmanager
async def two_ranks(running: Running, said: bytes) -> AsyncGenerator[None]:
    """The ranks of a job, which answer that."""
    async with connected(running.url) as one, connected(running.url) as other:
        tasks: list[asyncio.Task[None]] = []
        for rank, made in enumerate((one, other)):
            await made.send(first_message(rank))
            assert isinstance(await answer(made), protocol.Welcome)
            tasks.append(asyncio.create_task(obey(made, said)))
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def order(running: Running, **fields: Any) -> Any:
    """What the collector answers to an operator; always with 200."""
    body = json.dumps({"job": "j", "patience": 5, **fields}).encode()
    headers = {"Content-Type": "application/json"}
    said = await asyncio.to_thread(
        ask, f"http://127.0.0.1:{running.port}/v1/windows", headers, method="POST", body=body
    )
    assert said.status == 200, said.body
    return said.json()


@pytest.mark.parametrize("said", UNREADABLE + AT_THE_BOUNDS, ids=lambda said: str(said)[:60])
async def test_answers_with_odd_numbers(said: dict[str, Any], tmp_path: Path) -> None:
    """Every order of that job is answered; an answer that cannot be is named."""
    async with collecting(tmp_path) as running, two_ranks(running, json.dumps(said).encode()):
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
            if said in UNREADABLE:
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
        assert (await asyncio.to_thread(ask, f"http://127.0.0.1:{running.port}/v1/ranks")).json() == []


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
        (rank,) = (await asyncio.to_thread(ask, f"{url}/v1/ranks")).json()
        pages = ["job", "jobs", "ranks", "windows", "steps", f"ranks/{rank['id']}", f"streams/{rank['stream']}"]
        for page in [*(f"v1/{page}" for page in pages), "metrics", "healthz"]:
            said = await asyncio.to_thread(ask, f"{url}/{page}")
            assert said.status in (200, 404), (page, said.body)
    recordings, unusable = recordings_in([tmp_path])
    assert unusable == []
    described = Job(*chosen_job(recordings, None))
    windows = plan(described, Selection())
    if windows:
        report = await Merge(described, windows, tmp_path).together(MemoryExporter())
        assert msgspec.json.encode(report) and report.text()
