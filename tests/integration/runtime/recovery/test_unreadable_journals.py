"""A journal that may not be read: every command says so, and none says that there is no journal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.compat.mindspore.output_layout import RAW
from tests.support.basics import ROOT
from tests.support.launch import run_to_end

OFFLINE = """
import sys
from pathlib import Path
from stepscope.mindspore import Profiler
analysis = Profiler.offline_analyse(Path(sys.argv[1]).parent, data_simplification=False)
print(*analysis.rejected, file=sys.stderr)
sys.exit(not analysis.complete)
"""
COMMAND = """
import sys
from stepscope.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
WITHOUT_CAPABILITIES = """
import ctypes
version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
assert ctypes.CDLL(None).capset(version_3, (ctypes.c_uint32 * 6)()) == 0
"""
"""Then root, too, can read only what the rights of a file allow."""


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A run's directory in the place of a window of MindSpore; nobody can read its journal."""
    window = tmp_path / "host_1_2_cpu_ms" / RAW
    with sc.trace(output_dir=window), sc.span("work"):
        pass
    (window / "journal").chmod(0)
    return window


@pytest.mark.parametrize("what", ["offline", "convert", "recover", "merge"])
def test_an_unreadable_journal(what: str, raw: Path) -> None:
    """The text has the file and the reason."""
    program, arguments = {
        "offline": (OFFLINE, [str(raw)]),
        "convert": (COMMAND, ["convert", str(raw), str(raw / "trace.json")]),
        "recover": (COMMAND, ["recover", str(raw)]),
        "merge": (COMMAND, ["merge", str(raw), "--out", str(raw / "trace.json")]),
    }[what]
    done = run_to_end([sys.executable, "-c", WITHOUT_CAPABILITIES + program, *arguments], timeout=60, cwd=ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Permission denied" in done.stderr and str(raw / "journal") in done.stderr
    for untrue in ("no journal:", "no journal,", "has no journal", "Errno"):
        assert untrue not in done.stderr, done.stderr
