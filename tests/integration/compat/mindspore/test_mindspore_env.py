"""MS_PROFILER_OPTIONS: a recording that the environment asks for."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

from stepscope.backends.counters.perf import refusals
from stepscope.compat.mindspore.environment import VARIABLE, read_variable
from stepscope.compat.mindspore.sources.backends import counters_refusal
from stepscope.compat.mindspore.sources.device import DeviceTarget
from stepscope.mindspore import DynamicProfilerMonitor, EnvProfiler
from tests.support import mindspore_output as output
from tests.support.arming import set_options_in_environment
from tests.support.basics import ROOT, missing
from tests.support.launch import run_to_end

PROGRAM = """
import sys, time
sys.path.append({root!r})
import stepscope.mindspore as ms
from stepscope import span
for _ in range(3):
    with span("MatMul-op1"):
        time.sleep(0.1)
print("trained", ms.EnvProfiler.profiler is not None)
"""


def run(directory: Path, variable: str, program: str = PROGRAM) -> tuple[str, str]:
    """Runs a program that knows nothing of profiling but its import; returns what it printed, and its log."""
    environment = {**os.environ, VARIABLE: variable}
    command = [sys.executable, "-P", "-W", "error", "-c", textwrap.dedent(program).format(root=str(ROOT))]
    done = run_to_end(command, timeout=100, cwd=directory, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.checklist("B6", "B7", "B8", "B10", "B14", "B15", "E17")
def test_no_change_of_code(tmp_path: Path) -> None:
    """All keys of the guide are read; the products are there when the program has ended; limits are reported."""
    options = {
        "start": True,
        "output_path": os.fspath(tmp_path / "out"),
        "op_time": True,
        "profile_memory": True,
        "profile_communication": False,
        "aicore_metrics": 0,
        "l2_cache": False,
        "timeline_limit": 500,
        "data_process": True,
        "parallel_strategy": True,
        "profile_framework": "time",
        "host_sys": ["cpu"],
    }
    printed, log = run(tmp_path, json.dumps(options))
    assert printed == "trained True\n"
    (directory,) = output.windows_below(tmp_path / "out")
    assert output.operators(directory) == ["MatMul-op1"] * 3
    assert (directory / "parallel_strategy_0.json").exists()
    recorded = output.info(directory)["options"]
    assert (recorded["profile_memory"], recorded["profile_framework"]) == (True, "time")
    assert recorded["aicore_metrics"] == "ArithmeticUtilization"
    assert "host cpu %" in {event["name"] for event in output.events(directory) if event.get("ph") == "C"}
    assert ("aicore_metrics gives nothing on CPU" in log) == bool(counters_refusal("aicore_metrics", DeviceTarget()))


STAND_IN = """
import sys
sys.path.append({root!r})
from stepscope.backends.counters import perf
for event in perf.EVENTS:
    perf.EVENTS[event] = perf.EVENTS["processor time"]
"""


@pytest.mark.checklist("B12")
@pytest.mark.parametrize("stand_in", [False, True])
def test_counters_of_the_processor(tmp_path: Path, stand_in: bool) -> None:
    """Both options have theirs in the timeline, or the log says of each that the machine hides them. Where it does, processor time,
    which the kernel counts on any machine, stands for them."""
    if stand_in and (problems := refusals(["software"])):
        missing("perf_event_open", f"{next(iter(problems.values()))}.")
    asked = {"start": True, "output_path": os.fspath(tmp_path / "out"), "aicore_metrics": 1, "l2_cache": True}
    _, log = run(tmp_path, json.dumps(asked), STAND_IN + PROGRAM if stand_in else PROGRAM)
    (directory,) = output.windows_below(tmp_path / "out")
    found = {event["name"] for event in output.events(directory) if event.get("ph") == "C"}
    hidden = not stand_in and bool(counters_refusal("aicore_metrics", DeviceTarget()))
    for option, counter in (("aicore_metrics", "instructions per cycle"), ("l2_cache", "cache misses %")):
        assert (counter in found) != hidden, found
        assert (f"{option} gives nothing on CPU" in log) == hidden


@pytest.mark.checklist("B7", "B8")
def test_defaults(tmp_path: Path) -> None:
    """`start` alone records, to the default directory, with the guide's defaults; without it nothing happens."""
    run(tmp_path, '{"start": true}')
    (directory,) = output.windows_below(tmp_path / "data")
    options = output.info(directory)["options"]
    assert (options["op_time"], options["data_process"], options["parallel_strategy"]) == (True, True, True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for variable in ('{"start": false}', "{}", '{"output_path": "x"}', " "):
        assert run(elsewhere, variable)[0] == "trained False\n"
    assert list(elsewhere.iterdir()) == []


@pytest.mark.checklist("B8")
def test_the_output_path_is_absolute(tmp_path: Path) -> None:
    """It is that of the directory in which the program was when it was read, wherever the program goes then."""
    program = """
    import os, sys
    sys.path.append({root!r})
    import stepscope.mindspore as ms
    os.makedirs("elsewhere")
    os.chdir("elsewhere")
    later = ms.Profiler(output_path="later", start_profile=False)
    os.chdir("..")
    later.start()
    ms.EnvProfiler.profiler.step()
    """
    run(tmp_path, '{"start": true, "output_path": "out"}', program)
    (directory,) = output.windows_below(tmp_path / "out")
    assert output.info(directory)["options"]["output_path"] == os.fspath(tmp_path / "out")
    assert (tmp_path / "elsewhere" / "later").is_dir() and not (tmp_path / "later").exists()


@pytest.mark.checklist("B6")
@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ('{"start": true', "it is no JSON: Expecting ',' delimiter at line 1, column 15"),
        ("[1]", "it must be a mapping, got list: [1]"),
        ('{"start": "yes"}', "start must be True or False, got str: 'yes'"),
        ('{"start": true, "op_time": false, "profile_memory": true}', "profile_memory=True needs op_time=True"),
        ('{"start": true, "profiler_level": "Levl1"}', "did you mean 'Level1'"),
    ],
)
def test_wrong_options_are_logged_and_training_goes_on(tmp_path: Path, variable: str, text: str) -> None:
    """Training goes on without a profiler, and the log says what was wrong."""
    printed, log = run(tmp_path, variable)
    assert printed == "trained False\n"
    assert text in log
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_in_the_environment_is_reported(tmp_path: Path) -> None:
    """The environment cannot have a schedule; that is reported, and all else counts."""
    _, log = run(tmp_path, json.dumps({"start": True, "schedule": 3, "output_path": "out"}))
    assert "'schedule' cannot be given here and has no effect" in log
    assert len(list(output.windows_below(tmp_path / "out"))) == 1


def test_ended_by_the_program(tmp_path: Path) -> None:
    """`analyse()` ends it before the program does; then the exit has nothing left to do."""
    program = PROGRAM + 'print(ms.EnvProfiler().analyse().complete)\nwith span("later-op1"): pass\n'
    printed, _ = run(tmp_path, '{"start": true}', program)
    assert printed == "trained True\nTrue\n"
    (directory,) = output.windows_below(tmp_path / "data")
    assert output.operators(directory) == ["MatMul-op1"] * 3


@pytest.mark.checklist("B6")
def test_an_empty_environment_records_nothing() -> None:
    """In a process without the variable nothing records; another environment than that of the process can be passed."""
    assert EnvProfiler.init_profiler({}) is None
    assert EnvProfiler().analyse() is None
    assert read_variable("{}") is None


@pytest.mark.checklist("B6", "B18")
def test_the_environment_does_not_replace_the_monitors_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are those of the file; the environment says where windows go, and may turn them all off."""
    recordings = tmp_path / "said"
    set_options_in_environment(monkeypatch, schedule={"wait": 1, "active": 1}, output_dir=str(recordings))
    (tmp_path / "cfg").mkdir()
    (tmp_path / "cfg" / "profiler_config.json").write_text('{"start_step": 2, "stop_step": 4, "analyse_mode": 0}')
    monitor = DynamicProfilerMonitor(tmp_path / "cfg", tmp_path / "out")
    output.loop(6, lambda _: None, lambda _: monitor.step())
    monitor.close()
    (directory,) = output.windows_below(recordings)
    assert directory.parent.name.endswith("_start2_stop4") and output.steps_of(directory) == [2, 3, 4]
    assert not (tmp_path / "out").exists()
    set_options_in_environment(monkeypatch, enabled=False)
    off = DynamicProfilerMonitor(tmp_path / "cfg", tmp_path / "out")
    output.loop(6, lambda _: None, lambda _: off.step())
    off.close()
    assert off.profiler.windows == ()
