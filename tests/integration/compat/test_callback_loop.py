"""The part that all callbacks share: settings, runs one after the other, errors that training does not see."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepscope as sc
from stepscope.compat.frameworks.loop import MAX_ERRORS, Loop, TracingCallback, stores_errors
from stepscope.compat.frameworks.loop_settings import LoopArguments, LoopSettings
from stepscope.runtime.events.record import Kind
from tests.support.arming import SOCKET, arm_here, set_options_in_environment
from tests.support.basics import ROOT
from tests.support.frameworks import Runs, check_verdict, steps
from tests.support.messages import check_messages, refused


def settings_of(tmp_path: Path, **given: Any) -> LoopSettings:
    """Settings that write into the test's directory."""
    return LoopSettings.of({"output_dir": str(tmp_path), "tensorboard": False, **given})


def run_steps(loop: Loop, stage: str, count: int, **given: Any) -> None:
    """A run of so many steps, a span in each."""
    loop.open(stage, **given)
    for _ in range(count):
        loop.enter("work")
        loop.exit("work")
        loop.step()
    loop.close()


def test_logged_values(tmp_path: Path) -> None:
    """Arrays of one number are counters; what can be none costs itself, and the error says why."""
    memory = sc.exporters.MemoryExporter()
    loop = Loop(settings_of(tmp_path, exporters=[memory], schedule=None), "x")
    loop.open("fit")
    values: dict[Any, Any] = {
        1: 0.5,
        "large": 10**400,
        "odd": object(),
        "several": np.zeros(3),
        "complex": 1j,
        "n" * 500: None,
        "row": np.array([0.25]),
        "matrix": np.array([[0.5]], np.float32),
        "flag": True,
    }
    for _ in range(2):
        loop.counters(values)
    loop.step()
    loop.close()
    counters = memory.names(kind=Kind.COUNTER)
    assert [name for name in counters if name in ("row", "matrix", "flag")] == ["row", "matrix", "flag"] * 2
    errors = [str(error) for error in loop.raised.errors]
    assert [error.partition(" is no counter: ")[0] for error in errors[:-1]] == [
        "the logged value 1 of type float",
        "the logged value 'large' of type int",
        "the logged value 'odd' of type object",
        "the logged value 'several' of type ndarray",
        "the logged value 'complex' of type complex",
    ]
    assert len(errors[5]) < 250


@pytest.mark.checklist("F7")
def test_a_deleted_loop_closes_its_run(tmp_path: Path) -> None:
    """A callback that is dropped after an exception leaves no thread running, and keeps its recorded events."""
    memory = sc.exporters.MemoryExporter()
    loop = Loop(settings_of(tmp_path, exporters=[memory], schedule=sc.schedule(wait=0, warmup=0, active=9)), "x")
    loop.open("fit")
    loop.step()
    loop.step()
    del loop
    gc.collect()
    (window,) = memory.windows
    assert not window.complete and len(window.steps) == 2


def test_a_ready_made_exporter_serves_one_run(tmp_path: Path) -> None:
    """It is closed with its run; the next is written without it, and that is reported."""
    memory = sc.exporters.MemoryExporter()
    loop = Loop(settings_of(tmp_path, exporters=[memory], schedule=None), "x")
    run_steps(loop, "fit", 2)
    run_steps(loop, "test", 3)
    assert steps(memory) == [(0, 1)]
    with refused(ExceptionGroup, "x", "1 error") as caught:
        loop.raise_errors()
    assert "give a function that makes an exporter" in str(caught.value.exceptions[0])


class Hooks(TracingCallback):
    """A callback whose hook raises."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    @stores_errors
    def hook(self, number: int) -> None:
        """Raises always."""
        raise ValueError(f"number {number}")


def test_hooks_never_raise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An exception of a hook is stored, counted, logged while there is room, and raised for callers that ask."""
    hooks = Hooks(Loop(settings_of(tmp_path), "x"))
    for number in range(MAX_ERRORS + 3):
        hooks.hook(number)
    assert [str(error) for error in hooks.errors] == [f"number {number}" for number in range(MAX_ERRORS)]
    check_messages(caplog.records, "x", "ValueError: number 0")
    with refused(ExceptionGroup, "x", f"{MAX_ERRORS + 3} errors"):
        hooks.raise_errors()


@pytest.mark.checklist("F14")
def test_a_callback_that_raises_is_kept(tmp_path: Path) -> None:
    """`on_trace_ready` is the program's, and so is its error; the run is whole."""

    def ready(window: sc.Window) -> None:
        raise LookupError(f"window {window.index}")

    memory = sc.exporters.MemoryExporter()
    loop = Loop(settings_of(tmp_path, exporters=[memory], on_trace_ready=ready, schedule=None), "x")
    run_steps(loop, "fit", 2)
    (error,) = loop.raised.errors
    assert isinstance(error, sc.errors.ExporterError) and "window 0" in str(error)
    assert steps(memory) == [(0, 1)]


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"shedule": None}, ["shedule", "'schedule'"]),
        ({"bananas": 1}, ["bananas", "backends, control, exporters"]),
        ({"unit": "batch"}, ["unit must", "batch", "epoch", "step"]),
        ({"ranks": [-1]}, ["ranks", "-1"]),
        ({"exporters": sc.exporters.MemoryExporter()}, ["exporters=[...]"]),
        ({"exporters": [3]}, ["3"]),
        ({"backends": [3]}, ["3", "stepscope.backends.Backend"]),
        ({"keep_last": 5, "schedule": sc.schedule(wait=0, warmup=0, active=1)}, ["keep_last", "schedule"]),
        ({"keep_last": "five"}, ["keep_last", "five"]),
        ({"overhead_budget": 7.0}, ["overhead_budget", "7.0"]),
        ({"control": 3}, ["control", "stepscope.Control", "3"]),
        ({"exporters": "trace.json"}, ["'trace.json'", "exporters=[...]"]),
    ],
)
def test_wrong_settings_are_refused_at_once(given: dict[str, Any], facts: list[str]) -> None:
    """When the callback is made, not when training has begun."""
    with refused((TypeError, ValueError), *facts):
        LoopSettings.of(given)


def test_keywords_are_the_settings() -> None:
    """The type of the keywords for type checkers has the same names as the settings."""
    assert set(LoopArguments.__annotations__) == set(LoopSettings.__struct_fields__)


def test_keep_last_records_always(tmp_path: Path) -> None:
    """A flight recorder in place of the schedule: the exception's last steps are saved."""
    memory = sc.exporters.MemoryExporter()
    flight = sc.FlightRecorder(steps=2, triggers=(sc.triggers.Raised(),))
    hooks = Hooks(Loop(settings_of(tmp_path, exporters=[memory], keep_last=flight), "x"))
    with pytest.raises(KeyError), hooks:
        hooks.loop.open("fit")
        for _ in range(5):
            hooks.loop.step()
        raise KeyError("lost")
    hooks.raise_errors()
    assert len(memory.windows) == 1 and memory.events(kind=Kind.SPAN).size


def test_a_callback_without_its_framework_names_the_package() -> None:
    """Importing stepscope loads none of them; importing a callback says how to get its framework."""
    program = """
import importlib, sys, stepscope
for name in ("lightning", "transformers", "accelerate", "keras", "composer"):
    assert name not in sys.modules
    sys.modules[name] = sys.modules[f"pytorch_{name}"] = None
    try:
        importlib.import_module(f"stepscope.{name}")
    except ImportError as error:
        assert str(error).startswith(f"stepscope.{name}") and "pip install" in str(error), error
        print(name)
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.split() == ["lightning", "transformers", "accelerate", "keras", "composer"], done.stderr


CALLS = ("open", "step", "enter", "leave", "close", "copy")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.sampled_from(CALLS), max_size=24), first=st.integers(0, 1000))
def test_hooks_in_any_order(tmp_path: Path, calls: list[str], first: int) -> None:
    """Each run has the steps and spans that came while it was open, in whatever order a framework calls the hooks."""
    runs = Runs()
    where = tempfile.mkdtemp(dir=tmp_path)
    loop = Loop(LoopSettings(output_dir=where, tensorboard=False, schedule=None, exporters=[runs]), "x")
    expected: list[list[int]] = []
    is_open, depth = False, 0
    for call in calls:
        if call == "open":
            loop.open(f"run{len(expected)}", step=first)
            expected.append([0, 0])
            is_open, depth = True, 0
        elif call == "step":
            loop.step()
            if is_open:
                expected[-1][0] += 1
        elif call == "enter":
            loop.enter("work")
            depth += 1
            if is_open:
                expected[-1][1] += 1
        elif call == "leave":
            assert loop.exit("work") == (depth > 0)
            depth = max(depth - 1, 0)
        elif call == "close":
            loop.close()
            is_open, depth = False, 0
        else:
            twin = copy.deepcopy(loop)
            assert twin.depth == 0 and twin.profiler is None and twin.settings == loop.settings
        assert loop.depth == depth and bool(loop.stage) == is_open
    loop.close()
    loop.raise_errors()
    assert len(runs.made) == len(expected)
    for (_, _, memory), (count, spans) in zip(runs.made, expected, strict=True):
        numbers = [number for window in steps(memory) for number in window]
        assert numbers[:count] == list(range(first, first + count))
        assert len(numbers) <= count + 1  # spans after the last call of step()
        assert memory.names(kind=Kind.SPAN).count("work") == spans


@pytest.mark.parametrize("wrong", [0, True, "8"])
def test_a_wrong_world_size_is_refused(wrong: Any) -> None:
    """By `trace` itself, as a rank is."""
    with refused(TypeError, "world_size"):
        sc.trace(world_size=wrong)


@pytest.mark.checklist("B6")
def test_windows_on_demand_replace_only_the_default_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the program or by the environment; a schedule in the arguments is followed as well."""
    cycle = sc.schedule(wait=1, warmup=0, active=1, repeat=1)
    recorded: list[list[tuple[int, ...]]] = []
    for chosen in ({"control": SOCKET}, {"control": SOCKET, "schedule": cycle}, {}, {"schedule": cycle}):
        if "control" not in chosen:
            set_options_in_environment(monkeypatch, control={"socket": True})
        memory = sc.exporters.MemoryExporter()
        loop = Loop(settings_of(tmp_path, exporters=[memory], **chosen), "x")
        loop.open("fit")
        for number in range(8):
            if number == 4:
                assert arm_here(1)
            loop.enter("work")
            loop.exit("work")
            loop.step()
        loop.close()
        assert loop.raised.errors == []
        recorded.append(steps(memory))
    assert recorded == [[(5,)], [(1,), (5,)]] * 2


def test_settings_that_can_be_armed_may_be_pickled(tmp_path: Path) -> None:
    """Nothing listens before a run begins, and a copy listens as well."""
    loop = pickle.loads(pickle.dumps(Loop(settings_of(tmp_path, control=SOCKET, schedule=None), "x")))
    loop.open("fit")
    assert arm_here(1)
    loop.close()
    assert loop.settings.control == SOCKET


def test_the_end_of_a_run_names_its_results_and_the_verdict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each run; the first run of a stage that recorded nothing says why."""
    loop = Loop(LoopSettings(), "demo")
    loop.open("fit", directory=tmp_path)
    for _ in range(30):
        loop.enter("train_step")
        time.sleep(0.002)
        loop.exit("train_step")
        loop.step()
    loop.close()
    loop.close()
    assert len(caplog.records) == 1
    check_verdict(caplog.text, tmp_path / "fit")
    caplog.clear()
    for _ in range(2):
        run_steps(loop, "evaluate", 1, directory=tmp_path)
    (logged,) = [record.getMessage() for record in caplog.records]
    assert logged.startswith("stepscope recorded nothing of 'evaluate': ") and "shorter than wait+warmup" in logged


def test_a_long_run_gets_no_verdict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read it would hold the training up."""
    monkeypatch.setattr("stepscope.compat.frameworks.loop.MAX_JUDGED_EVENTS", 10)
    loop = Loop(LoopSettings(schedule=None), "demo")
    loop.open("fit", directory=tmp_path)
    for _ in range(30):
        loop.step()
    loop.close()
    assert f"`stepscope explain {tmp_path / 'fit'}` says what is slow" in caplog.text
