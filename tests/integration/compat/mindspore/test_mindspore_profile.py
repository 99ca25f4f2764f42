"""`profile`, `schedule` and the handlers of MindSpore 2.5 and later."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import stepscope.mindspore as ms
from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.compat.mindspore.analysis.background import analysis_thread
from stepscope.compat.mindspore.output_layout import RAW
from stepscope.runtime.errors import ControlError, ScheduleError
from stepscope.runtime.schedule.action import ProfilerAction
from tests.support import mindspore_output as output
from tests.support.arming import SOCKET, arm_here, set_options_in_environment
from tests.support.messages import refused

LETTERS = {
    ProfilerAction.NONE: "-",
    ProfilerAction.WARMUP: "W",
    ProfilerAction.RECORD: "R",
    ProfilerAction.RECORD_AND_SAVE: "S",
}

MEASURED = [
    ((1, 1, 2, 1, 0), "-WRS------------"),
    ((1, 1, 2, 2, 0), "-WRS-WRS--------"),
    ((0, 0, 1, 1, 0), "S---------------"),
    ((0, 0, 1, 0, 0), "SSSSSSSSSSSSSSSS"),
    ((2, 1, 3, 0, 0), "--WRRS--WRRS--WR"),
    ((1, 1, 2, 1, 2), "---WRS----------"),
    ((2, 2, 3, 2, 1), "---WWRRS--WWRRS-"),
    ((0, 2, 2, 2, 3), "---WWRSWWRS-----"),
    ((3, 0, 1, 3, 0), "---S---S---S----"),
    ((0, 1, 3, 1, 0), "WRRS------------"),
]
"""Arguments, and what MindSpore 2.10 does in steps 0 to 15."""


@pytest.mark.parametrize(("arguments", "steps"), MEASURED, ids=lambda each: str(each))
def test_schedule(arguments: tuple[int, ...], steps: str) -> None:
    """The same steps as MindSpore records."""
    wait, warmup, active, repeat, skip_first = arguments
    plan = ms.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
    assert "".join(LETTERS[plan(step)] for step in range(16)) == steps
    assert plan.to_dict() == {
        "wait": wait, "active": active, "warmup": warmup, "repeat": repeat, "skip_first": skip_first
    }  # fmt: skip


def test_attributes_of_the_configuration() -> None:
    """They can be read and set, as in MindSpore."""
    config = ms._ExperimentalConfig(profiler_level=ms.ProfilerLevel.Level1, l2_cache=True)  # pyright: ignore[reportPrivateUsage]
    assert (config.profiler_level, config.l2_cache, config.export_type) == (ms.ProfilerLevel.Level1, True, None)
    config.mstx = True
    assert config.options()["mstx"] is True and "export_type" not in config.options()


def test_a_wrong_schedule_raises() -> None:
    """Values that MindSpore replaces by others are errors; defaults are MindSpore's."""
    assert ms.schedule(wait=1, active=2) == ms.Schedule(wait=1, warmup=0, active=2)
    assert isinstance(ms.schedule(wait=1, active=2), ms.schedule)
    with refused(ScheduleError, "wait", "-1"):
        ms.schedule(wait=-1, active=1)
    with refused(ScheduleError, "active", "0"):
        ms.schedule(wait=0, active=0)
    with refused(TypeError, "warmup", "1.5"):
        ms.schedule(wait=0, active=1, warmup=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "step", "-1"):
        ms.schedule(wait=0, active=1)(-1)


def train(steps: int, **arguments: Any) -> ms.profile:
    """A loop under a profiler, a step per turn."""
    with ms.profile(**arguments) as recording:
        output.loop(steps, lambda _: None, lambda _: recording.step())
    return recording


def test_one_directory_for_each_window(tmp_path: Path) -> None:
    """Each cycle has the products of its steps, in a directory of its own, and metadata in every one."""
    handler = ms.tensorboard_trace_handler(tmp_path, worker_name="worker7")
    with ms.profile(schedule=ms.schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=handler) as recording:
        recording.add_metadata("run", "demo")
        output.loop(9, lambda _: None, lambda _: recording.step())
    assert [output.steps_of(directory) for directory in recording.directories] == [[2, 3], [6, 7]]
    for number, directory in enumerate(recording.directories):
        assert directory.parent == tmp_path.resolve()
        assert directory.name.startswith("worker7_")
        assert json.loads((directory / "profiler_metadata.json").read_text()) == {"run": "demo"}
        assert output.info(directory)["window"] == number
        assert len(output.operators(directory)) == 8
    recording.raise_errors()


def test_raw_data_of_each_window(tmp_path: Path) -> None:
    """If raw data are stored, each window has its own, and can be analysed alone."""
    config = ms._ExperimentalConfig(data_simplification=False)  # pyright: ignore[reportPrivateUsage]
    plan = ms.schedule(wait=0, active=2, repeat=2)
    recording = train(
        5, schedule=plan, on_trace_ready=ms.tensorboard_trace_handler(tmp_path), experimental_config=config
    )
    first, second = recording.directories
    assert (first / RAW / "journal").exists()
    assert (second / RAW / "window.journal").exists()
    analysis = ms.Profiler.offline_analyse(second, data_simplification=False)
    assert [window.steps for window in analysis.windows] == [(2, 3)]
    assert output.steps_of(second, f"{PRODUCTS}-2") == [2, 3]
    whole = ms.Profiler.offline_analyse(tmp_path)
    assert [window.steps for window in whole.windows] == [(0, 1), (2, 3)]
    assert whole.windows[1].directory == second / f"{PRODUCTS}-3"


def test_a_window_that_the_loop_leaves(tmp_path: Path) -> None:
    """Training that ends inside a window has the products of what there was, marked so."""
    plan = ms.schedule(wait=1, active=5)
    recording = train(3, schedule=plan, on_trace_ready=ms.tensorboard_trace_handler(tmp_path))
    (directory,) = recording.directories
    assert output.steps_of(directory) == [1, 2]
    assert not output.info(directory)["complete"]


def test_the_old_handler_is_given_uncalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`on_trace_ready=tensor_board_trace_handler`, as in MindSpore 2.4, writes to the profiler's own directory."""
    monkeypatch.chdir(tmp_path)
    profiler = ms.Profiler(on_trace_ready=ms.tensor_board_trace_handler, output_path="./here")
    output.work(0)
    profiler.step()
    profiler.stop()
    assert output.steps_of(profiler.directories[0]) == [0]
    assert profiler.directories[0].parent == tmp_path.resolve() / "here"
    assert ms.tensor_board_trace_handler is ms.tensorboard_trace_handler
    assert os.listdir(tmp_path) == ["here"]


def test_handlers_belong_to_their_profilers(tmp_path: Path) -> None:
    """A handler made for one does not move the output of the next."""
    train(1, on_trace_ready=ms.tensorboard_trace_handler(tmp_path / "one"))
    ms.tensorboard_trace_handler(tmp_path / "unused")
    second = train(1, on_trace_ready=ms.tensorboard_trace_handler(tmp_path / "two"))
    assert second.directories[0].parent == tmp_path.resolve() / "two"
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


def test_collecting_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a handler, or with `analyse_flag=False`, raw data are stored for later."""
    monkeypatch.chdir(tmp_path)
    handlers = {"data": None, "later": ms.tensorboard_trace_handler("later", analyse_flag=False)}
    for place, handler in handlers.items():
        recording = train(2, on_trace_ready=handler)
        (directory,) = recording.directories
        assert directory.parent == tmp_path.resolve() / place
        assert not (directory / PRODUCTS).exists()
        ms.Profiler.offline_analyse(directory)
        assert output.steps_of(directory) == [0, 1]


def test_products_in_the_background(tmp_path: Path) -> None:
    """`async_mode` lets the end of training not wait for them."""
    release = threading.Event()
    analysis_thread.submit(lambda: release.wait(60))
    recording = train(2, on_trace_ready=ms.tensorboard_trace_handler(tmp_path, async_mode=True))
    assert not (recording.directories[0] / PRODUCTS).exists()
    release.set()
    analysis_thread.wait(60)
    assert output.steps_of(recording.directories[0]) == [0, 1]


@pytest.mark.checklist("F14")
def test_the_programs_own_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the profiler, or nothing if it takes nothing; when it raises, the exception is stored, and nothing else suffers."""
    monkeypatch.chdir(tmp_path)
    got: list[Any] = []
    recording = train(1, on_trace_ready=got.append)
    assert got == [recording]
    train(1, on_trace_ready=lambda: got.append("nothing"))
    assert got[1:] == ["nothing"]

    def bad(_: object) -> None:
        raise KeyError("mine")

    failed = train(1, on_trace_ready=bad)
    with refused(ExceptionGroup, "mindspore", "1 error"):
        failed.raise_errors()
    after = train(2, on_trace_ready=ms.tensorboard_trace_handler(tmp_path / "after"))
    assert output.steps_of(after.directories[0]) == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "error", "facts"),
    [
        ({"dir_name": 3}, TypeError, ["dir_name", "3"]),
        ({"worker_name": 3}, TypeError, ["worker_name", "3"]),
        ({"worker_name": "a/b"}, ValueError, ["worker_name", "a/b"]),
        ({"analyse_flag": 1}, TypeError, ["analyse_flag", "bool", "1"]),
        ({"async_mode": None}, TypeError, ["async_mode", "bool", "None"]),
    ],
)
def test_wrong_arguments_of_a_handler(arguments: dict[str, Any], error: type[Exception], facts: list[str]) -> None:
    """Each is named with its value."""
    with refused(error, *facts):
        ms.tensorboard_trace_handler(**arguments)


def test_further_options(tmp_path: Path) -> None:
    """They are checked as the others, and which domains of marks are wanted counts for this profiler only."""
    with refused(TypeError, "experimental_config", "_ExperimentalConfig", "dict"):
        ms.profile(experimental_config={})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    config = ms._ExperimentalConfig(  # pyright: ignore[reportPrivateUsage]
        mstx=True, mstx_domain_include=["mine"], profiler_level=ms.ProfilerLevel.LevelNone
    )
    wanted = ms.profile(on_trace_ready=ms.tensorboard_trace_handler(tmp_path / "a"), experimental_config=config)
    other = ms.profile(on_trace_ready=ms.tensorboard_trace_handler(tmp_path / "b"))
    for domain in ("mine", "yours", "default"):
        ms.mstx.mark(f"in {domain}", domain=domain)
    wanted.stop()
    other.stop()

    def marks(directory: Path) -> list[str]:
        return [event["name"] for event in output.events(directory) if str(event["name"]).startswith("in ")]

    assert marks(wanted.directories[0]) == ["in mine"]
    assert marks(other.directories[0]) == ["in mine", "in yours", "in default"]


@pytest.mark.checklist("C4", "D16")
@pytest.mark.parametrize("how", ["option", "level"])
def test_collectives_of_the_new_class(tmp_path: Path, how: str) -> None:
    """By the option of the old class, or by a level that has them in MindSpore, too."""
    config = ms._ExperimentalConfig(  # pyright: ignore[reportPrivateUsage]
        profiler_level="Level0" if how == "option" else "Level1"
    )
    handler = ms.tensorboard_trace_handler(tmp_path)
    recording = train(2, on_trace_ready=handler, experimental_config=config, profile_communication=how == "option")
    found = json.loads((recording.directories[0] / PRODUCTS / "communication.json").read_text())
    assert list(found) == ["step0", "step1"] and "AllReduce-op4" in found["step0"]["collective"]


@pytest.mark.checklist("D16")
def test_our_options_of_the_new_class(tmp_path: Path) -> None:
    """They are those of the old class."""
    handler = ms.tensorboard_trace_handler(tmp_path)
    recording = train(1, on_trace_ready=handler, ascend_names=True, peak_flops=1e12, overhead_budget=0.5)
    assert recording.directories[0].name.endswith("_ascend_ms")
    assert (recording.options.peak_flops, recording.options.overhead_budget) == (1e12, 0.5)
    for peak in (-1, 10**400):
        with refused(ValueError, "peak_flops", str(peak)[:20]):
            ms.profile(peak_flops=peak)


def test_start_is_allowed_again(tmp_path: Path) -> None:
    """Unlike the old class, this one may be started again; what does not fit raises all the same."""
    recording = ms.profile(on_trace_ready=ms.tensorboard_trace_handler(tmp_path))
    with refused(RuntimeError, "profile.start()", "stop()"):
        recording.start()
    recording.step()
    recording.stop()
    with refused(RuntimeError, "profile.stop()", "start()"):
        recording.stop()
    recording.start()
    output.work(0)
    recording.step()
    recording.stop()
    assert len(recording.directories) == 2


def order_at(step: int) -> Any:
    """An operator's request in a loop: for the two steps after this one."""

    def order(current: int) -> None:
        if current == step:
            assert arm_here(2)

    return order


def test_an_operator_has_steps_recorded(tmp_path: Path) -> None:
    """By the new class and the old one: those that were asked for, and without a schedule no others."""
    new = ms.profile(control=SOCKET, on_trace_ready=ms.tensorboard_trace_handler(tmp_path / "new"))
    with new:
        output.loop(8, order_at(3), lambda _: new.step())
    old = ms.Profiler(control=SOCKET, output_path=str(tmp_path / "old"))
    output.loop(8, order_at(2), lambda _: old.step())
    old.analyse()
    for recording, steps in ((new, [4, 5]), (old, [3, 4])):
        recording.raise_errors()
        (directory,) = recording.directories
        assert output.steps_of(directory) == steps
        assert recording.windows[0].window.metadata["armed"]["trigger"] == "socket"
    with refused(TypeError, "control", "stepscope.Control", "3"):
        ms.profile(control=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.checklist("B6")
def test_the_environment_has_steps_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the program's schedule; its directory is in place of the output path, and has whole recordings."""
    set_options_in_environment(
        monkeypatch,
        schedule={"wait": 2, "active": 2, "repeat": 1},
        output_dir=str(tmp_path / "said"),
        options={"journal": False},
    )
    first = train(8, on_trace_ready=ms.tensorboard_trace_handler(tmp_path / "programs"))
    second = ms.Profiler(output_path=str(tmp_path / "programs"), schedule=ms.schedule(wait=0, active=1))
    third = ms.Profiler(data_simplification=False)
    output.loop(8, lambda _: second.step(), lambda _: third.step())
    second.analyse()
    third.stop()
    for recording in (first, second, third):
        recording.raise_errors()
        (directory,) = recording.directories
        assert directory.parent == tmp_path / "said"
        if recording is not third:
            assert output.steps_of(directory) == [2, 3]
    assert not (tmp_path / "programs").exists()
    done = ms.Profiler.offline_analyse(tmp_path / "said", data_simplification=False)
    assert done.complete and output.steps_of(third.directories[0]) == [2, 3]


@pytest.mark.checklist("B6")
def test_an_environment_that_cannot_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anything is written, with the nearest name."""
    monkeypatch.setenv("STEPSCOPE_OPTIONS", '{"scheduel": 1}')
    with refused(ControlError, "STEPSCOPE_OPTIONS", "line 1, column 2", "scheduel", "'schedule'"):
        ms.Profiler(output_path=str(tmp_path / "out"))
    monkeypatch.setenv("STEPSCOPE_OPTIONS", '{"keep_last": 3}')
    with refused(ControlError, "STEPSCOPE_OPTIONS.keep_last=3", "schedule", "window", "stepscope.trace()"):
        ms.Profiler(output_path=str(tmp_path / "out"))
    assert list(tmp_path.rglob("*_ms")) == []
