"""`STEPSCOPE_OPTIONS`: what the environment says of every profiler that a program makes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.basics import ROOT
from tests.support.launch import run_to_end

PROGRAM = """
import sys, time
import stepscope
windows = []
with stepscope.trace(output_dir=sys.argv[1], on_trace_ready=windows.append, options=stepscope.Options(journal=False)) as p:
    for _ in range(20):
        with stepscope.span("work"):
            pass
        p.step()
print([[step.number for step in window.steps] for window in windows], p.name, str(p.output.path).split("/")[-1])
print(*[(window.metadata.get("cluster"), window.metadata.get("armed", {}).get("detail")) for window in windows])
"""


def environment(tmp_path: Path, options: str) -> Any:
    """Runs a program that knows nothing of it with STEPSCOPE_OPTIONS."""
    variables = {**os.environ, "STEPSCOPE_OPTIONS": options, "PYTHONPATH": str(ROOT)}
    return run_to_end([sys.executable, "-c", PROGRAM, str(tmp_path / "run")], environment=variables, cwd=tmp_path)


@pytest.mark.checklist("B6", "B7", "B8")
@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ("", [list(range(20))]),
        ("{}", [list(range(20))]),
        ('{"schedule": {"wait": 1, "active": 2, "repeat": 2}}', [[1, 2], [4, 5]]),
        ('{"window": {"start_step": 3, "stop_step": 4}}', [[3, 4]]),
        ('{"enabled": false}', []),
        ('{"enabled": false, "window": {"steps": 3}}', []),
        ('{"control": {"signal": true}}', []),
        ('{"options": {"drain_interval": 0.01}}', [list(range(20))]),
    ],
)
def test_options_in_the_environment(tmp_path: Path, options: str, windows: list[list[int]]) -> None:
    """A program that calls trace() records what the environment says."""
    ended = environment(tmp_path, options)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == f"{windows} stepscope run"


@pytest.mark.checklist("B6")
def test_name_place_and_facts_from_the_environment(tmp_path: Path) -> None:
    """They take the place of what the program says."""
    window = '{"steps": 1, "detail": {"every": 3}}'
    text = f'{{"name": "env", "output_dir": "elsewhere", "metadata": {{"cluster": "c1"}}, "window": {window}}}'
    ended = environment(tmp_path, text)
    assert ended.stdout.splitlines() == ["[[0]] env elsewhere", "('c1', 'every=3')"], ended.stderr
    assert (tmp_path / "elsewhere").is_dir()


@pytest.mark.checklist("B6")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{", "STEPSCOPE_OPTIONS cannot be followed: line 1, column 2: Input data was truncated"),
        ('{"scheduel": {}}', "unknown field 'scheduel'; did you mean 'schedule'?"),
        ('{"keep_last": 3, "window": {"steps": 1}}', "keep_last and window exclude each other"),
        (
            '{"window": {"steps": 1, "detail": {"evry": 3}}}',
            "window.detail: unknown field 'evry'; did you mean 'every'?",
        ),
        ('{"schedule": {"active": 0}}', "active must be a whole number, 1 or more, got 0"),
    ],
)
def test_options_that_cannot_be_followed(tmp_path: Path, options: str, message: str) -> None:
    """The program is told where it calls trace(), before anything began."""
    ended = environment(tmp_path, options)
    assert ended.returncode == 1
    assert message in ended.stderr.splitlines()[-1]
    assert "ControlError" in ended.stderr.splitlines()[-1]


@pytest.mark.checklist("B6")
def test_a_program_without_stepscope_is_controlled_by_the_environment(tmp_path: Path) -> None:
    """`stepscope run` and STEPSCOPE_OPTIONS: no line of the program changes."""
    (tmp_path / "train.py").write_text("print('trained')")
    variables = {**os.environ, "STEPSCOPE_OPTIONS": '{"name": "env"}', "PYTHONPATH": str(ROOT)}
    command = "import sys; from stepscope.cli.main import main; sys.exit(main())"
    arguments = ["run", "--quiet", "--no-torch", "--step-on", "none", "--out", "out", "train.py"]
    ended = run_to_end([sys.executable, "-c", command, *arguments], environment=variables, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "trained\n"), ended.stderr
    assert "env" in next((tmp_path / "out").glob("trace*")).read_text()
