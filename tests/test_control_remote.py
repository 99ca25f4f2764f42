"""Windows that are asked for from outside of the process: over its socket, and over the collector."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepscope
from stepscope import Control, ControlError, Options, WindowRequest
from stepscope.cli.main import main
from stepscope.exporters.collector import protocol
from stepscope.runtime.control.client import ask_process, ask_socket
from stepscope.runtime.control.command import Command
from stepscope.runtime.control.end_change import EndChange
from stepscope.runtime.control.local_socket import peer_user
from stepscope.runtime.control.remote_gate import RemoteGate
from stepscope.runtime.processes import parent_of
from stepscope.runtime.session import session_of
from tests.collectors import collecting
from tests.launch import launched, run_to_end
from tests.streams import hello
from tests.support import ROOT, poll

QUICK = Options(journal=False, drain_interval=0.01)


class Loop:
    """A loop on a thread of its own, for tests that ask it from this one."""

    def __init__(self, profiler: stepscope.Profiler, step_ms: float = 1.0) -> None:
        self.profiler = profiler
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(step_ms / 1000,))
        self._thread.start()

    def _run(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            with stepscope.span("work"):
                pass
            self.profiler.step()

    def end(self) -> None:
        """Ends it."""
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def looping(directory: Path, control: Control, **more: Any) -> Generator[tuple[stepscope.Profiler, list[Any]]]:
    """A loop that runs beside the test, and its windows."""
    windows: list[Any] = []
    with stepscope.trace(
        control=control, output_dir=directory, options=QUICK, on_trace_ready=windows.append, **more
    ) as profiler:
        loop = Loop(profiler)
        try:
            yield profiler, windows
        finally:
            loop.end()


def wait(condition: Any) -> None:
    """Looks until something holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# over the socket


def test_commands_over_the_socket(output_dir: Path) -> None:
    """Each is answered with what becomes of it."""
    with looping(output_dir, Control(socket=True), name="one") as (profiler, windows):
        me = os.getpid()
        (answer,) = ask_process(me, Command(command="arm", request=WindowRequest(steps=3, run_id="a")), 30)
        assert answer.armed is not None and answer.armed.accepted and answer.profiler == "one" and answer.pid == me
        wait(lambda: windows)
        assert windows[0].metadata["armed"]["trigger"] == "socket"
        assert [step.number for step in windows[0].steps] == list(range(answer.armed.first or 0, answer.armed.last + 1))  # type: ignore[operator]
        (answer,) = ask_process(me, Command(command="arm", request=WindowRequest(start_step=1, steps=3)), 30)
        assert answer.armed is not None and "is in the past" in answer.armed.reason
        (answer,) = ask_process(me, Command(command="extend", steps=3), 30)
        assert answer.armed is not None and answer.armed.reason == "no armed window runs"
        ask_process(me, Command(command="arm", request=WindowRequest(steps=1_000_000, run_id="b")), 30)
        wait(lambda: profiler.current_action.records)
        (answer,) = ask_process(me, Command(command="extend", steps=3), 30)
        assert answer.armed is not None and answer.armed.accepted
        (answer,) = ask_process(me, Command(command="abort", run_id="none"), 30)
        assert answer.windows == ()
        (answer,) = ask_process(me, Command(command="abort", run_id="b"), 30)
        assert [status.run_id for status in answer.windows] == ["b"]
        wait(lambda: len(windows) == 2)
        (answer,) = ask_process(me, Command(command="status"), 30)
        assert [status.state for status in answer.windows] == ["recorded", "aborted"]
        (answer,) = ask_process(me, Command(command="arm"), 30)
        assert answer.error == "arm lacks a request"
        (answer,) = ask_process(me, Command(command="status", version=9), 30)
        assert "version 9 of commands is not known here" in answer.error


def test_two_profilers_answer_over_one_socket(output_dir: Path) -> None:
    """And none does once they are closed; the socket is gone then."""
    with looping(output_dir / "a", Control(socket=True), name="a"):
        with looping(output_dir / "b", Control(socket=True), name="b"):
            assert sorted(answer.profiler for answer in ask_process(os.getpid(), Command(command="status"), 30)) == [
                "a",
                "b",
            ]
        assert [answer.profiler for answer in ask_process(os.getpid(), Command(command="status"), 30)] == ["a"]
        session = session_of(os.getpid())
        assert session is not None and (session / "socket").stat().st_mode & 0o777 == 0o600
        assert session.stat().st_mode & 0o777 == 0o700
    with (
        looping(output_dir / "c", Control(path=str(output_dir))),
        pytest.raises(ControlError, match="takes no commands"),
    ):
        ask_process(os.getpid(), Command(command="status"), 30)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b'{"command": "arm", "request": {"steps": 0}}\n',
        b'{"command": "kill"}\n',
        b"x" * 200_000,
    ],
)
def test_nonsense_over_the_socket(output_dir: Path, content: bytes) -> None:
    """It is answered with what is wrong, or not at all; the next command is obeyed."""
    with looping(output_dir, Control(socket=True)):
        session = session_of(os.getpid())
        assert session is not None
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            sock.connect(str(session / "socket"))
            assert peer_user(sock) == os.geteuid()
            with contextlib.suppress(ConnectionError):
                sock.sendall(content)
                sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                said = b"".join(iter(lambda: sock.recv(1 << 16), b""))
                assert not said or b"error" in said
        assert len(ask_process(os.getpid(), Command(command="status"), 30)) == 1


def test_nobody_listens(tmp_path: Path) -> None:
    """The message says what is missing."""
    with pytest.raises(ControlError, match="process 1 traces nothing here"):
        ask_process(1, Command(command="status"), 1)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen()
        with pytest.raises(ControlError, match="does not answer in 0.1 s"):
            ask_socket(tmp_path / "s", Command(command="status"), 0.1, "it")
    with pytest.raises(ControlError, match="it takes no commands"):
        ask_socket(tmp_path / "s", Command(command="status"), 1, "it")


PROGRAM = """
import sys, time
import stepscope
windows = []
control = stepscope.Control(socket=True)
with stepscope.trace(control=control, output_dir=sys.argv[1], on_trace_ready=windows.append, name="prog") as profiler:
    print("ready", flush=True)
    end = time.monotonic() + 90
    while not windows and time.monotonic() < end:
        with stepscope.span("work"):
            time.sleep(0.001)
        profiler.step()
print([len(window.steps) for window in windows])
"""


def test_the_command_line_and_a_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`stepscope arm --pid`: what it prints, and its exit codes."""
    with launched([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, stdout=-1, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        pid = str(process.pid)
        assert main(["arm", "--pid", pid, "--start", "0", "--steps", "2"]) == 1
        assert "refused: start_step 0 is in the past" in capsys.readouterr().out
        assert main(["arm", "--pid", pid, "--status"]) == 0
        assert f"prog (pid {pid}, step " in capsys.readouterr().out
        assert main(["arm", "--pid", pid, "--steps", "2", "--run-id", "x", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["armed"]["run_id"] == "x"
        assert process.communicate(timeout=60)[0] == "[2]\n"
    assert main(["arm", "--pid", pid, "--steps", "2"]) == 1
    assert "traces nothing here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--steps", "2"],
        ["--pid", "1"],
        ["--pid", "1", "--steps", "0"],
        ["--pid", "1", "--steps", "2", "--seconds", "1"],
        ["--pid", "1", "--start", "x", "--steps", "2"],
        ["--pid", "1", "--ranks", "3-1", "--steps", "2"],
        ["--pid", "1", "--extend"],
        ["--pid", "1", "--url", "http://x", "--steps", "1"],
        ["--pid", "1", "--abort", "--extend", "--steps", "1"],
        ["--url", "http://x", "--status", "--start", "x"],
        ["--url", "http://x", "--status", "--start", "5"],
        ["--url", "http://x", "--abort", "--steps", "5"],
        ["--url", "http://x", "--status", "--run-id", "a"],
        ["--url", "http://x", "--extend", "--steps", "5", "--queue"],
        ["--pid", "1", "--abort", "--ranks", "3"],
        ["--pid", "1", "--steps", "5", "--token-file", "x"],
        ["--list", "--steps", "5"],
        ["--list", "--status"],
        ["--list", "--job", "a"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It is said before anybody is asked; options that would be ignored are named."""
    with pytest.raises(SystemExit) as ended:
        main(["arm", *arguments])
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_who_can_be_asked_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And is named where another process was asked: of a launcher its children."""
    launcher = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"
    command = [sys.executable, "-c", launcher, PROGRAM, str(tmp_path)]
    with launched(command, cwd=ROOT, stdout=-1, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert main(["arm", "--list", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        (pid,) = [each["pid"] for each in found if parent_of(each["pid"]) == process.pid]
        assert main(["arm", "--list"]) == 0
        assert f"pid {pid}: prog, step " in capsys.readouterr().out
        assert main(["arm", "--pid", str(process.pid), "--steps", "2"]) == 1
        assert f"of its children these take commands: {pid}\n" in capsys.readouterr().err
        with stepscope.trace(output_dir=tmp_path, options=QUICK):
            assert main(["arm", "--pid", str(os.getpid()), "--steps", "2"]) == 1
            assert "needs trace(control=Control(socket=True)) or STEPSCOPE_OPTIONS; " in (
                said := capsys.readouterr().err
            )
            assert str(pid) in said
        assert main(["arm", "--pid", str(pid), "--steps", "2"]) == 0
        assert process.communicate(timeout=60)[0] == "[2]\n"


UNBOUND = """
import sys
import stepscope
options = stepscope.Options(journal=False, session_dir=sys.argv[1])
with stepscope.trace(control=stepscope.Control(socket=True), output_dir=sys.argv[1], options=options) as profiler:
    profiler.step()
print(*profiler.diagnostics(), sep="\\n")
"""


def test_a_socket_that_cannot_be_bound_is_in_the_diagnostics(tmp_path: Path) -> None:
    """Its path is too long; the loop goes on."""
    place = tmp_path / ("long" * 30)
    place.mkdir()
    ended = run_to_end([sys.executable, "-c", UNBOUND, str(place)], timeout=60, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert f"control: no commands are taken at {place}" in ended.stdout


# over the collector

RANK = """
import os, sys, time
import stepscope
from stepscope import CollectorExporter, Control
directory, url, rank, obeys = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1"
def ready(window):
    steps = [step.number for step in window.steps]
    armed = window.metadata["armed"]
    said = f"{armed['run_id']} {steps[0]} {steps[-1]} {armed.get('detail', '-')} {armed.get('note', '-')}\\n"
    open(f"{directory}/windows-{rank}", "a").write(said)
control = Control(collector=obeys, signal=True, poll=0.1)
with stepscope.trace(control=control, exporters=[CollectorExporter(url)], output_dir=directory + "/run", rank=rank,
                     on_trace_ready=ready, name="job", options=stepscope.Options(drain_interval=0.05)) as profiler:
    while not os.path.exists(directory + "/stop"):
        with stepscope.span("work"):
            time.sleep(0.002 + 0.0001 * rank)
        profiler.step()
"""


@contextlib.contextmanager
def ranks_at(
    url: str, directory: Path, count: int, *, obey: bool = True, world: int | None = None, deaf: int | None = None
) -> Generator[list[subprocess.Popen[Any]]]:
    """Ranks that stream to a collector.

    Args:
        url: the collector.
        directory: of what they write.
        count: how many.
        obey: whether they take commands.
        world: how many the job has; default: nobody says.
        deaf: one that takes none.
    """
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", RANK, str(directory), url]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if world is not None:
            environment["WORLD_SIZE"] = str(world)
        settings: dict[str, Any] = {"cwd": ROOT, "env": environment}
        yield [
            stack.enter_context(launched([*command, str(rank), str(int(obey and rank != deaf))], **settings))
            for rank in range(count)
        ]
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
@pytest.mark.timeout(200)
async def test_all_ranks_of_a_collector_record_the_same_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command; the answer of each rank is shown, and is what it recorded."""
    token = "t" * 20
    (tmp_path / "token").write_text(token)
    async with collecting(tmp_path / "collector", token=token) as running:
        os.environ["STEPSCOPE_TOKEN"] = token
        try:
            with ranks_at(running.url, tmp_path, 3):
                streams = running.collector.streams
                await poll(lambda: sum(one.connection is not None for one in streams.all.values()) == 3)
                assert (await order(running.url, steps=2))[0] == 401
                for number in range(3):
                    status, said = await order(running.url, token=token, steps=3, run_id=f"r{number}", overlap="queue")
                    assert (status, said["outcome"]) == (200, "done"), said
                    assert said["last"] == said["first"] + 2
                    line = f"r{number} {said['first']} {said['last']} - -\n"
                    for rank in range(3):
                        path = tmp_path / f"windows-{rank}"
                        await poll(partial(_has, path, line))
                status, said = await order(running.url, token=token, steps=1, ranks="0,2", run_id="some")
                assert status == 200 and [rank["rank"] for rank in said["ranks"]] == [0, 2]
                status, said = await order(running.url, token=token, start_step=1, steps=1)
                assert said["outcome"] == "refused" and "is past" in said["reason"]
                status, said = await order(running.url, token=token, ranks="0-4", steps=1)
                assert status == 404 and "not connected: ranks 3-4" in said["detail"]
                status, said = await order(running.url, token=token, steps=1, job="other")
                assert status == 404
                status, said = await order(running.url, token=token, steps=0)
                assert status == 400
                status, said = await order(running.url, token=token, start_step=5, stop_step=3)
                assert status == 400 and "before start_step 5" in said["detail"]
                url = running.url.replace("ws:", "http:")
                arguments = ["--url", url, "--token-file", str(tmp_path / "token")]
                code = await asyncio.to_thread(main, ["arm", *arguments, "--seconds", "0.1", "--ranks", "1"])
                shown = capsys.readouterr().out
                assert code == 0 and shown.startswith("done: steps ") and "rank 1 (pid " in shown
                code = await asyncio.to_thread(main, ["arm", *arguments, "--status"])
                assert code == 0 and capsys.readouterr().out.count("recorded 'r0'") == 3
                code = await asyncio.to_thread(main, ["arm", *arguments, "--extend", "--steps", "2"])
                assert code == 1
                code = await asyncio.to_thread(
                    main, ["arm", "--url", url, "--token-file", str(tmp_path), "--steps", "1"]
                )
                assert code == 1
        finally:
            del os.environ["STEPSCOPE_TOKEN"]
    audit = [json.loads(line) for line in (tmp_path / "collector" / "audit.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in audit if line["action"] == "ordered arm"][:3] == ["done"] * 3
    assert any(line["action"] == "order status" and line["client"] == "127.0.0.1" for line in audit)
    assert token not in (tmp_path / "collector" / "audit.jsonl").read_text()


def _lines(directory: Path, ranks: int, run: str) -> list[str]:
    """What the ranks say of one window, those that have recorded it."""
    paths = [directory / f"windows-{rank}" for rank in range(ranks)]
    lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
    return [line for line in lines if line.startswith(f"{run} ")]


async def _all_record(url: str) -> None:
    """Looks until the windows of all that can be asked run."""
    while True:
        _, told = await order(url, command="status")
        if {window["state"] for rank in told["ranks"] for window in rank["windows"]} == {"running"}:
            return


@pytest.mark.checklist("A34", "F5", "F10")
@pytest.mark.timeout(200)
async def test_all_ranks_of_a_collector_end_with_the_same_step(tmp_path: Path) -> None:
    """One order extends or aborts what runs, on all ranks alike; the detail of a window is that of the order."""
    async with collecting(tmp_path / "collector") as running:
        with ranks_at(running.url, tmp_path, 3):
            streams = running.collector.streams
            await poll(lambda: sum(one.connection is not None for one in streams.all.values()) == 3)
            status, said = await order(running.url, command="extend")
            assert status == 400 and "takes steps or seconds" in said["detail"]
            status, said = await order(running.url, command="extend", steps=3)
            assert (said["outcome"], said["reason"]) == ("refused", "no armed window runs")
            status, said = await order(running.url, command="abort")
            assert (said["outcome"], said["reason"]) == ("done", "no armed window runs or waits")
            status, said = await order(running.url, steps=1, detail="stacks")
            assert said["outcome"] == "refused" and "PythonStacksBackend()" in said["ranks"][0]["text"]
            status, said = await order(running.url, steps=1, detail="stack")
            assert status == 400 and "did you mean 'stacks'?" in said["detail"]

            status, said = await order(running.url, steps=1_000_000, run_id="long", granularity=4, detail="every=2")
            assert said["outcome"] == "done", said
            first, last = said["first"], said["last"]
            await _all_record(running.url)
            status, said = await order(running.url, command="extend", steps=5)
            assert (said["outcome"], said["first"], said["last"]) == ("done", first, last + 8), said
            status, said = await order(running.url, command="abort", run_id="other")
            assert said["reason"] == "no armed window runs or waits"
            status, said = await order(running.url, command="abort", run_id="long")
            assert (said["outcome"], said["first"]) == ("done", first), said
            end = said["last"]
            await poll(lambda: len(_lines(tmp_path, 3, "long")) == 3)
            aborted = f"aborted after step {end}: an operator of the collector"
            assert set(_lines(tmp_path, 3, "long")) == {
                f"long {first} {end} every=2 extended to step {last + 8}; {aborted}"
            }
    audit = [json.loads(line) for line in (tmp_path / "collector" / "audit.jsonl").read_text().splitlines()]
    ordered = [(line["action"], line["outcome"]) for line in audit if line["action"].startswith("ordered ")]
    assert [each for each in ordered if each[0] != "ordered status"] == [
        ("ordered extend", "refused"),
        ("ordered extend", "refused"),
        ("ordered abort", "done"),
        ("ordered arm", "refused"),
        ("ordered arm", "refused"),
        ("ordered arm", "done"),
        ("ordered extend", "done"),
        ("ordered abort", "done"),
        ("ordered abort", "done"),
    ]
    assert len([line for line in audit if line["action"].startswith("order ")]) == len(ordered)


@pytest.mark.timeout(200)
async def test_ranks_that_cannot_be_asked_are_named(tmp_path: Path) -> None:
    """One of four is not connected and one takes no commands: a window of all is refused, one of the others is recorded; an
    end is carried out where it can be, and is `partly`."""
    async with collecting(tmp_path / "collector") as running:
        with ranks_at(running.url, tmp_path, 3, world=4, deaf=1):
            streams = running.collector.streams
            await poll(lambda: sum(one.connection is not None for one in streams.all.values()) == 3)
            lacking = "not connected: rank 3; without trace(control=Control(collector=True)): rank 1"
            status, said = await order(running.url, steps=2, run_id="all")
            assert (status, said["outcome"]) == (200, "refused"), said
            assert said["reason"] == (
                f"not all ranks of the job can be asked, so none records; {lacking}; for the others: ranks 0,2"
            )
            assert [(rank["rank"], rank["obeys"]) for rank in said["ranks"]] == [(0, False), (2, False)]
            for ranks, named in (("0-1", "Control(collector=True)): rank 1"), ("2-3", "not connected: rank 3")):
                status, said = await order(running.url, steps=2, ranks=ranks)
                assert status == 404 and said["detail"].endswith(named), said
            status, said = await order(running.url, steps=1_000_000, ranks="0,2", run_id="others")
            assert said["outcome"] == "done", said
            await _all_record(running.url)
            status, said = await order(running.url, command="abort")
            assert (said["outcome"], said["reason"]) == ("partly", lacking), said
            await poll(lambda: len(_lines(tmp_path, 3, "others")) == 2)
    assert _lines(tmp_path, 3, "all") == []


@pytest.mark.timeout(200)
async def test_windows_of_several_ranks_wait_for_others(tmp_path: Path) -> None:
    """With `queue` later steps are found, with fixed steps as with the next ones; behind one that ends by the clock none can
    be, and that is said."""
    async with collecting(tmp_path / "collector") as running:
        with ranks_at(running.url, tmp_path, 2):
            streams = running.collector.streams
            await poll(lambda: sum(one.connection is not None for one in streams.all.values()) == 2)
            _, said = await order(running.url, steps=10_000, run_id="long")
            assert said["outcome"] == "done", said
            last = said["last"]
            await _all_record(running.url)
            _, said = await order(running.url, steps=2, run_id="refused")
            assert said["outcome"] == "refused" and "ask with overlap='queue'" in said["ranks"][0]["text"], said
            _, said = await order(running.url, steps=2, run_id="waits", overlap="queue")
            assert (said["outcome"], said["first"], said["last"]) == ("done", last + 1, last + 2), said
            _, said = await order(
                running.url, start_step=last - 1, steps=2, granularity=4, run_id="fixed", overlap="queue"
            )
            first = -(-(last + 3) // 4) * 4
            assert said["outcome"] == "done" and said["first"] == first, said
            await order(running.url, command="abort")
            _, said = await order(running.url, seconds=3600, run_id="timed")
            assert said["outcome"] == "done", said
            _, said = await order(running.url, steps=2, overlap="queue")
            assert said["outcome"] == "refused", said
            assert said["ranks"][0]["text"].endswith("ask again when it is over"), said


async def test_processes_that_do_not_want_orders_get_none(tmp_path: Path) -> None:
    """Without Control(collector=True) nothing can be asked of them, and the answer says what to do."""
    async with collecting(tmp_path / "collector") as running:
        with ranks_at(running.url, tmp_path, 1, obey=False):
            streams = running.collector.streams
            await poll(lambda: sum(one.connection is not None for one in streams.all.values()) == 1)
            status, said = await order(running.url, steps=2)
            assert status == 404 and "Control(collector=True)" in said["detail"]


def test_old_and_new_peers_understand_each_other() -> None:
    """What is new stands at the end of a message, where those who do not know it pass over it."""

    class OldHello(msgspec.Struct, frozen=True, tag=1, array_like=True):
        stream: str
        sync: bytes
        oldest: int
        run: Any
        supersedes: str = ""

    message = hello()
    new = protocol.decode(message)[0]
    assert isinstance(new, protocol.Hello) and new.control == 0
    packed = msgspec.msgpack.encode(msgspec.structs.replace(new, control=1))
    old = msgspec.msgpack.decode(packed, type=OldHello)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=protocol.Hello) == new
    with pytest.raises(Exception, match="too large|length"):
        protocol.decode(protocol.encode(protocol.Order(1, b"x" * (protocol.MAX_ORDER + 1))))


def test_silence_means_no() -> None:
    """A window that was proposed and not decided on is not recorded, and who decides too late is told."""
    gate = RemoteGate()
    assert gate(7) == "nothing was decided by step 7, when it was to begin"
    assert gate.committed is False
    gate = RemoteGate()
    gate.committed = True
    assert gate(7) == ""
    gate = RemoteGate()
    gate.committed, gate.reason = False, "rank 3 cannot"
    assert gate(7) == "rank 3 cannot"


async def test_an_end_that_is_proposed_and_decided(output_dir: Path) -> None:
    """It is so if that is decided in time; silence, and a decision against it, leave the window as it is."""
    windows: list[Any] = []
    with stepscope.trace(
        control=Control(collector=True), output_dir=output_dir, options=QUICK, on_trace_ready=windows.append
    ) as profiler:
        assert profiler.control is not None
        obey = profiler.control.from_collector
        assert obey is not None

        async def ask(**fields: Any) -> Any:
            return await asyncio.wrap_future(obey(Command(**fields)))

        def steps(count: int) -> None:
            for _ in range(count):
                with stepscope.span("work"):
                    pass
                profiler.step()

        assert "lacks" in (await ask(command="propose", proposal="nothing")).error
        profiler.arm(WindowRequest(start_step=2, stop_step=5, run_id="w"))
        steps(3)
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
        assert late.error == "nothing was decided by step 6, when it was to begin"
        assert "too late" in (await ask(command="propose", proposal="late", end=silent)).armed.reason
        steps(5)
    assert [[step.number for step in window.steps] for window in windows] == [[2, 3, 4, 5, 6, 7]]
    assert windows[0].complete


async def test_proposals_and_decisions(output_dir: Path) -> None:
    """A proposal is recorded if it is decided so in time, and not otherwise."""
    windows: list[Any] = []
    with stepscope.trace(
        control=Control(collector=True), output_dir=output_dir, options=QUICK, on_trace_ready=windows.append, rank=1
    ) as profiler:
        assert profiler.control is not None
        obey = profiler.control.from_collector
        assert obey is not None

        async def ask(**fields: Any) -> Any:
            return await asyncio.wrap_future(obey(Command(**fields)))

        def steps(count: int) -> None:
            for _ in range(count):
                with stepscope.span("work"):
                    pass
                profiler.step()

        for number, (proposal, committed) in enumerate([("yes", True), ("no", False), ("silence", None)]):
            request = WindowRequest(start_step=10 * number + 5, steps=2, run_id=proposal)
            answer = await ask(command="propose", proposal=proposal, request=request)
            assert answer.armed.accepted and answer.rank == 1
            if committed is not None:
                assert (await ask(command="decide", proposal=proposal, committed=committed)).error == ""
            steps(10)
        late = await ask(command="decide", proposal="silence", committed=True)
        assert late.error == "nothing was decided by step 25, when it was to begin"
        assert "nothing of that name" in (await ask(command="decide", proposal="yes", committed=True)).error
    assert [window.metadata["armed"]["run_id"] for window in windows] == ["yes"]
    assert [status.state for status in profiler.armed()] == ["recorded", "withdrawn", "withdrawn"]
