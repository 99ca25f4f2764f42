"""`STEPSCOPE_OPTIONS`: what the environment says of every profiler that a program makes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.errors import ControlError
from tests.support.armed_loop import QUICK, numbers, work
from tests.support.basics import ROOT
from tests.support.launch import run_to_end

VARIABLE = "STEPSCOPE_OPTIONS"


def trained(directory: Path) -> tuple[sc.Profiler, list[sc.Window]]:
    """A training of 20 steps that knows nothing of the variable: its profiler and windows."""
    windows: list[sc.Window] = []
    with sc.trace(output_dir=directory, on_trace_ready=windows.append, options=QUICK) as profiler:
        work(profiler, 20)
    return profiler, windows


@pytest.mark.checklist("B6", "B7", "B8")
@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ("", [list(range(20))]),
        ('{"options": {"drain_interval": 0.02}}', [list(range(20))]),
        ('{"schedule": {"wait": 1, "active": 2, "repeat": 2}}', [[1, 2], [4, 5]]),
        ('{"window": {"start_step": 3, "stop_step": 4}}', [[3, 4]]),
        ('{"enabled": false, "window": {"steps": 3}}', []),
        ('{"control": {"signal": true}}', []),
    ],
)
def test_options_in_the_environment(
    options: str, recorded: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that calls trace() records what the environment says."""
    monkeypatch.setenv(VARIABLE, options)
    profiler, windows = trained(tmp_path / "run")
    assert numbers(windows) == recorded
    assert (profiler.name, profiler.output.path) == ("stepscope", tmp_path / "run")
    assert profiler.options.drain_interval == (0.02 if "drain" in options else QUICK.drain_interval)


@pytest.mark.checklist("B6")
def test_name_place_and_facts_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the place of what the program says."""
    monkeypatch.chdir(tmp_path)
    window = '{"steps": 1, "detail": {"every": 3}}'
    monkeypatch.setenv(
        VARIABLE,
        f'{{"name": "env", "output_dir": "elsewhere", "metadata": {{"cluster": "c1"}}, "window": {window}}}',
    )
    profiler, windows = trained(tmp_path / "run")
    found: dict[str, Any] = dict(windows[0].metadata)
    assert numbers(windows) == [[0]] and (found["cluster"], found["armed"]["detail"]) == ("c1", "every=3")
    assert profiler.name == "env" and profiler.output.path == tmp_path / "elsewhere" and profiler.output.path.is_dir()


@pytest.mark.checklist("B6")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{", "STEPSCOPE_OPTIONS cannot be followed: line 1, column 2: Input data was truncated"),
        ('{"keep_last": 3, "window": {"steps": 1}}', "keep_last and window exclude each other"),
        (
            '{"window": {"steps": 1, "detail": {"evry": 3}}}',
            "window.detail: unknown field 'evry'; did you mean 'every'?",
        ),
    ],
)
def test_options_that_cannot_be_followed(
    options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised by the call of trace(), before anything began."""
    monkeypatch.setenv(VARIABLE, options)
    with pytest.raises(ControlError) as caught:
        trained(tmp_path / "run")
    assert message in str(caught.value) and not (tmp_path / "run").exists()


@pytest.mark.checklist("B6")
def test_a_program_without_stepscope_is_controlled_by_the_environment(tmp_path: Path) -> None:
    """`stepscope run` and STEPSCOPE_OPTIONS: no line of the program changes."""
    (tmp_path / "train.py").write_text("print('trained')")
    variables = {**os.environ, VARIABLE: '{"name": "env"}', "PYTHONPATH": str(ROOT)}
    command = "import sys; from stepscope.cli.main import main; sys.exit(main())"
    arguments = ["run", "--quiet", "--no-torch", "--step-on", "none", "--out", "out", "train.py"]
    ended = run_to_end([sys.executable, "-c", command, *arguments], environment=variables, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "trained\n"), ended.stderr
    assert "env" in next((tmp_path / "out").glob("trace*")).read_text()
