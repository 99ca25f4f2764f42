"""The environment of a recording of `stepscope.mxnet`: other processes, other tools, memory, variables, former names."""

from __future__ import annotations

import csv
import json
import mmap
import os
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope import mxnet
from tests.support import nvml, nvtx_receiver
from tests.support.arming import SOCKET, arm_here, set_options_in_environment
from tests.support.basics import require
from tests.support.launch import run_to_end
from tests.support.messages import check_messages, refused
from tests.support.mxnets import begin, load, run, slices, statistics


class Server:
    """A remote control that keeps what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def configure(self, settings: Mapping[str, Any]) -> None:
        self.asked.append(dict(settings))

    def set_state(self, state: str) -> None:
        self.asked.append(state)

    def pause(self) -> None:
        self.asked.append("pause")

    def resume(self) -> None:
        self.asked.append("resume")

    def dump(self, finished: bool) -> None:
        self.asked.append(("dump", finished))


@pytest.mark.checklist("E14")
def test_the_server_is_reached_by_a_remote_control() -> None:
    """Every call is passed on, and changes nothing here; without a remote control it is an error that says what to do."""
    calls: list[Any] = [
        lambda: mxnet.set_config(profile_process="server", filename="server.json", aggregate_stats=True),
        lambda: mxnet.set_state("run", profile_process="server"),
        lambda: mxnet.pause(profile_process="server"),
        lambda: mxnet.resume(profile_process="server"),
        lambda: mxnet.dump(False, profile_process="server"),
        lambda: mxnet.set_state("stop", "server"),
    ]
    for handle, kind in ((None, "none"), (3, "int"), (Server, "type")):
        mxnet.set_kvstore_handle(handle)
        for call in calls:
            with refused(mxnet.MXNetError, kind, "set_kvstore_handle()"):
                call()
    server = Server()
    mxnet.set_kvstore_handle(server)
    for call in calls:
        call()
    assert server.asked == [
        {"filename": "server.json", "aggregate_stats": True}, "run", "pause", "resume", ("dump", False), "stop",
    ]  # fmt: skip
    assert mxnet.current_profiler() is None
    with refused(mxnet.MXNetValueError, "profile_process", "'worker'", "'server'", "both"):
        mxnet.pause("both")
    with refused(mxnet.MXNetValueError, "profile_process", "srver", "'server'?"):
        mxnet.set_state("run", "srver")


@pytest.mark.checklist("E15")
def test_former_names(here: Path) -> None:
    """They work, and warn."""
    with pytest.warns(UserWarning) as caught:
        mxnet.profiler_set_config("all", "old.json")
    check_messages(caught, "profiler_set_config()", "set_config()")
    with pytest.warns(UserWarning) as caught:
        mxnet.profiler_set_state("run")
    check_messages(caught, "profiler_set_state()", "set_state()")
    with mxnet.Event("old"):
        pass
    with pytest.warns(UserWarning) as caught:
        mxnet.dump_profile()
    check_messages(caught, "dump_profile()", "dump()")
    assert slices(load("old.json"), "old")
    with pytest.warns(UserWarning), refused(mxnet.MXNetValueError, "mode", "symbolik", "'symbolic'?"):
        mxnet.profiler_set_config("symbolik")


@pytest.mark.checklist("E16", "E13")
def test_the_table_of_allocations(here: Path) -> None:
    """torch's allocations, each with its scope, in MXNet's columns."""
    torch = require("torch")
    begin(
        gpu_memory_profile_filename_prefix="memory",
        backends=[stepscope.TorchBackend(profile_memory=True)],
    )

    def allocate(count: int) -> Any:
        time.sleep(0.05)  # times of torch's profiler are mapped to ours, with an error
        made = torch.zeros(count)
        time.sleep(0.05)
        return made

    with mxnet.scope("net"):
        with mxnet.scope("layer"):
            kept = allocate(1 << 16)
        other = allocate(1 << 14)
    last = allocate(1 << 12)
    assert len(kept) + len(other) + len(last)
    mxnet.dump()
    with (here / f"memory-pid_{os.getpid()}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["Attribute Name", "Requested Size", "Device", "Actual Size", "Reuse?"]
    found = {int(row["Requested Size"]): (row["Attribute Name"], row["Device"]) for row in rows}
    assert found[4 << 16] == ("net:layer:", "cpu/0")
    assert found[4 << 14] == ("net:", "cpu/0")
    assert found[4 << 12] == ("<unk>:", "cpu/0")


@pytest.mark.checklist("E17", "B6")
def test_it_starts_by_the_environment(here: Path) -> None:
    """As MXNet does; the file is complete when the program ends. The mode says what is asked for."""
    program = (
        "import sys\nfrom stepscope import mxnet\nwith mxnet.Event('auto'): pass\nprint(mxnet.capabilities()[-1].recorded)\n"
        "assert not {'mxnet', 'torch', 'mindspore'} & set(sys.modules)"
    )
    for mode, memory in (("8", "True\n"), ("5", "False\n")):
        assert run(program, here, MXNET_PROFILER_AUTOSTART="1", MXNET_PROFILER_MODE=mode) == memory
        assert slices(load("profile.json"), "auto")
        Path("profile.json").unlink()


@pytest.mark.parametrize(
    ("variables", "message", "recorded"),
    [
        ({"AUTOSTART": "0"}, "", False),
        ({"AUTOSTART": "yes"}, "AUTOSTART must be True or False, got str: 'yes'; 0 is taken", False),
        ({"AUTOSTART": "2"}, "AUTOSTART must be True or False, got str: '2'; 0 is taken", False),
        ({"AUTOSTART": "true"}, "", True),
        ({"AUTOSTART": "1", "MODE": ""}, "", True),
        (
            {"AUTOSTART": "1", "MODE": "abc"},
            "MODE must be a whole number, got str: 'abc'; 13 is taken",
            True,
        ),
        ({"AUTOSTART": "1", "MODE": "16"}, "MODE must be a whole number <= 15, got str: '16'; 13 is taken", True),
        ({"AUTOSTART": "1", "MODE": "-1"}, "MODE must be a whole number >= 0, got str: '-1'; 13 is taken", True),
    ],
)
def test_a_variable_that_cannot_be_followed(
    here: Path, variables: Mapping[str, str], message: str, recorded: bool
) -> None:
    """It is named with its value, and the program goes on."""
    program = "from stepscope import mxnet\nwith mxnet.Event('auto'): pass\nprint('went on')"
    environment = {f"MXNET_PROFILER_{name}": value for name, value in variables.items()}
    ended = run(program, here, errors=True, **environment)
    assert ended.partition("went on\n")[1] and ended.count("MXNET_PROFILER_") == bool(message)
    assert f"MXNET_PROFILER_{message}" in ended if message else True
    assert Path("profile.json").exists() is recorded


class Tool:
    """Another tool, which stores each call."""

    def __init__(self, fails: bool = False) -> None:
        self.calls: list[Any] = []
        self.fails = fails

    def start(self, name: str, category: str) -> object:
        if self.fails:
            raise ValueError("no tool")
        self.calls.append((name, category))
        return name

    def stop(self, started: Any) -> None:
        self.calls.append(started)

    def mark(self, name: str, category: str) -> None:
        self.calls.append((name, category))


@pytest.mark.checklist("E18")
def test_objects_are_forwarded() -> None:
    """To the named tool; one that fails gets no more calls, and disturbs nothing else."""
    tool = Tool()
    begin(forward=tool)
    domain = mxnet.Domain("d")
    with domain.new_task("task"):
        domain.new_marker("mark").mark()
    assert tool.calls == [("task", "d"), ("mark", "d,instant_marker"), "task"]
    mxnet.set_config(forward=Tool(fails=True), aggregate_stats=True, profile_memory=False)
    with domain.new_task("task"), domain.new_task("task"):
        pass
    assert statistics()["Time"]["d"]["task"]["Count"] == 3


FORWARDED = """
import threading
from stepscope import mxnet
mxnet.set_config(aggregate_stats=True, profile_memory=False, forward=mxnet.NvtxForward())
mxnet.set_state("run")
domain = mxnet.Domain("d")
with mxnet.Event("event"), domain.new_task("task"):
    domain.new_marker("mark").mark()
shared = domain.new_frame("frame")
shared.start()
other = threading.Thread(target=lambda: (shared.start(), shared.stop()))
other.start(); other.join()
shared.stop()
mxnet.set_state("stop")
shared.start(); shared.stop()
print(mxnet.dumps(format="json").count('"task"'))
"""


@pytest.mark.checklist("E18")
def test_objects_are_forwarded_to_nvtx(here: Path) -> None:
    """By NVIDIA's own package to a receiver that it loads: names, domains, and each end with the range of its own begin."""
    require("nvtx")
    environment = nvtx_receiver.build(here)
    path, log = environment["NVTX_INJECTION64_PATH"], environment["TEST_NVTX_LOG"]
    assert run(FORWARDED, here, NVTX_INJECTION64_PATH=path, TEST_NVTX_LOG=log) == "1\n"
    calls = nvtx_receiver.calls(environment)
    starts = {call.range: (call.domain, call.message) for call in calls if call.what == "start"}
    assert list(starts.values())[:4] == [("event", "event"), ("d", "task"), ("d,frame", "frame"), ("d,frame", "frame")]
    assert [(call.domain, call.message) for call in calls if call.what == "mark"] == [("d,instant_marker", "mark")]
    ends = [call.range for call in calls if call.what == "end"]
    first, second, outer, inner = list(starts)[:4]
    assert ends[:4] == [second, first, inner, outer]


DEVICES = """
import json, time
from stepscope import mxnet
mxnet.set_config(aggregate_stats=True, gpu_memory_profile_filename_prefix="memory")
mxnet.set_state("run")
ending = time.monotonic() + 60
found = {}
while len(found) < 3 and time.monotonic() < ending:
    time.sleep(0.02)
    found = json.loads(mxnet.dumps(format="json"))["Memory"].get("Device Storage", {})
mxnet.dump()
print(json.dumps({name: row["Min"] for name, row in found.items()}))
"""


@pytest.mark.checklist("E16", "E19")
def test_memory_of_devices(here: Path) -> None:
    """Without torch each device's memory in use is a counter, by NVIDIA's driver, and the table has what no allocation explains."""
    nvml.build(here)
    found = json.loads(run(DEVICES, here, LD_LIBRARY_PATH=str(here)))
    assert set(found) == {"Memory: cpu/0", "Memory: gpu/0", "Memory: gpu/1"}
    ten = 10 << 30
    for number in (0, 1):
        assert found[f"Memory: gpu/{number}"] == pytest.approx(ten / 1000, rel=1e-4)
    (path,) = here.glob("memory-pid_*.csv")
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["Attribute Name"] == "nvml_amend"]
    assert [row["Device"] for row in rows] == ["gpu/0", "gpu/1"]
    assert all(ten < int(row["Actual Size"]) == int(row["Requested Size"]) < ten + (1 << 20) for row in rows)


@pytest.mark.checklist("E19")
def test_memory_is_a_counter() -> None:
    """Of the process, from the begin on; it is in kB in the statistics, and in bytes in the trace."""
    mxnet.set_config(aggregate_stats=True)
    mxnet.set_state("run")
    ending = time.monotonic() + 60
    while "Device Storage" not in statistics()["Memory"] and time.monotonic() < ending:
        time.sleep(0.01)
    grown = 64 << 20
    with mmap.mmap(-1, grown) as block:  # pages that no allocator has already
        row: dict[str, float] = {"Min": 0, "Max": 0}
        while row["Max"] - row["Min"] < grown * 0.9 / 1000 and time.monotonic() < ending:
            block.seek(0)
            for _ in range(64):  # again and again: the system may have removed some, also of the rest of the process
                block.write(b"x" * (grown // 64))
            time.sleep(0.01)
            row = statistics()["Memory"]["Device Storage"]["Memory: cpu/0"]
    assert row["Count"] >= 2 and row["Max"] - row["Min"] >= grown * 0.9 / 1000
    assert row["Min"] < row["Avg"] < row["Max"]
    assert statistics()["Unit"] == {"Time": "ms", "Memory": "kB"}
    mxnet.dump()
    values = [event["args"][event["name"]] for event in load("profile.json") if event["name"] == "Memory: cpu/0"]
    assert len(values) >= row["Count"] and max(values) >= 1000 * row["Max"] * 0.999


def test_kinds_of_events_without_a_source_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Once, at the begin: as a warning if it was asked for by name; and in the trace."""
    mxnet.set_config(profile_imperative=True)
    mxnet.set_state("run")
    mxnet.set_state("stop")
    mxnet.set_state("run")
    (record,) = [record for record in caplog.records if "imperative" in record.message]
    assert record.levelname == "WARNING"
    assert (
        "no operators or API calls (symbolic, imperative, api): MXNet is not installed; for torch's" in record.message
    )
    assert record.message.endswith("set_config(backends=[stepscope.TorchBackend()])")
    mxnet.close()
    (run_event,) = [event for event in load("profile.json") if event["name"] == "stepscope"]
    kinds = {one["kind"]: one["recorded"] for one in run_event["args"]["metadata"]["capabilities"]}
    assert kinds == {"objects": True, "symbolic": False, "imperative": False, "api": False, "memory": True}
    caplog.clear()
    mxnet.set_config()
    mxnet.set_state("run")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_operators_come_from_backends() -> None:
    """With torch's, `dumps` has the operators of torch, and the trace each of them once."""
    torch = require("torch")
    begin(backends=[stepscope.TorchBackend()])
    assert {one.kind: one.recorded for one in mxnet.capabilities()}["imperative"]
    total = torch.ones(4) + torch.ones(4)
    assert float(total.sum()) == 8
    mxnet.dump()
    assert "aten::add" in mxnet.dumps()
    assert len(slices(load("profile.json"), "aten::add")) == 1


def train(steps: int, order_at: int | None = None) -> None:
    """Steps with a task in each, in one of which an operator asks for the next two."""
    mxnet.set_state("run")
    for number in range(steps):
        if number == order_at:
            assert arm_here(2)
        with mxnet.Task(mxnet.Domain("loop"), f"task {number}"):
            pass
        mxnet.step()
    mxnet.dump()


def tasks(path: Path) -> list[str]:
    """The tasks in a file."""
    return [event["name"] for event in load(path) if event["name"].startswith("task ") and event["ph"] in ("X", "b")]


@pytest.mark.checklist("B6")
def test_the_environment_has_steps_recorded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the program's schedule; each recording of the process has a directory of its own where it says."""
    set_options_in_environment(monkeypatch, window={"start_step": 2, "steps": 2}, output_dir=str(here / "said"))
    for name, place in (("one.json", here / "said"), ("two.json", here / "said" / "mxnet-2")):
        mxnet.set_config(filename=name, output_dir=str(here / "programs"))
        train(6)
        assert tasks(here / name) == ["task 2", "task 3"]
        assert (place / "journal").is_file()
    assert not (here / "programs").exists()


def test_an_operator_has_steps_recorded(here: Path) -> None:
    """Those that were asked for, and without a schedule no others."""
    mxnet.set_config(filename="profile.json", control=SOCKET)
    train(7, order_at=3)
    assert tasks(here / "profile.json") == ["task 4", "task 5"]


QUIET = """
import os, sys, threading, time
from pathlib import Path
from stepscope import mxnet
from stepscope.runtime.loop import drain_loop
from stepscope.runtime.threads import signals

drain_loop.IDLE_S, signals.CHECK_INTERVAL_S = 0.2, 0.1

def switches():
    counts = {}
    for status in Path("/proc/self/task").glob("[0-9]*/status"):
        if status.parent.name != str(threading.get_native_id()):
            fields = dict(line.split(":\\t", 1) for line in status.read_text().splitlines() if ":\\t" in line)
            counts[status.parent.name] = int(fields["voluntary_ctxt_switches"])
    return counts

def wait_until_quiet():
    before = switches()
    while True:
        time.sleep(0.5)  # longer than both
        if (after := switches()) == before:
            return
        before = after

def task(name):
    with mxnet.Task(mxnet.Domain("d"), name):
        pass

mxnet.set_config(filename="profile.json", profile_memory=False)
mxnet.set_state("run")
task("first")
if sys.argv[1] == "paused":
    mxnet.pause()
else:
    mxnet.set_state("stop")
wait_until_quiet()
"""


@pytest.mark.parametrize("state", ["paused", "stopped"])
def test_nothing_wakes_while_nothing_records(state: str, here: Path) -> None:
    """In a pause and when stopped, no thread wakes. The recorded events are in the file when the process is killed then."""
    program = QUIET + "\nos.kill(os.getpid(), 9)\n"
    assert run_to_end([sys.executable, "-c", program, state], cwd=here).returncode == -9
    assert len(slices(load("profile.json"), "first")) == 1


def test_recording_goes_on_after_a_quiet_pause(here: Path) -> None:
    """The loop that slept in a pause drains again after `resume()`, and a signal of that time ends the process in order."""
    program = QUIET + textwrap.dedent("""
        mxnet.resume()
        task("second")
        while "second" not in Path("profile.json").read_text():
            time.sleep(0.01)
        mxnet.pause()
        wait_until_quiet()
        os.kill(os.getpid(), 15)
        time.sleep(100)
    """)
    assert run_to_end([sys.executable, "-c", program, "paused"], cwd=here).returncode == -15
    events = load("profile.json")
    assert len(slices(events, "first")) == len(slices(events, "second")) == 1
