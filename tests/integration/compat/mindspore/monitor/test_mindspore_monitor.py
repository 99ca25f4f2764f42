"""`DynamicProfilerMonitor`: real files, real loops, and what goes wrong with them."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.compat.mindspore.analysis.background import analysis_thread
from stepscope.compat.mindspore.monitor.dynamic_args import DEFAULT_FILE
from stepscope.compat.mindspore.options.options import read_options
from stepscope.compat.mindspore.output_layout import RAW
from stepscope.mindspore import DynamicProfilerArgs, DynamicProfilerMonitor, Profiler
from tests.support import mindspore_output as output
from tests.support.basics import ROOT, children, missing
from tests.support.launch import launched
from tests.support.messages import check_messages, refused
from tests.support.monitors import Context, Job, has_answered, wait


@pytest.mark.checklist("A15", "A18", "B18")
def test_the_default_file(job: Job) -> None:
    """It is there from the beginning, with the 21 fields of MindSpore 2.10, which ask for nothing; one that exists is never touched."""
    monitor = job.monitor()
    fields = json.loads(job.config.read_text())
    assert len(fields) == 21 and (fields["aic_metrics"], fields["prof_path"]) == ("AiCoreNone", "./")
    made = DynamicProfilerArgs.from_json(job.config.read_bytes())
    assert made.diagnostics == () and made.analyse_mode is None
    assert {name: made.vars[name] for name in DynamicProfilerArgs().vars} == DynamicProfilerArgs().vars
    assert read_options(made.args, "file") == read_options(DynamicProfilerArgs().args, "file")
    assert job.config.read_text().startswith('{\n    "start_step": -1,')
    assert monitor.config_path == job.config.resolve()
    job.write(start_step=2, stop_step=3)
    before = job.config.read_bytes()
    assert job.monitor().config == DynamicProfilerArgs.from_json(before)
    assert job.config.read_bytes() == before


@pytest.mark.checklist("A18", "A19")
def test_other_ranks_make_no_file(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rank 0 does; the others see it when it comes, and write under their own number."""
    monkeypatch.setenv("RANK_ID", "3")
    monitor = job.monitor()
    assert not job.config.exists()
    assert monitor.config is None
    job.change(start_step=1, stop_step=1)
    job.callbacks(monitor, 2)
    assert list(job.windows()) == ["rank3_start1_stop1"]


@pytest.mark.checklist("A15", "A16", "A17")
def test_arguments(job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value raises where there is no default; otherwise the default is used, and a message says so."""
    monkeypatch.chdir(job.path)
    make: Any = DynamicProfilerMonitor
    for wrong in (None, 3, b"x"):
        with refused(TypeError, "cfg_path"):
            make(wrong)
    job.monitors.append(make(str(job.path / "cfg"), 7, "often", poll_intervall=1))
    assert job.monitors[0].output_path == Path("dyn_profile_data")
    check_messages(caplog.records, "output_path", "7", "'./dyn_profile_data'")
    check_messages(caplog.records, "poll_interval", "'often'", "2")
    check_messages(caplog.records, "'poll_intervall'", "poll_interval")
    for interval in (0, -1, True, float("nan")):
        caplog.clear()
        job.monitors.append(make(job.path / "cfg", poll_interval=interval))
        assert "2 is taken" in caplog.text
    for arguments in ({"late": "maybe"}, {"granularity": 0}, {"granularity": True}, {"step_position": "middle"}):
        with refused(ValueError):
            make(job.path / "cfg", **arguments)
    for switch in ("strict", "agree"):
        with refused(TypeError, switch, "True or False", "'no'"):
            make(job.path / "cfg", **{switch: "no"})
    named = DynamicProfilerMonitor(job.path / "mine.json")
    job.monitors.append(named)
    assert named.config_path == (job.path / "mine.json").resolve()


@pytest.mark.checklist("A27", "A28", "A31", "A32", "B18")
def test_a_window_of_one_step(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """start = stop = 10 records exactly one step, under a name that says so; log and trace tell of it, with the same facts."""
    with caplog.at_level(logging.INFO, "stepscope"):
        monitor = job.monitor()
        job.callbacks(monitor, 4)
        job.change(start_step=10, stop_step=10)
        job.callbacks(monitor, 10, first=5)
    (name, directory), *more = job.windows().items()
    assert (name, more) == ("rank0_start10_stop10", [])
    assert output.steps_of(directory) == [10]
    assert len(output.operators(directory)) == 4
    assert output.info(directory)["run"] == directory.name
    assert not [text for text in caplog.messages if "npu" in text]  # which nobody asked for
    messages = [text for text in caplog.messages if text.startswith("[Dynamic Profiler] rank 0: ")]
    assert messages[1:] == [
        "[Dynamic Profiler] rank 0: steps 10-10, asked for by file: recording step 10",
        "[Dynamic Profiler] rank 0: start at step 10, will stop at step 10",
        "[Dynamic Profiler] rank 0: stop at step 10",
    ]
    logged = [vars(record)["stepscope"] for record in caplog.records if "stepscope" in vars(record)]
    assert logged == [{"event": event, "rank": 0, "first": 10, "last": 10} for event in ("start", "stop")]
    traced = [event for event in output.events(directory) if event["name"].startswith("dynamic profiler: ")]
    assert {event["name"]: (event["args"]["first"], event["args"]["last"]) for event in traced} == {
        "dynamic profiler: start": (10, 10),
        "dynamic profiler: stop": (10, 10),
    }
    wait(lambda: has_answered(job, "recording step 10"))
    status = job.config.with_name(f"{job.config.name}.status.json")
    wait(lambda: [window["state"] for window in json.loads(status.read_text())["windows"]] == ["recorded"])


@pytest.mark.checklist("A16", "A5", "B17")
def test_the_file_overrides_the_directory_and_the_mode(job: Job) -> None:
    """`prof_path` takes the place of `output_path`, and `analyse` that of `analyse_mode`, as in MindSpore's own file."""
    monitor = job.monitor()
    elsewhere = job.path / "elsewhere"
    job.change(start_step=2, stop_step=3, analyse_mode=-1, analyse=True, prof_path=str(elsewhere))
    job.callbacks(monitor, 2)
    job.change(start_step=6, stop_step=6, prof_path="./")  # which is none; the window that runs stays where it began
    job.callbacks(monitor, 5, first=3)
    (directory,) = output.windows_below(elsewhere)
    assert directory.parent.name == "rank0_start2_stop3"
    assert output.steps_of(directory) == [2, 3]
    assert list(job.windows()) == ["rank0_start6_stop6"]


@pytest.mark.checklist("A35", "A36", "A39")
@pytest.mark.parametrize("position", ["end", "begin"])
def test_the_step_form_records_the_steps_of_its_file(job: Job, position: str) -> None:
    """Called at the end of the body or at its begin, and from the first step on: the steps are those of the file."""
    job.write(start_step=1, stop_step=2)
    monitor = job.monitor(step_position=position)
    for step in range(1, 9):
        if position == "begin":
            monitor.step()
        output.work(step)
        if step == 4:
            job.change(start_step=6, stop_step=7)
        if position == "end":
            monitor.step()
    monitor.close()
    found = {name: (output.steps_of(each), len(output.operators(each))) for name, each in job.windows().items()}
    assert found == {"rank0_start1_stop2": ([1, 2], 8), "rank0_start6_stop7": ([6, 7], 8)}


@pytest.mark.checklist("A29", "A38", "A40", "F3")
def test_a_contradictory_configuration_is_reported_once(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported once for each configuration, in the log and next to the file, and nothing raises into training, unless that
    is asked for."""
    monitor = job.monitor()
    job.callbacks(monitor, 4)
    for fields in ({"start_step": 2, "stop_step": 6}, {"start_step": 9, "stop_step": 7}):
        caplog.clear()
        job.change(**fields)
        job.callbacks(monitor, 3, first=5)
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        answer = errors[0].getMessage().removeprefix("[Dynamic Profiler] rank 0: ")
        wait(partial(has_answered, job, answer))
    assert job.windows() == {}
    strict = job.monitor(strict=True)
    with refused(RuntimeError, "profiler_config.json", "start_step", "9", "stop_step", "7"):
        strict.step()
    strict.step()


@pytest.mark.checklist("A29", "A40", "F3")
def test_each_line_of_the_log_is_there_once(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """With one prefix: what is asked for, withdrawn and refused, and values that cannot be followed."""
    prefix = "[Dynamic Profiler] rank 0: "
    with caplog.at_level(logging.INFO, "stepscope"):
        monitor = job.monitor()
        job.callbacks(monitor, 4)
        job.change(start_step=20, stop_step=21)
        job.change(start_step=30, stop_step=31, host_sys=["cpuu"])
        job.change(start_step=2, stop_step=3)
        job.config.write_text("broken")
        wait(lambda: "cannot be followed" in caplog.text)
        job.change(start_step=-1, stop_step=-1)
    assert all(text.startswith(prefix) for text in caplog.messages)
    texts = [text.removeprefix(prefix) for text in caplog.messages]
    withdrawn = "asked for by file: withdrawn: the file asks for something else"
    expected = ["steps 20-21, asked for by file: recording", f"steps 20-21, {withdrawn}", "host_sys must be a member"]
    expected += ["steps 30-31, asked for by file: recording", f"steps 30-31, {withdrawn}", "refused: start_step 2 is"]
    assert [text for text in texts if "profiler_config.json" not in text and "analyse" not in text] == [
        text for text in texts if any(text.startswith(begin) for begin in expected)
    ]
    assert [sum(text.startswith(begin) for text in texts) for begin in expected] == [1] * 6
    assert not [text for text in texts if "Dynamic" in text or "dynamic profiler" in text]


@pytest.mark.checklist("A40", "F3")
def test_a_late_start_is_clipped(job: Job) -> None:
    """If that is asked for; the name is that of what was recorded."""
    monitor = job.monitor(late="clip")
    job.callbacks(monitor, 4)
    job.change(start_step=2, stop_step=6)
    job.callbacks(monitor, 4, first=5)
    assert {name: output.steps_of(each) for name, each in job.windows().items()} == {"rank0_start5_stop6": [5, 6]}


@pytest.mark.checklist("A26", "F7")
def test_training_ends_inside_a_window(job: Job) -> None:
    """The recorded steps are analysed, marked incomplete and named; the file is not watched any more."""
    monitor = job.monitor()
    job.change(start_step=3, stop_step=100)
    job.callbacks(monitor, 4)
    monitor.on_train_end(Context())
    (name, directory), *_ = job.windows().items()
    assert name == "rank0_start3_stop4"
    assert output.steps_of(directory)[:2] == [3, 4]
    facts = output.info(directory)
    assert facts["complete"] is False and facts["diagnostics"][0] == "cut: training ended"
    job.write(start_step=5, stop_step=5)
    time.sleep(0.1)
    assert monitor.config is not None
    assert monitor.config.start_step == 3
    monitor.on_train_end()


@pytest.mark.checklist("A24", "A25", "F1")
def test_a_bad_file(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """The last good configuration holds; each bad one is reported once, in the log and next to the file; a good one is
    followed again."""
    monitor = job.monitor()
    job.change(start_step=4, stop_step=5)
    status = job.config.with_name(f"{job.config.name}.status.json")
    for bad in ('{"start_step": 9, "stop_', "[1, 2]", "null", "not json"):
        caplog.clear()
        good = monitor.config
        job.config.write_text(bad)
        wait(lambda: json.loads(status.read_text()).get("state") == "bad")
        time.sleep(0.1)
        assert len(check_messages(caplog.records, "profiler_config.json")) == 1
        assert monitor.config is good
        job.config.write_text(json.dumps({"start_step": 4, "stop_step": 5, "analyse_mode": 0}))
        wait(lambda: json.loads(status.read_text()).get("state") == "ok")
    job.config.write_text("broken")
    wait(lambda: json.loads(status.read_text()).get("state") == "bad")
    job.callbacks(monitor, 6)
    assert {name: output.steps_of(each) for name, each in job.windows().items()} == {"rank0_start4_stop5": [4, 5]}
    job.config.unlink()
    time.sleep(0.1)
    job.change(start_step=8, stop_step=8)
    job.callbacks(monitor, 3, first=7)
    assert "rank0_start8_stop8" in job.windows()


@pytest.mark.checklist("A20", "A21", "F9")
def test_monitors_of_one_host_share_no_memory_and_no_process(job: Job) -> None:
    """Two monitors of one host read the same file by a thread of the process; there is neither process nor memory of
    theirs, unrelated jobs see nothing of each other, and nothing is left."""
    before = mapped(), children(os.getpid())
    other = Job(job.path / "other")
    other.path.mkdir()
    first, second, unrelated = job.monitor(), job.monitor(), other.monitor()
    assert {thread.name for thread in threading.enumerate() if thread.name == "stepscope control"}
    job.change(start_step=2, stop_step=2)
    assert first.config == second.config
    assert unrelated.config == DynamicProfilerArgs(**DEFAULT_FILE, is_valid=True)
    assert (mapped(), children(os.getpid())) == before
    for monitor in (*job.monitors, unrelated):
        monitor.close()
    wait(lambda: "stepscope control" not in {thread.name for thread in threading.enumerate()})


STEPS = """
import sys
sys.path.append({root!r})
from stepscope.mindspore import DynamicProfilerMonitor
from stepscope import span
monitor = DynamicProfilerMonitor({config!r}, {output!r}, 0.05)
for step in range(6):
    with span("MatMul-op1"):
        pass
    monitor.step()
"""
WITHOUT_SHM = (
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o ro tmpfs /dev/shm && exec "$@"',
    "sh",
)


@pytest.mark.checklist("A22")
def test_without_shared_memory(job: Job) -> None:
    """Where nothing can be written to /dev/shm, files do."""
    job.write(start_step=2, stop_step=3)
    program = textwrap.dedent(STEPS).format(root=str(ROOT), config=str(job.config.parent), output=str(job.output))
    done = subprocess.run([*WITHOUT_SHM, "touch", "/dev/shm/x"], capture_output=True, text=True)
    if "Read-only" not in done.stderr:
        missing("leave to make namespaces", f"The system says: {done.stderr.strip()}")
    done = subprocess.run([*WITHOUT_SHM, sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ((name, directory),) = job.windows().items()
    assert (name, output.steps_of(directory)) == ("rank0_start2_stop3", [2, 3])


def mapped() -> set[str]:
    """Files of shared memory that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if "/dev/shm/" in line}


KILLED = """
import json, sys, time
sys.path.append({root!r})
from stepscope.mindspore import DynamicProfilerMonitor
from stepscope import span
monitor = DynamicProfilerMonitor({config!r}, {output!r}, 0.05)
step = 0
while True:
    step += 1
    with span("MatMul-op1"):
        time.sleep(0.01)
    monitor.step()
    print(step, flush=True)
"""


@pytest.mark.checklist("A23", "A31", "F3", "F8", "F9", "C21")
def test_killed(job: Job) -> None:
    """SIGKILL inside a window: no process is left, the next start needs no cleaning, and what was recorded is found, under
    a name that says what it is."""
    job.write(start_step=2, stop_step=1000, run_id="try")
    program = textwrap.dedent(KILLED).format(root=str(ROOT), config=str(job.config.parent), output=str(job.output))
    with launched([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 20:
                break
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        # A process that kept the pipe open would keep this from ending.
        process.stdout.read()
    monitor = job.monitor()
    assert monitor.config is not None
    monitor.close()
    analysis = Profiler.offline_analyse(job.output)
    found = [window for window in analysis.windows if len(window.steps) >= 15]
    assert found
    steps = output.steps_of(found[0].directory.parent)
    assert steps[0] == 2
    assert len(output.operators(found[0].directory.parent)) >= 15
    assert found[0].directory.is_relative_to(job.output / f"rank0_start2_stop{steps[-1] - 1}_try")
    assert len(list(job.output.glob("rank0_*"))) == len(analysis.windows)


@pytest.mark.checklist("A5", "A28", "C20", "F13")
def test_modes_of_analysis(job: Job) -> None:
    """None leaves raw data for later, `async` makes the products behind the loop's back. Code between making the monitor
    and the first step is no part of that."""
    job.write(start_step=1, stop_step=1, analyse_mode=-1)
    monitor = job.monitor()
    output.work(0)
    job.callbacks(monitor, 2)
    (directory,) = job.windows().values()
    assert (directory / RAW).exists()
    assert not (directory / PRODUCTS).exists()
    job.change(start_step=4, stop_step=4, analyse_mode=1)
    job.callbacks(monitor, 4, first=3)
    analysis_thread.wait(60)
    assert output.steps_of(job.windows()["rank0_start4_stop4"]) == [4]
    Profiler.offline_analyse(job.output)
    assert output.steps_of(directory) == [1] and len(output.operators(directory)) == 4


def test_waiting_for_data(job: Job) -> None:
    """Between two steps the loop waits for its data: that is a span of the step that begins with it."""
    monitor = job.monitor()
    job.change(start_step=2, stop_step=4)
    job.callbacks(monitor, 5)
    (directory,) = job.windows().values()
    names = [event["name"] for event in output.events(directory) if event.get("ph") == "X"]
    assert names.count("data_wait") == 2


@pytest.mark.checklist("F14")
def test_a_window_that_cannot_begin(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on, and the log says why."""
    job.output.write_text("a file is in the way")
    monitor = job.monitor()
    job.change(start_step=2, stop_step=3)
    job.callbacks(monitor, 4)
    assert "the window cannot begin: " in caplog.text
    assert "cannot write below" in caplog.text
    assert monitor.profiler.windows == ()


@pytest.mark.checklist("A33", "F6")
def test_each_monitor_begins_anew(job: Job) -> None:
    """One records the same steps once; the next one of the process follows the file from the beginning."""
    for _ in range(2):
        monitor = job.monitor(late="clip")
        job.change(start_step=2, stop_step=2)
        job.callbacks(monitor, 3)
        job.change(start_step=-1, stop_step=-1)
        job.change(start_step=2, stop_step=2)
        job.callbacks(monitor, 2, first=4)
        assert len(monitor.profiler.windows) == 1
        monitor.close()
        job.monitors.remove(monitor)
    assert [each.parent.name for each in output.windows_below(job.output)] == ["rank0_start2_stop2"] * 2


@pytest.mark.checklist("A31", "F6")
def test_the_next_steps(job: Job) -> None:
    """As many as are asked for, from the next step on, and the run id is a part of the name; a command for the window that runs needs no
    more than its name."""
    monitor = job.monitor()
    job.callbacks(monitor, 3)
    job.change(start_step="next", steps=2)
    job.callbacks(monitor, 4, first=4)
    job.change(start_step="next", steps=2, run_id="again")
    job.callbacks(monitor, 1, first=8)
    job.change(command="extend", steps=3)
    job.callbacks(monitor, 6, first=9)
    assert {name: output.steps_of(each) for name, each in job.windows().items()} == {
        "rank0_start4_stop5": [4, 5],
        "rank0_start8_stop12_again": [8, 9, 10, 11, 12],
    }
