"""`stepscope doctor`: says what can be recorded, by recording."""

from __future__ import annotations

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.support.basics import require
from tests.support.commands import on_terminal, python, stepscope
from tests.support.nvml import build

KILLED = """
import os, signal
import stepscope as sc
with sc.trace(output_dir="killed"), sc.span("work"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
NO_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
os.execv(sys.executable, [sys.executable, "-m", "stepscope", "doctor", "--json"])
"""
METADATA = """Metadata-Version: 2.4
Name: stepscope
Version: 0.1.0
Requires-Dist: msgspec>=0.20
Requires-Dist: no-such-package[fast]>=2; extra == "one"
Requires-Dist: numpy>=1; extra == "one"
Requires-Dist: stepscope[one]; extra == "two"
Requires-Dist: numpy>=1; extra == "three"
Requires-Dist: no-such-tool; extra == "dev"
"""


def without_torch(directory: Path) -> dict[str, str]:
    """The environment of programs in which torch, which takes seconds to import, raises."""
    place = directory / "site"
    place.mkdir(exist_ok=True)
    # Packages may print lines of their own.
    (place / "torch.py").write_text("print('{}')\nraise ImportError('no torch here')")
    return {"PYTHONPATH": str(place)}


def diagnosis(directory: Path, env: dict[str, str]) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the checks by their names."""
    done = stepscope("doctor", "--json", cwd=directory, env=env)
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["records"] is (done.returncode == 0)
    return done.returncode, {check["name"]: check for check in report["checks"]}


def test_doctor_records(tmp_path: Path) -> None:
    """A span and an operator of torch are recorded in a process of its own; nothing is left where it was called."""
    require("torch")
    code, checks = diagnosis(tmp_path, {})
    assert code == 0 and checks["recording"]["state"] == "ok"
    assert version("torch") in checks["torch"]["text"] and "stream mode" in checks["torch"]["text"]
    assert str(tmp_path / "stepscope_runs") in checks["runs"]["text"] and not list(tmp_path.iterdir())
    assert {"stepscope", "environment", "/dev/shm", "libzstd", "NVIDIA devices", "processor counters"} < checks.keys()


def test_a_line_for_each_check(tmp_path: Path) -> None:
    """Without a terminal there are no colours and no columns, and each line has what helps."""
    done = stepscope("doctor", cwd=tmp_path, env={**without_torch(tmp_path), "STEPSCOPE_OPTIONS": '{"enabled": false}'})
    lines = done.stdout.splitlines()
    assert len(lines) > 10 and all(line.split()[0] in ("ok", "limited", "no") for line in lines)
    assert "\x1b" not in done.stdout
    (environment,) = [line for line in lines if " environment: " in line]
    assert any(line.startswith("no ") and "no torch here" in line for line in lines)
    assert environment.startswith("limited ") and environment.endswith("; unset it: profilers stay off")


def test_a_terminal_gets_marks_and_whole_commands(tmp_path: Path) -> None:
    """A command that helps stands on a line of its own, or on several, and is not cut."""
    lines = on_terminal("doctor", width=60, cwd=tmp_path, env={**without_torch(tmp_path), "STEPSCOPE_SIGNALS": "none"})
    text = "\n".join(lines)
    assert "✓" in text and "✗" in text and "\x1b[32m" in text and "…" not in text
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) <= 60


@pytest.mark.parametrize(
    ("variables", "check", "text"),
    [
        ({"STEPSCOPE_OPTIONS": '{"nam": "x"}'}, "environment", "did you mean 'name'?"),
        ({"STEPSCOPE_SIGNALS": "stakcs"}, "environment", "did you mean 'stacks'?"),
        ({"TMPDIR": "/nowhere", "HOME": "/nowhere"}, "recording", ""),
    ],
)
def test_variables(variables: dict[str, str], check: str, text: str, tmp_path: Path) -> None:
    """A variable that cannot be followed keeps every profiler from starting; others do no harm."""
    code, checks = diagnosis(tmp_path, {**without_torch(tmp_path), **variables})
    assert code == (1 if text else 0)
    assert text in checks[check]["text"] and checks[check]["state"] == ("no" if text else "ok")


def test_a_machine_that_records_nothing(tmp_path: Path) -> None:
    """Where no file can be written, the exit code and the first lines say so."""
    done = python("-c", NO_FILES, cwd=tmp_path, env=without_torch(tmp_path), server=None)
    report = json.loads(done.stdout)
    assert (done.returncode, report["records"]) == (1, False), done.stderr
    (recording,) = [check for check in report["checks"] if check["name"] == "recording"]
    assert recording["state"] == "no" and recording["text"]


def test_runs_that_were_killed(tmp_path: Path) -> None:
    """The doctor names each directory once, and the command that brings the runs back."""
    for _ in range(2):
        python("-c", KILLED, cwd=tmp_path, server=None)
    env = without_torch(tmp_path)
    done = stepscope("doctor", "--json", cwd=tmp_path, env=env)
    cures = [check["cure"] for check in json.loads(done.stdout)["checks"] if check["name"] == "killed run"]
    assert cures.count("stepscope recover --remove-session killed") == 1
    assert stepscope("recover", "--remove-session", "killed", cwd=tmp_path).returncode == 0
    assert "recover --remove-session killed" not in stepscope("doctor", cwd=tmp_path, env=env).stdout


def test_extras_are_those_of_the_package(tmp_path: Path) -> None:
    """Which there are, and what they need, is in the metadata; extras of extras count, those of developers do not."""
    place = tmp_path / "site" / "stepscope-0.1.0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(METADATA)
    _, checks = diagnosis(tmp_path, without_torch(tmp_path))
    for extra in ("one", "two"):
        assert checks[f"extra {extra}"]["text"] == "missing: no-such-package>=2"
        assert checks[f"extra {extra}"]["cure"] == f'pip install "stepscope[{extra}]"'
    assert checks["extras"]["text"] == "installed: three" and "extra dev" not in checks


def test_a_driver_of_devices(tmp_path: Path) -> None:
    """Where NVIDIA's libraries answer, the number of devices is reported."""
    shutil.copy(build(tmp_path), tmp_path / "libcuda.so.1")
    _, checks = diagnosis(tmp_path, {**without_torch(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)})
    assert checks["NVIDIA devices"]["state"] == "ok" and "2 devices" in checks["NVIDIA devices"]["text"]
