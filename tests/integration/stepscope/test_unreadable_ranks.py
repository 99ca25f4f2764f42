"""A rank that cannot be read: every command that reads several goes on with the others, and says so in one way."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.runtime.errors import INCOMPLETE
from tests.support.commands import stepscope
from tests.support.journals import frame_borders
from tests.support.messages import check_messages

COMMANDS = {
    "explain": ["explain", "run"],
    "report": ["report", "run", "-o", "page.html"],
    "windows": ["windows", "run"],
    "merge": ["merge", "run", "--out", "trace.json"],
    "analyse": ["analyse", "run"],
}


def record(directory: Path, ranks: int) -> None:
    """A run of so many ranks."""
    for rank in range(ranks):
        with sc.trace(output_dir=directory / "run", rank=rank, world_size=ranks) as profiler:
            for _ in range(12):
                with sc.span("load"):
                    time.sleep(0.001)
                profiler.step()


@pytest.mark.parametrize("command", COMMANDS)
def test_one_of_two_ranks_cannot_be_read(command: str, tmp_path: Path) -> None:
    """The exit code is 3, and the sentence is the same, also for programs."""
    record(tmp_path, 2)
    whole = stepscope(*COMMANDS[command], cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "run" / "rank1" / "journal").write_bytes(b"no journal")
    done = stepscope(*COMMANDS[command], "--json", cwd=tmp_path)
    assert done.returncode == INCOMPLETE, done.stderr
    assert json.loads(done.stdout)
    check_messages(done.stderr, "1 recording")
    check_messages(done.stderr, "not read", "rank1")


def test_the_answer_of_a_page_for_programs(tmp_path: Path) -> None:
    """`stepscope report --json` has the page's name, and what `explain --json` has."""
    record(tmp_path, 1)
    done = stepscope("report", "run", "--json", "-o", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["written"] == "page.html" and (tmp_path / "page.html").read_text().endswith("</html>")
    answer = json.loads(stepscope("explain", "run", "--json", cwd=tmp_path).stdout)
    assert found["answer"]["verdict"] == answer["verdict"] and found["answer"].keys() == answer.keys()


@pytest.mark.parametrize("command", [*COMMANDS, "convert"])
def test_a_damaged_rank(command: str, tmp_path: Path) -> None:
    """A journal that can be read in part counts like one that cannot, and is named; so it is alone."""
    record(tmp_path, 2)
    journal = tmp_path / "run" / "rank1" / "journal"
    data = bytearray(journal.read_bytes())
    data[frame_borders(bytes(data))[2]] ^= 0xFF
    journal.write_bytes(data)
    words = {**COMMANDS, "convert": ["convert", "run/rank1", "trace.json"]}[command]
    done = stepscope(*words, cwd=tmp_path)
    assert done.returncode == INCOMPLETE, done.stderr
    assert "rank1" in done.stderr.replace("rank 1", "rank1") and "lost frames: 1" in done.stderr, done.stderr
