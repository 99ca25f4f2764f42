"""`Profiler`: start, stop, analyse, and what it writes."""

from __future__ import annotations

import asyncio
import json
import resource
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from stepscope import mindspore
from stepscope.compat.mindspore import errors
from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.compat.mindspore.analysis.background import analysis_thread
from stepscope.compat.mindspore.output_layout import RAW
from stepscope.mindspore import (
    AnalysisMode,
    Profiler,
    ProfilerException,
    ProfilerIOException,
    profile,
    schedule,
    tensorboard_trace_handler,
)
from tests.support import mindspore_output as output
from tests.support.messages import check_messages, refused


@pytest.mark.checklist("B1", "B5", "C1", "C7", "C25")
def test_unconditional(tmp_path: Path) -> None:
    """Made before training and analysed after it: everything in between is in the products."""
    profiler = Profiler(output_path=tmp_path)
    for step in range(3):
        output.work(step)
        profiler.step()
    analysis = profiler.analyse()
    assert analysis is not None
    assert analysis.complete
    (directory,) = profiler.directories
    assert directory.parent == tmp_path.resolve()
    assert output.steps_of(directory) == [0, 1, 2]
    assert len(output.operators(directory)) == 12
    page = (directory / PRODUCTS / "report.html").read_text(encoding="utf-8")
    assert "MatMul" in page
    assert "AllReduce" in page
    profiler.raise_errors()


@pytest.mark.checklist("B1")
def test_context_managers(tmp_path: Path) -> None:
    """Both kinds of `with` start and stop; an exception in the body costs nothing of what was recorded."""
    with pytest.raises(KeyError), Profiler(output_path=tmp_path / "sync") as profiler:
        output.work(0)
        profiler.step()
        raise KeyError
    profiler.analyse()
    assert output.steps_of(profiler.directories[0]) == [0]

    async def train() -> profile:
        handler = tensorboard_trace_handler(tmp_path / "async")
        async with profile(on_trace_ready=handler) as recording:
            output.work(0)
            recording.step()
            await asyncio.sleep(0)
        return recording

    assert output.steps_of(asyncio.run(train()).directories[0]) == [0]


@pytest.mark.checklist("B2", "C23", "C24", "D7")
def test_conditional_any_number_of_times(tmp_path: Path) -> None:
    """Started and stopped by steps, more than once: each time is a window of its own with the right steps."""
    profiler = Profiler(output_path=tmp_path, start_profile=False)

    def before(step: int) -> None:
        if step in (2, 6):
            profiler.start()

    def after(step: int) -> None:
        profiler.step()
        if step in (3, 6):
            profiler.stop()

    output.loop(9, before, after)
    profiler.analyse()
    assert [output.steps_of(directory) for directory in profiler.directories] == [[2, 3], [6]]
    assert len(set(profiler.directories)) == 2


@pytest.mark.checklist("C23", "C24", "D7")
def test_calls_that_do_not_fit_raise(tmp_path: Path) -> None:
    """The errors that the documents promise reach the caller."""
    profiler = Profiler(output_path=tmp_path, start_profile=False)
    with refused(RuntimeError, "Profiler.stop()", "start()"):
        profiler.stop()
    profiler.start()
    with refused(RuntimeError, "Profiler.start()", "stop()"):
        profiler.start()
    with refused(RuntimeError, "step_num", "start()"):
        profiler.step_num = 3
    profiler.stop()
    with refused(RuntimeError, "Profiler.stop()", "start()"):
        profiler.stop()
    profiler.analyse()


@pytest.mark.checklist("C23")
def test_start_is_refused_after_an_automatic_start(tmp_path: Path) -> None:
    """`start()` is for those made with `start_profile=False`, whether they run or not."""
    cases: list[dict[str, Any]] = [{}, {"start_profile": True}]
    for options in cases:
        profiler = Profiler(output_path=tmp_path, **options)
        with refused(RuntimeError, "Profiler.start()"):
            profiler.start()
        profiler.stop()
        with refused(RuntimeError, "Profiler.start()", "start_profile=False"):
            profiler.start()


@pytest.mark.checklist("D2", "C20")
def test_analysing_twice(tmp_path: Path) -> None:
    """The same again changes no file and gives the same answer; other arguments make further products."""
    profiler = output.recorded(tmp_path, data_simplification=False)
    first = profiler.analyse()
    (directory,) = profiler.directories
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    assert profiler.analyse() == first
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before
    profiler.analyse(step_list=[1])
    assert output.steps_of(directory) == [0, 1, 2]
    assert output.steps_of(directory, f"{PRODUCTS}-2") == [1]


@pytest.mark.checklist("C20", "F12")
def test_an_analysis_of_chosen_steps(tmp_path: Path) -> None:
    """Steps need not be consecutive, nor in order; wrong ones raise and say what they should be."""
    profiler = output.recorded(tmp_path, steps=6)
    analysis = profiler.analyse(step_list=[4, 0, 2])
    assert analysis is not None
    assert analysis.windows[0].steps == (0, 2, 4)
    (directory,) = profiler.directories
    assert output.steps_of(directory) == [0, 2, 4]
    assert [row["Step"] for row in output.rows(directory, "step_trace_time.csv")] == ["0", "2", "4"]
    wrong: list[tuple[Any, str]] = [
        ("2", "step_list must be a list, got str: '2'"),
        (7, "step_list must be a list, got int: 7"),
        ([4, 1.5], "step_list[1] must be a whole number, got float: 1.5"),
        ([True], "step_list[0] must be a whole number, got bool: True"),
        (["1"], "step_list[0] must be a whole number, got str: '1'"),
        ([[1]], "step_list[0] must be a whole number, got list: [1]"),
    ]
    for steps, place in wrong:
        with refused(TypeError, place):
            profiler.analyse(step_list=steps)
        with refused(TypeError, place):
            Profiler.offline_analyse(tmp_path, step_list=steps)
    with refused(ValueError, "mode", "'sync'", "'async'", "later"):
        profiler.analyse(mode="later")
    with refused(TypeError, "pretty", "True or False", "1"):
        profiler.analyse(pretty=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.checklist("C20", "F12")
def test_steps_that_were_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are named with the nearest that was, whether some of the list are there or none; also offline and behind."""
    profiler = output.recorded(tmp_path, steps=6, data_simplification=False)
    some = profiler.analyse(step_list=[4, 99, -1])
    assert some is not None and some.windows[0].steps == (4,) and some.complete
    sentence = "step_list: -1, 99 were not recorded; the nearest to -1 is 0"
    assert some.rejected == (sentence,) and f"passed over: {sentence}" in str(some) and sentence in caplog.text
    none = Profiler.offline_analyse(tmp_path, step_list=range(90, 100), data_simplification=False)
    (sentence,) = none.rejected
    assert none.windows[0].steps == ()
    assert sentence == "step_list: 90, 91, 92, 93, 94 and 5 more were not recorded; the nearest to 90 is 5"
    caplog.clear()
    assert profiler.analyse(step_list=[7], mode="async") is None
    analysis_thread.wait(60)
    check_messages(caplog.records, "step_list", "7", "5")


@pytest.mark.checklist("C20", "F12")
def test_the_steps_to_analyse_are_no_option(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The message says where they belong instead."""
    Profiler(output_path=tmp_path, start_profile=False, step_list=[1])
    check_messages(caplog.records, "step_list", "analyse()")


@pytest.mark.checklist("A5", "C20", "F13")
def test_analysis_in_the_background(tmp_path: Path) -> None:
    """`async` returns before the work is done, which a thread of this process does; training goes on meanwhile."""
    profiler = output.recorded(tmp_path)
    release = threading.Event()
    ahead: Future[bool] = analysis_thread.submit(lambda: release.wait(60))
    assert profiler.analyse(mode=AnalysisMode.ASYNC_MODE) is None
    (directory,) = profiler.directories
    assert not (directory / PRODUCTS).exists()
    output.work(0)
    release.set()
    assert ahead.result(60)
    analysis = profiler.analyse()
    assert analysis is not None and analysis.complete
    assert output.steps_of(directory) == [0, 1, 2]
    analysis_thread.wait(60)


@pytest.mark.checklist("A9", "D20")
def test_one_failure_stops_nothing_else(tmp_path: Path) -> None:
    """A product that cannot be made is named with the reason; the others are there, and so are the raw data."""
    profiler = output.recorded(tmp_path, steps=2000, profile_framework="time")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))  # the system refuses what is larger
    try:
        analysis = profiler.analyse()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert analysis is not None
    assert not analysis.complete
    status = {product.name: product.problem for product in analysis.windows[0].products}
    assert "File too large" in status["host info"]
    assert [name for name, problem in status.items() if not problem] == [
        "operator tables", "step times", "memory", "flops", "timeline summary", "report",
    ]  # fmt: skip
    assert "host info        FAILED: OSError" in str(analysis)
    (directory,) = profiler.directories
    assert len(output.rows(directory, "step_trace_time.csv")) == 2000
    assert (directory / RAW / "journal").exists()
    assert Profiler.offline_analyse(directory).complete


@pytest.mark.checklist("D1", "D7")
def test_several_at_once(tmp_path: Path) -> None:
    """Two profilers, one within the other and one after: each has what it saw."""
    outer = Profiler(output_path=tmp_path / "outer", start_profile=False)
    outer.start()
    output.work(0)
    inner = Profiler(output_path=tmp_path / "inner")
    output.work(1)
    inner.stop()
    output.work(2)
    outer.stop()
    for profiler in (outer, inner):
        profiler.analyse()
        profiler.raise_errors()
    assert len(output.operators(outer.directories[0])) == 12
    assert len(output.operators(inner.directories[0])) == 4
    assert len(output.operators(recorded_again(tmp_path / "later"))) == 12


def recorded_again(path: Path) -> Path:
    """One more, where others were before."""
    profiler = output.recorded(path)
    profiler.analyse()
    return profiler.directories[0]


@pytest.mark.checklist("D5", "A31")
def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Recordings into one directory have separate files, each for its owner only, and no old file is touched."""
    (tmp_path / "old").write_text("mine")
    first, second = recorded_again(tmp_path), recorded_again(tmp_path)
    assert first != second
    assert first.parent == second.parent == tmp_path.resolve()
    assert (tmp_path / "old").read_text() == "mine"
    for directory in (first, second):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.name.endswith("_cpu_ms")


@pytest.mark.checklist("D5", "D21")
def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    """The place and the reason are in an error of its own family that is an OSError as well."""
    (tmp_path / "file").write_text("")
    profiler = Profiler(output_path=tmp_path / "file", start_profile=False)
    with refused(ProfilerIOException, "file", "output_path") as caught:
        profiler.start()
    assert isinstance(caught.value, OSError)
    assert isinstance(caught.value, ProfilerException)
    assert not profiler.recording


@pytest.mark.checklist("D21")
@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.ProfilerPathErrorException, ValueError),
        (errors.ProfilerIOException, OSError),
        (errors.ProfilerFileNotFoundException, FileNotFoundError),
        (errors.ProfilerDirNotFoundException, errors.ProfilerFileNotFoundException),
        (errors.ProfilerRawFileException, ValueError),
        (errors.NothingToAnalyse, RuntimeError),
        (errors.WireError, ValueError),
    ],
)
def test_kinds_of_errors(kind: type[Exception], base: type[Exception]) -> None:
    """An `except` for the profiler's exceptions catches each, as one for Python's own type does; `stepscope.mindspore` has all."""
    assert issubclass(kind, errors.ProfilerException) and issubclass(kind, base)
    assert getattr(mindspore, kind.__name__) is kind


@pytest.mark.checklist("C18", "C19", "F17")
def test_metadata(tmp_path: Path) -> None:
    """Values of any kind, before and while recording, are in the file of every window from then on."""
    profiler = Profiler(output_path=tmp_path, start_profile=False)
    profiler.add_metadata("before", "yes")
    profiler.add_metadata_json("json", json.dumps({"key1": 1, "key2": 2}))
    for number in range(2):
        profiler.start()
        profiler.add_metadata(f"while {number}", {"lr": 0.1, "sizes": [1, 2], "on": True})
        output.work(number)
        profiler.step()
        profiler.stop()
    profiler.analyse()
    found = [json.loads((each / "profiler_metadata.json").read_text()) for each in profiler.directories]
    values = {"lr": 0.1, "sizes": [1, 2], "on": True}
    assert found[0] == {"before": "yes", "json": {"key1": 1, "key2": 2}, "while 0": values}
    assert found[1] == found[0] | {"while 1": values}
    wrong: list[tuple[Callable[..., object], tuple[Any, Any]]] = [
        (profiler.add_metadata, (1, "x")),
        (profiler.add_metadata_json, ("x", 1)),
    ]
    for call, arguments in wrong:
        with refused(TypeError, "metadata", "1"):
            call(*arguments)


def test_names_are_left_to_subclasses(tmp_path: Path) -> None:
    """A profiler does not show its arguments as attributes."""

    class Named(Profiler):
        schedule = handler = callback = control = metadata = property(lambda self: "mine")

    profiler = Named(output_path=tmp_path, start_profile=False, schedule=schedule(wait=0, active=1))
    assert (profiler.schedule, profiler.metadata, profiler.control) == ("mine", "mine", "mine")
    profiler.start()
    profiler.step()
    profiler.stop()
    assert len(profiler.windows) == 1


@pytest.mark.checklist("C16")
def test_analyse_only(tmp_path: Path) -> None:
    """Analysing needs no recording: nothing is started, and what another one left is analysed."""
    output.recorded(tmp_path / "there")
    profiler = Profiler(output_path=tmp_path / "here", analyse_only=True, rank_id=0, env_enable=False)
    assert not profiler.recording
    analysis = profiler.analyse(offline_path=tmp_path / "there")
    assert analysis is not None
    assert analysis.complete
    assert not (tmp_path / "here").exists()
    output.recorded(tmp_path / "later")
    assert profiler.analyse(offline_path=tmp_path / "later", mode="async") is None
    analysis_thread.wait(60)
    assert output.steps_of(next(output.windows_below(tmp_path / "later"))) == [0, 1, 2]


@pytest.mark.parametrize("make", [lambda: Profiler(schedule=7), lambda: profile(on_trace_ready="x")])
def test_a_handler_that_is_no_function_is_refused(make: Callable[[], object]) -> None:
    """A schedule or handler that is no function is refused by the call that gets it."""
    with refused(TypeError):
        make()
