"""Windows that are asked for over the collector."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope import Control
from stepscope.cli.main import main
from stepscope.control import WindowRequest
from stepscope.exporters.stream import protocol
from stepscope.runtime.control.request_router import PLAN
from stepscope.runtime.requests.command import Command
from stepscope.runtime.requests.end_change import EndChange
from stepscope.runtime.steps.arming import MAX_WAITING
from stepscope.runtime.steps.window_follower import WindowFollower
from tests.support.background_loop import QUICK
from tests.support.basics import ROOT, poll
from tests.support.collectors import Running, collecting
from tests.support.launch import launched
from tests.support.messages import refused

# over the collector

RANK = """
import os, sys, time
import stepscope
from stepscope import CollectorExporter, Control
directory, url, rank, obeys = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1"
def ready(window):
    steps = [step.number for step in window.steps]
    armed = window.metadata["armed"]
    line = f"{armed['run_id']} {steps[0]} {steps[-1]} {armed.get('detail', '-')} {armed.get('note', '-')}\\n"
    open(f"{directory}/windows-{rank}", "a").write(line)
control = Control(collector=obeys, signal=True, poll=0.1)
with stepscope.trace(control=control, exporters=[CollectorExporter(url)], output_dir=directory + "/run", rank=rank,
                     on_trace_ready=ready, name="job", options=stepscope.Options(drain_interval=0.05)) as profiler:
    while not os.path.exists(directory + "/stop"):
        with stepscope.span("work"):
            time.sleep(0.002 + 0.0001 * rank)
        profiler.step()
"""


@contextlib.asynccontextmanager
async def ranks_at(
    running: Running, directory: Path, count: int, *, world: int | None = None, deaf: int | None = None
) -> AsyncGenerator[None]:
    """Ranks that stream to a collector, and are connected.

    Args:
        running: the collector.
        directory: of what they write.
        count: how many.
        world: how many the job has; default: nobody says.
        deaf: one that takes no commands.
    """

    def connected() -> int:
        return sum(one.connection is not None for one in running.collector.streams.all.values())

    expected = connected() + count
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", RANK, str(directory), running.url]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if world is not None:
            environment["WORLD_SIZE"] = str(world)
        for rank in range(count):
            stack.enter_context(launched([*command, str(rank), str(int(rank != deaf))], cwd=ROOT, env=environment))
        await poll(lambda: connected() == expected)
        yield
        (directory / "stop").touch()


def _has(path: Path, line: str) -> bool:
    return path.exists() and line in path.read_text()


async def order(url: str, **fields: Any) -> tuple[int, Any]:
    """Sends an order; the status and the answer."""

    def send() -> tuple[int, Any]:
        token = fields.pop("token", "")
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        request = urllib.request.Request(
            url.replace("ws:", "http:") + "/v1/windows", json.dumps(fields).encode(), headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return await asyncio.to_thread(send)


@pytest.mark.checklist("F10")
async def test_all_ranks_of_a_collector_record_the_same_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command; the answer of each rank is shown, and is what it recorded."""
    token = "t" * 20
    (tmp_path / "token").write_text(token)
    async with collecting(tmp_path / "collector", token=token) as running:
        os.environ["STEPSCOPE_TOKEN"] = token
        try:
            async with ranks_at(running, tmp_path, 3):
                assert (await order(running.url, steps=2))[0] == 401
                for number in range(2):
                    status, answer = await order(
                        running.url, token=token, steps=3, run_id=f"r{number}", overlap="queue"
                    )
                    assert (status, answer["outcome"]) == (200, "done"), answer
                    assert answer["last"] == answer["first"] + 2
                    line = f"r{number} {answer['first']} {answer['last']} - -\n"
                    for rank in range(3):
                        path = tmp_path / f"windows-{rank}"
                        await poll(partial(_has, path, line))
                status, answer = await order(running.url, token=token, steps=1, ranks="0,2", run_id="some")
                assert status == 200 and [rank["rank"] for rank in answer["ranks"]] == [0, 2]
                status, answer = await order(running.url, token=token, start_step=1, steps=1)
                assert answer["outcome"] == "refused" and "is past" in answer["reason"]
                status, answer = await order(running.url, token=token, steps=1, job="other")
                assert status == 404
                status, answer = await order(running.url, token=token, steps=0)
                assert status == 400
                status, answer = await order(running.url, token=token, start_step=5, stop_step=3)
                assert status == 400 and "before start_step 5" in answer["detail"]
                url = running.url.replace("ws:", "http:")
                arguments = ["--url", url, "--token-file", str(tmp_path / "token")]
                code = await asyncio.to_thread(main, ["arm", *arguments, "--seconds", "0.1", "--ranks", "1"])
                shown = capsys.readouterr().out
                assert code == 0 and shown.startswith("done: steps ") and "rank 1 (pid " in shown
                code = await asyncio.to_thread(main, ["arm", *arguments, "--status"])
                assert code == 0 and capsys.readouterr().out.count("recorded 'r0'") == 3
                await _none_waits(running.url, token=token)
                for wrong in (
                    [*arguments, "--extend", "--steps", "2"],
                    [*arguments, "--token-file", str(tmp_path), "--status"],
                ):
                    assert await asyncio.to_thread(main, ["arm", *wrong]) == 1
        finally:
            del os.environ["STEPSCOPE_TOKEN"]
    audit = [json.loads(line) for line in (tmp_path / "collector" / "audit.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in audit if line["action"] == "ordered arm"][:2] == ["done"] * 2
    assert any(line["action"] == "order status" and line["client"] == "127.0.0.1" for line in audit)
    assert any(line["action"] == "ordered extend" and line["outcome"] == "refused" for line in audit)
    assert token not in (tmp_path / "collector" / "audit.jsonl").read_text()


def _lines(directory: Path, ranks: int, run: str) -> list[str]:
    """A line of each rank that has recorded the window."""
    paths = [directory / f"windows-{rank}" for rank in range(ranks)]
    lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
    return [line for line in lines if line.startswith(f"{run} ")]


async def _until(url: str, wanted: Callable[[set[str]], bool], **fields: Any) -> None:
    """Looks until the windows of all that can be asked are in such states; fails after a minute."""
    states: set[str] = set()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        _, answer = await order(url, command="status", **fields)
        states = {window["state"] for rank in answer["ranks"] for window in rank["windows"]}
        if wanted(states):
            return
    pytest.fail(f"after a minute windows are {sorted(states)}", pytrace=False)


async def _all_record(url: str) -> None:
    """Looks until the windows of all that can be asked run."""
    await _until(url, lambda states: states == {"running"})


async def _none_waits(url: str, **fields: Any) -> None:
    """Looks until no window runs, or waits for its steps."""
    await _until(url, lambda states: not states & {"queued", "running"}, **fields)


@pytest.mark.checklist("A34", "F5", "F10")
async def test_all_ranks_of_a_collector_end_with_the_same_step(tmp_path: Path) -> None:
    """One order extends or aborts what runs, on all ranks alike; the detail of a window is that of the order."""
    async with collecting(tmp_path / "collector") as running:
        async with ranks_at(running, tmp_path, 3):
            status, answer = await order(running.url, command="extend")
            assert status == 400 and "takes steps or seconds" in answer["detail"]
            status, answer = await order(running.url, command="extend", steps=3)
            assert (answer["outcome"], answer["reason"]) == ("refused", "no armed window runs")
            status, answer = await order(running.url, command="abort")
            assert (answer["outcome"], answer["reason"]) == ("done", "no armed window runs or waits")
            status, answer = await order(running.url, steps=1, detail="stacks")
            assert answer["outcome"] == "refused" and "PythonStacksBackend()" in answer["ranks"][0]["text"]
            status, answer = await order(running.url, steps=1, detail="stack")
            assert status == 400 and "did you mean 'stacks'?" in answer["detail"]

            status, answer = await order(running.url, steps=1_000_000, run_id="long", granularity=4, detail="every=2")
            assert answer["outcome"] == "done", answer
            first, last = answer["first"], answer["last"]
            await _all_record(running.url)
            status, answer = await order(running.url, command="extend", steps=5)
            assert (answer["outcome"], answer["first"], answer["last"]) == ("done", first, last + 8), answer
            status, answer = await order(running.url, command="abort", run_id="other")
            assert answer["reason"] == "no armed window runs or waits"
            status, answer = await order(running.url, command="abort", run_id="long")
            assert (answer["outcome"], answer["first"]) == ("done", first), answer
            end = answer["last"]
            await poll(lambda: len(_lines(tmp_path, 3, "long")) == 3)
            aborted = f"aborted after step {end}: an operator of the collector"
            assert set(_lines(tmp_path, 3, "long")) == {
                f"long {first} {end} every=2 extended to step {last + 8}; {aborted}"
            }


async def test_ranks_that_cannot_be_asked_are_named(tmp_path: Path) -> None:
    """One of four is not connected and one takes no commands: a window of all is refused, one of the others is recorded; an
    end is carried out where it can be, and is `partly`."""
    async with collecting(tmp_path / "collector") as running:
        async with ranks_at(running, tmp_path, 3, world=4, deaf=1):
            lacking = "not connected: rank 3; without trace(control=Control(collector=True)): rank 1"
            status, answer = await order(running.url, steps=2, run_id="all")
            assert (status, answer["outcome"]) == (200, "refused"), answer
            assert answer["reason"] == (
                f"not all ranks of the job can be asked, so none records; {lacking}; for the others: ranks 0,2"
            )
            assert [(rank["rank"], rank["obeys"]) for rank in answer["ranks"]] == [(0, False), (2, False)]
            for ranks, named in (("0-1", "Control(collector=True)): rank 1"), ("2-3", "not connected: rank 3")):
                status, answer = await order(running.url, steps=2, ranks=ranks)
                assert status == 404 and answer["detail"].endswith(named), answer
            status, answer = await order(running.url, steps=1_000_000, ranks="0,2", run_id="others")
            assert answer["outcome"] == "done", answer
            await _all_record(running.url)
            status, answer = await order(running.url, command="abort")
            assert (answer["outcome"], answer["reason"]) == ("partly", lacking), answer
            await poll(lambda: len(_lines(tmp_path, 3, "others")) == 2)
    assert _lines(tmp_path, 3, "all") == []


async def test_jobs_of_one_name_and_different_sizes_are_distinguished(tmp_path: Path) -> None:
    """Neither has an id: an order is for one of them, by the name that the page shows, and the other hears nothing of it."""
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    async with collecting(tmp_path / "collector") as running:
        async with ranks_at(running, small, 1, world=1), ranks_at(running, large, 2, world=2):
            status, answer = await order(running.url, steps=2)
            assert status == 409 and answer["detail"].endswith("name 'job' job 'job x1', name 'job' job 'job x2'"), (
                answer
            )
            status, answer = await order(running.url, steps=2, run_id="small", job="job x1")
            assert answer["outcome"] == "done" and [rank["rank"] for rank in answer["ranks"]] == [0], answer
            await poll(lambda: len(_lines(small, 1, "small")) == 1)
            status, answer = await order(running.url, steps=2, run_id="large", job="job x2")
            assert answer["outcome"] == "done" and [rank["rank"] for rank in answer["ranks"]] == [0, 1], answer
            await poll(lambda: len(_lines(large, 2, "large")) == 2)
    assert _lines(small, 1, "large") == _lines(large, 2, "small") == []


async def test_a_rank_that_is_two_processes_records_nothing(tmp_path: Path) -> None:
    """Two jobs of one name and size: which of them is meant nobody can say."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with collecting(tmp_path / "collector") as running:
        async with ranks_at(running, tmp_path / "one", 1, world=1), ranks_at(running, tmp_path / "other", 1, world=1):
            await poll(lambda: any(rank.others for rank in running.collector.streams))
            status, answer = await order(running.url, steps=2, run_id="mine")
            assert (status, answer["outcome"]) == (200, "refused"), answer
            assert "several processes at once, maybe of jobs of one name: rank 0" in answer["reason"]
            status, answer = await order(running.url, command="status")
            assert answer["outcome"] == "partly", answer
    assert _lines(tmp_path / "one", 1, "mine") == _lines(tmp_path / "other", 1, "mine") == []


async def test_windows_of_several_ranks_wait_for_others(tmp_path: Path) -> None:
    """With `queue` later steps are found, with fixed steps as with the next ones; behind one that ends by the clock none can
    be, and that is reported."""
    async with collecting(tmp_path / "collector") as running:
        async with ranks_at(running, tmp_path, 2):
            _, answer = await order(running.url, steps=1_000_000, run_id="long")
            assert answer["outcome"] == "done", answer
            last = answer["last"]
            await _all_record(running.url)
            _, answer = await order(running.url, steps=2, run_id="refused")
            assert answer["outcome"] == "refused" and "ask with overlap='queue'" in answer["ranks"][0]["text"], answer
            _, answer = await order(running.url, steps=2, run_id="waits", overlap="queue")
            assert (answer["outcome"], answer["first"], answer["last"]) == ("done", last + 1, last + 2), answer
            _, answer = await order(
                running.url, start_step=last - 1, steps=2, granularity=4, run_id="fixed", overlap="queue"
            )
            first = -(-(last + 3) // 4) * 4
            assert answer["outcome"] == "done" and answer["first"] == first, answer
            await order(running.url, command="abort")
            await _none_waits(running.url)
            _, answer = await order(running.url, seconds=3600, run_id="timed")
            assert answer["outcome"] == "done", answer
            # Until it runs on both there may be room before it.
            await _until(running.url, lambda states: "running" in states and "queued" not in states)
            _, answer = await order(running.url, steps=2, overlap="queue")
            assert answer["outcome"] == "refused", answer
            assert answer["ranks"][0]["text"].endswith("ask again when it is over"), answer


def test_an_order_is_bounded() -> None:
    """A collector cannot have a process read more than a command may take."""
    with refused(Exception, "32768"):
        protocol.decode(protocol.encode(protocol.Order(1, b"x" * (protocol.MAX_ORDER + 1))))


def of_a_collector(output_dir: Path, windows: list[Any]) -> stepscope.Profiler:
    """A profiler of rank 1 that takes orders of its collector."""
    control = Control(collector=True)
    return stepscope.trace(control=control, output_dir=output_dir, options=QUICK, on_trace_ready=windows.append, rank=1)


async def send_order(profiler: stepscope.Profiler, **fields: Any) -> Any:
    """The answer to an order of the collector."""
    assert profiler.control is not None and profiler.control.from_collector is not None
    return await asyncio.wrap_future(profiler.control.from_collector(Command(**fields)))


def loop(profiler: stepscope.Profiler, count: int) -> None:
    """So many steps."""
    for _ in range(count):
        with stepscope.span("work"):
            pass
        profiler.step()


async def test_an_end_that_is_proposed_and_decided(output_dir: Path) -> None:
    """It is so if that is decided in time; silence, a decision against it, and proposals without a name leave the window as it is."""
    windows: list[Any] = []
    with of_a_collector(output_dir, windows) as profiler:
        ask, steps = partial(send_order, profiler), partial(loop, profiler)
        assert "lacks" in (await ask(command="propose", proposal="nothing")).error
        profiler.arm(WindowRequest(start_step=2, stop_step=5, run_id="w"))
        steps(3)
        for fields in ({"end": EndChange(command="abort", last=4)}, {"request": WindowRequest(start_step=9, steps=1)}):
            assert (await ask(command="propose", **fields)).error == "propose lacks the name of a proposal"
        for committed in (True, False):
            assert (await ask(command="decide", committed=committed)).error == "decide lacks the name of a proposal"
        extend = EndChange(command="extend", first=2, until=5, last=7)
        assert (await ask(command="propose", proposal="no", end=extend)).armed.accepted
        assert (await ask(command="decide", proposal="no", committed=False)).error == ""
        assert (await ask(command="propose", proposal="yes", end=extend)).armed.last == 7
        assert (await ask(command="decide", proposal="yes", committed=True)).error == ""
        again = (await ask(command="propose", proposal="again", end=extend)).armed
        assert again.reason == "the window ends with step 7, not with 5"
        silent = EndChange(command="abort", last=5, reason="enough")
        assert (await ask(command="propose", proposal="silent", end=silent)).armed.last == 5
        steps(3)
        late = await ask(command="decide", proposal="silent", committed=True)
        assert "nothing was decided in time" in late.error
        assert "too late" in (await ask(command="propose", proposal="late", end=silent)).armed.reason
        steps(5)
    assert [[step.number for step in window.steps] for window in windows] == [[2, 3, 4, 5, 6, 7]]
    assert windows[0].complete


async def test_ends_that_nobody_decides_on_are_bounded(output_dir: Path) -> None:
    """An operator that proposes and never decides is refused at some point."""
    with of_a_collector(output_dir, []) as profiler:
        far = EndChange(command="abort", last=10**9)
        answers = [
            (await send_order(profiler, command="propose", proposal=f"{each}", end=far)).armed for each in range(70)
        ]
        assert sum(answer.accepted for answer in answers) == MAX_WAITING
        assert "wait for a decision" in answers[-1].reason
        assert (await send_order(profiler, command="decide", proposal="0", committed=False)).error == ""
        assert (await send_order(profiler, command="propose", proposal="again", end=far)).armed.accepted


async def test_proposals_and_decisions(output_dir: Path) -> None:
    """A proposal is recorded if it is decided so in time, and not otherwise; once decided it stays so."""
    windows: list[Any] = []
    with of_a_collector(output_dir, windows) as profiler:
        ask, steps = partial(send_order, profiler), partial(loop, profiler)
        for number, (proposal, committed) in enumerate([("yes", True), ("no", False), ("silence", None)]):
            request = WindowRequest(start_step=10 * number + 5, steps=2, run_id=proposal)
            answer = await ask(command="propose", proposal=proposal, request=request)
            assert answer.armed.accepted and answer.rank == 1
            if committed is not None:
                assert (await ask(command="decide", proposal=proposal, committed=committed)).error == ""
                other = await ask(command="decide", proposal=proposal, committed=not committed)
                assert "nothing of that name" in other.error
            steps(10)
        late = await ask(command="decide", proposal="silence", committed=True)
        assert "nothing was decided in time" in late.error
        assert "nothing of that name" in (await ask(command="decide", proposal="yes", committed=True)).error
    assert [window.metadata["armed"]["run_id"] for window in windows] == ["yes"]
    assert [(status.state, status.reason) for status in profiler.armed()] == [
        ("recorded", ""),
        ("withdrawn", "it was decided against"),
        ("withdrawn", "nothing was decided by step 25, when it was to begin"),
    ]


def test_a_decision_leaves_windows_of_plans() -> None:
    """The watched file and other ranks have plans, whose names are no proposals."""
    arming = WindowFollower("loop", rank=0).arming
    assert arming.arm(WindowRequest(start_step=3, steps=1), plan=PLAN)
    assert not arming.decide(PLAN, committed=False, reason="guessed")
    assert arming.arm(WindowRequest(start_step=5, steps=1), plan=PLAN, proposed=True)
    assert arming.decide(PLAN, committed=False, reason="decided against")
    assert [(status.first, status.state) for status in arming.armed()] == [(5, "withdrawn"), (3, "queued")]
    arming.withdraw(PLAN, "the file asks for something else")
    assert [(status.first, status.state) for status in arming.armed()] == [(5, "withdrawn"), (3, "withdrawn")]
