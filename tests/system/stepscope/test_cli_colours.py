"""Results in colour on a terminal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import stepscope as sc
from tests.support.commands import on_terminal, stepscope

COMMANDS = {
    "windows": ["windows", "run"],
    "merge": ["merge", "run", "--out", "trace.json"],
    "recover": ["recover", "run/rank0"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_gets_colours(command: str, tmp_path: Path) -> None:
    """Heads of tables and results stand out there; a file gets the text alone."""
    with sc.trace(output_dir=tmp_path / "run", rank=0, world_size=1) as profiler:
        profiler.step()
    journal = tmp_path / "run" / "rank0" / "journal"
    if command == "recover":
        journal.write_bytes(journal.read_bytes()[:-60])
    shutil.copytree(tmp_path / "run", tmp_path / "again" / "run")
    text = "\n".join(on_terminal(*COMMANDS[command], width=200, cwd=tmp_path))
    assert "\x1b[1m" in text or "\x1b[32m" in text
    plain = stepscope(*COMMANDS[command], cwd=tmp_path / "again")
    assert plain.stdout and "\x1b" not in plain.stdout
