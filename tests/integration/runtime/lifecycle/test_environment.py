"""STEPSCOPE_OPTIONS and the runs of one process: where each of them goes, and what it has no say in."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope
from stepscope import Options, Window
from stepscope.control import WindowRequest
from stepscope.runtime.schedule.schedule import never
from tests.support.armed_loop import work
from tests.support.arming import set_options_in_environment
from tests.support.messages import refused


@pytest.mark.checklist("B6")
def test_runs_of_one_process_have_directories_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment names one; what a program has decided itself stays as it is."""
    set_options_in_environment(monkeypatch, output_dir=str(tmp_path / "said"), schedule={"active": 1})
    paths: list[Path] = []
    recorded: list[int] = []
    for name, fixed in (("one", ()), ("two/three", ()), ("two/three", ()), ("own", ("output_dir", "schedule"))):
        windows: list[Window] = []
        with stepscope.trace(
            name=name, output_dir=tmp_path / "own", schedule=never, on_trace_ready=windows.append, fixed=fixed
        ) as profiler:
            work(profiler, 2)
        paths.append(profiler.output.path)
        recorded.append(len(windows))
    chosen = tmp_path / "said"
    assert paths == [chosen, chosen / "two_three-2", chosen / "two_three-3", tmp_path / "own"]
    assert all((path / "journal").is_file() for path in paths)
    assert recorded == [2, 2, 2, 0]
    with refused(ValueError, "fixed", "outputdir", "STEPSCOPE_OPTIONS", "output_dir"):
        stepscope.trace(fixed=["outputdir"])


@pytest.mark.checklist("B6")
def test_a_window_of_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that comes before the first step number is known gets its steps from there on."""
    set_options_in_environment(monkeypatch, window={"steps": 2})
    windows: list[Window] = []
    with stepscope.trace(
        output_dir=tmp_path, options=Options(journal=False), on_trace_ready=windows.append, start=False
    ) as profiler:
        assert profiler.arm(WindowRequest(start_step=5, steps=1))
        assert profiler.arm(WindowRequest(start_step=104, steps=1))
        profiler.step_num = 100
        profiler.start()
        work(profiler, 8)
    profiler.raise_errors()
    assert [[step.number for step in window.steps] for window in windows] == [[100, 101], [104]]
    assert [(one.state, one.first) for one in profiler.armed()] == [("missed", 5), ("recorded", 100), ("recorded", 104)]
    assert any("start_step 5 is in the past" in note for note in profiler.diagnostics())
