"""File systems without locks: what needs one is refused and says why; what only would like one goes on."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.basics import ROOT
from tests.support.messages import check_messages
from tests.support.native import COMPILER, require_compiler

SOURCE = ROOT / "tests" / "support" / "programs" / "no_locks.c"


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_compiler()
    library = tmp_path_factory.mktemp("preload") / "no_locks.so"
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def environment(preload: Path, shared: Path) -> dict[str, str]:
    shared.mkdir(exist_ok=True)
    return {
        **os.environ,
        "LD_PRELOAD": str(preload),
        "SHARED": str(shared.resolve()),
        "LOCK_ERROR": str(errno.ENOSYS),
        "STEPSCOPE_JOB": "no locks",
    }


def test_a_collector_that_cannot_lock_its_directory(preload: Path, tmp_path: Path) -> None:
    """It does not start, as two would write into each other's files; the sentence names the directory."""
    env = environment(preload, tmp_path / "shared")
    command = [sys.executable, "-m", "stepscope", "collect", "--dir", str(tmp_path / "shared"), "--port", "0"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and check_messages(ended.stderr, "shared/lock")


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
