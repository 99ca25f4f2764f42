"""File systems without locks: what needs one is refused and says why; what only would like one goes on."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.basics import ROOT
from tests.support.messages import said
from tests.support.native import COMPILER, require_compiler

SOURCE = ROOT / "tests" / "support" / "programs" / "no_locks.c"

RANK = """
import json
import os
import pathlib
import time
import stepscope as sc

shared = pathlib.Path(os.environ["SHARED"])
control = sc.Control(path=str(shared / "control"), poll=0.05, patience=1)
with sc.trace(control=control, output_dir=shared / "out", rank=0, world_size=2) as profiler:
    (shared / "new").write_text(json.dumps({"start_step": "next", "steps": 2, "run_id": "asked"}))
    os.replace(shared / "new", shared / "control" / "stepscope.json")
    end = time.monotonic() + 20
    status = {}
    while "refused" not in status.get("answer", "") and time.monotonic() < end:
        profiler.step()
        time.sleep(0.01)
        status = json.loads((shared / "control" / "stepscope.json.status.json").read_text())
print(status["answer"])
"""


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_compiler()
    library = tmp_path_factory.mktemp("preload") / "no_locks.so"
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def environment(preload: Path, shared: Path, error: int = errno.ENOSYS) -> dict[str, str]:
    shared.mkdir(exist_ok=True)
    return {
        **os.environ,
        "LD_PRELOAD": str(preload),
        "SHARED": str(shared.resolve()),
        "LOCK_ERROR": str(error),
        "STEPSCOPE_JOB": "no locks",
    }


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_ranks_that_cannot_agree(error: int, preload: Path, tmp_path: Path) -> None:
    """The window is refused, and the status file says why and what to do."""
    env = environment(preload, tmp_path / "shared", error)
    ended = subprocess.run([sys.executable, "-c", RANK], env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert f"has no locks ({os.strerror(error)})" in ended.stdout and "agree=False" in ended.stdout


def test_a_collector_that_cannot_lock_its_directory(preload: Path, tmp_path: Path) -> None:
    """It does not start, as two would write into each other's files; the sentence names the directory."""
    env = environment(preload, tmp_path / "shared")
    command = [sys.executable, "-m", "stepscope", "collect", "--dir", str(tmp_path / "shared"), "--port", "0"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and said(ended.stderr, "shared/lock")


def test_a_session_that_cannot_be_locked(preload: Path, tmp_path: Path) -> None:
    """It is recorded, and nothing is left of it."""
    env = environment(preload, tmp_path / "shared")
    place = tmp_path / "shared"
    program = f"""
import stepscope as sc
with sc.trace(output_dir={str(place / "run")!r}, options=sc.Options(session_dir={str(place)!r})) as profiler, sc.span("x"):
    pass
profiler.raise_errors()
print(profiler.summary())
"""
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and "x" in ended.stdout, ended.stderr
    assert [path.name for path in place.iterdir()] == ["run"]
