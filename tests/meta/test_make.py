"""Targets of `make` on a machine with nothing but a Python yet. Nothing is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.basics import ROOT, missing


def planned(target: str, venv: Path, path: Path | None = None) -> str:
    """The commands that a target would run with its environment in a directory, and programs found in another one."""
    make = shutil.which("make") or missing("make", "Install it (on Debian: apt-get install make).")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS")}
    variables = environment if path is None else {**environment, "PATH": str(path)}
    return subprocess.run(
        [make, "--dry-run", f"VENV={venv}", target],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def interpreters(directory: Path, runs: dict[str, bool]) -> Path:
    """A directory of programs with these names, of which some run and others do not, as pyenv's shims."""
    directory.mkdir()
    for name, works in runs.items():
        program = directory / name
        program.write_text(f"#!/bin/sh\nexit {0 if works else 127}\n")
        program.chmod(0o755)
    return directory


def test_the_demo_installs_only_its_own_packages(tmp_path: Path) -> None:
    """torch first and the extra `demo`; what only tests need comes with the tests, into the same environment."""
    demo = planned("demo", tmp_path / "new")
    assert '-e ".[demo]"' in demo and ".[dev]" not in demo
    assert demo.index("install -c constraints.txt torch") < demo.index(".[demo]") < demo.index("bin/stepscope demo")
    tests = planned("test", tmp_path / "new")
    assert '-e ".[dev]"' in tests and ".[demo]" not in tests


@pytest.mark.parametrize("made", [("venv", "torch", "demo"), ("venv", "torch", "dev", "core")], ids=["demo", "dev"])
def test_installed_packages_are_not_installed_again(made: Iterable[str], tmp_path: Path) -> None:
    """After the demo, and where the tests have been run before it."""
    stamps = tmp_path / "stamps"
    stamps.mkdir()
    for name in made:
        (stamps / name).touch()
    assert "pip" not in planned("demo", tmp_path)


@pytest.mark.parametrize(
    ("runs", "chosen"),
    [
        ({"python3.11": True, "python3.12": True}, "python3.11"),
        ({"python3.11": False, "python3.12": True, "python3.13": True}, "python3.12"),
        ({"python3.13": True}, "python3.13"),
        ({}, "python3.11"),
    ],
)
def test_the_first_python_that_runs_is_used(runs: dict[str, bool], chosen: str, tmp_path: Path) -> None:
    """Of those that stepscope is for; where there is none, the shell says which one it has not found."""
    path = interpreters(tmp_path / "bin", runs)
    assert f"{chosen} -m venv {tmp_path / 'new'}" in planned("demo", tmp_path / "new", path)


def test_another_python_than_that_of_the_environment_is_refused(tmp_path: Path) -> None:
    """It would be passed over in silence; the same one is none, nor is any where there is no environment yet."""
    make = shutil.which("make") or missing("make", "Install it (on Debian: apt-get install make).")
    for place, version in (("venv/bin", "3.11"), ("other", "3.12"), ("same", "3.11")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "python").write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / place / "python").chmod(0o755)

    def made(python: str, venv: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "PYTHON": str(tmp_path / python / "python")}
        command = [make, "--dry-run", f"VENV={tmp_path / venv}", "install"]
        return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)

    refused = made("other", "venv")
    assert refused.returncode == 2 and "has Python 3.11" in refused.stderr and "leave PYTHON out" in refused.stderr
    assert made("same", "venv").returncode == 0
    assert made("other", "new").returncode == 0
