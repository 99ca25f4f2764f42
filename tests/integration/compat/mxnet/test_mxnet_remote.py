"""`profile_process="server"`: recording is switched in other processes, over their sockets and over a collector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepscope import mxnet
from stepscope.cli.main import main
from tests.support.collectors import Process, free_port
from tests.support.messages import check_messages, refused
from tests.support.mxnets import load as load_trace
from tests.support.mxnets import slices

SERVER = """
import sys, threading, time
import stepscope
from stepscope import mxnet
exporters = [stepscope.CollectorExporter(sys.argv[2])] if sys.argv[2:] else []
control = stepscope.Control(socket=not exporters, collector=bool(exporters))
mxnet.set_config(filename=sys.argv[1], profile_memory=False, control=control, exporters=exporters)
mxnet.set_state("run")
print("ready", flush=True)
words = []
def listen():
    for line in sys.stdin:
        words.append(line.strip())
threading.Thread(target=listen, daemon=True).start()
read = 0
while "end" not in words:
    mxnet.step()
    if len(words) > read:
        read = len(words)
        for _ in range(3):
            with mxnet.Event(words[-1]):
                pass
            mxnet.step()
        print(words[-1], flush=True)
    time.sleep(0.001)
mxnet.dump()
mxnet.close()
"""


class Server:
    """A program whose loop makes events with the name that it got last."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def name_step(self, word: str) -> None:
        """Has a step of that name be over."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{word}\n"

    def end(self) -> None:
        """Ends it well."""
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@contextmanager
def server(*arguments: str, **environment: str) -> Generator[Server]:
    """A server that is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield Server(process)
        finally:
            process.kill()


def recorded(name: str, event: str) -> bool:
    """Whether an event is in a file that is being written."""
    try:
        return bool(slices(load_trace(name), event))
    except (FileNotFoundError, json.JSONDecodeError):  # it is not there yet, or a piece is being written
        return False


@pytest.mark.checklist("E14")
def test_processes_of_this_host(caplog: pytest.LogCaptureFixture) -> None:
    """Two servers record while the state is `run`, but in a pause; nothing is recorded here."""
    with server("a.json") as a, server("b.json") as b:
        mxnet.set_kvstore_handle(mxnet.RemoteProcesses(a.pid, b.pid))
        mxnet.set_config(profile_process="server", filename="elsewhere.json")
        check_messages(caplog.records, "filename")

        def pause() -> None:
            mxnet.pause("server")
            mxnet.pause("server")
            mxnet.resume("server")

        acts: dict[str, Callable[[], None]] = {
            "before": lambda: None,
            "first": lambda: mxnet.set_state("run", profile_process="server"),
            "pause": pause,
            "second": lambda: mxnet.resume("server"),
            "after": lambda: mxnet.dump(True, "server"),
        }
        for word, act in acts.items():
            act()
            for one in (a, b):
                one.name_step(f"{word} begins")  # a request is carried out at a step
                one.name_step(word)
        mxnet.set_state("stop", profile_process="server")
        a.end()
        b.end()
    for name in ("a.json", "b.json"):
        events = load_trace(name)
        assert [bool(slices(events, word)) for word in acts] == [False, True, False, True, False]
    assert not Path("elsewhere.json").exists() and mxnet.current_profiler() is None


@pytest.mark.checklist("E14")
def test_processes_that_cannot_be_reached_are_named() -> None:
    """A process that traces nothing, and none at all."""
    mxnet.set_kvstore_handle(mxnet.RemoteProcesses(os.getpid()))
    with refused(mxnet.MXNetError, f"process {os.getpid()} "):
        mxnet.set_state("run", "server")
    mxnet.set_state("stop", "server")
    with refused(mxnet.MXNetValueError, "RemoteProcesses()"):
        mxnet.RemoteProcesses()
    mxnet.set_kvstore_handle(mxnet.RemoteCollector(f"ws://127.0.0.1:{free_port()}", timeout=5))
    with refused(mxnet.MXNetError, "stepscope arm", "ws://127.0.0.1:"):
        mxnet.set_state("run", "server")


@pytest.mark.checklist("E14")
def test_all_ranks_of_a_collector(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command reaches them, and they record the same steps."""
    port = free_port()
    url = f"ws://127.0.0.1:{port}"
    collector = Process(here / "collected", port).wait()
    try:
        with (
            server("c.json", url, RANK="0", WORLD_SIZE="2") as one,
            server("d.json", url, RANK="1", WORLD_SIZE="2") as two,
        ):
            ranks = {"c_rank0.json": one, "d_rank1.json": two}
            mxnet.set_kvstore_handle(mxnet.RemoteCollector(url, options=("--name", "mxnet")))
            for rank in ranks.values():
                rank.name_step("before")
            mxnet.set_state("run", profile_process="server")
            ending = time.monotonic() + 60
            while not all(recorded(name, "first") for name in ranks) and time.monotonic() < ending:
                for rank in ranks.values():
                    rank.name_step("first")  # the step that the ranks agree on is a little ahead
            mxnet.set_state("stop", profile_process="server")
            windows: list[dict[str, Any]] = []
            while {window["state"] for window in windows} != {"aborted"} and time.monotonic() < ending:
                assert main(["arm", "--url", url, "--status", "--json"]) == 0
                answer = json.loads(capsys.readouterr().out)
                windows = [window for rank in answer["ranks"] for window in rank["windows"]]
            assert len(windows) == 2 and len({(window["first"], window["last"]) for window in windows}) == 1, windows
            for rank in ranks.values():
                rank.name_step("after begins")
                rank.name_step("after")
                rank.end()
    finally:
        collector.end()
    for name in ranks:
        events = load_trace(name)
        assert [bool(slices(events, word)) for word in ("before", "first", "after")] == [False, True, False]
