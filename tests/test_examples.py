"""Each example runs as its reader would run it: on its own, in an empty directory, with warnings as errors."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, require

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name: str, directory: Path) -> str:
    """Runs an example; what it printed."""
    # Only ours: what torch warns of is not the example's.
    environment = {**os.environ, "PYTHONWARNINGS": "error:::stepscope,error:::__main__"}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def events(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace in array form."""
    loaded: list[dict[str, Any]] = json.loads(path.read_text())
    return loaded


def names_in(events: list[dict[str, Any]]) -> set[str]:
    """The names of events."""
    return {event["name"] for event in events}


def test_every_example_has_a_test() -> None:
    """An example that nobody runs is out of date sooner or later."""
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES} <= tested


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_stay_short(path: Path) -> None:
    """An example shows one thing on one screen."""
    assert len(path.read_text().splitlines()) <= 50


def test_readme(tmp_path: Path) -> None:
    """The README's programs run as they are printed, and are short."""
    programs: list[str] = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(programs) == 3
    for program in programs:
        assert len(program.splitlines()) <= 25
        if "import torch" in program:
            require("torch")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        assert b"forward" in done.stdout or b"recorded" in done.stdout


def test_links_of_the_documents_lead_somewhere() -> None:
    """A page that was renamed must not leave readers in front of a closed door."""
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} leads to {target}"


def test_quickstart(tmp_path: Path) -> None:
    """Two windows of three steps, in the trace and in the table."""
    said = run("quickstart", tmp_path)
    assert "forward" in said and "dropped   nothing" in said
    steps = {name for name in names_in(events(tmp_path / "trace.json")) if name.startswith("ProfilerStep")}
    assert steps == {f"ProfilerStep#{number}" for number in (4, 5, 6, 9, 10, 11)}


def test_quickstart_async(tmp_path: Path) -> None:
    """Two tasks at a time, in six recorded steps, none of which is cut by the other."""
    said = run("quickstart_async", tmp_path)
    (row,) = (line.split() for line in said.splitlines() if line.startswith("forward"))
    assert row[2] == "12"


def test_torch_training(tmp_path: Path) -> None:
    """Operators and steps arrive in the file for TensorBoard."""
    require("torch")
    said = run("torch_training", tmp_path)
    assert "aten::" in said
    (trace,) = (tmp_path / "run" / "tensorboard").glob("*.pt.trace.json")
    found = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"aten::addmm", "forward", "ProfilerStep#8", "ProfilerStep#12"} <= found


def test_dataloader_workers(tmp_path: Path) -> None:
    """Both workers are processes of the trace."""
    require("torch")
    said = run("dataloader_workers", tmp_path)
    assert "'DataLoader worker 0': 48" in said and "'DataLoader worker 1': 48" in said
    rows = events(tmp_path / "trace.json")
    shown = {event["args"]["name"] for event in rows if event["name"] == "process_name"}
    assert {"DataLoader worker 0", "DataLoader worker 1"} < shown
    assert sum(event["name"] == "read" for event in rows) == 48


def test_callback_export(tmp_path: Path) -> None:
    """The slow window is exported, and that window only is in its file."""
    said = run("callback_export", tmp_path)
    assert "kept slow-1.json.gz" in said
    found = names_in(json.loads(gzip.decompress((tmp_path / "slow-1.json.gz").read_bytes())))
    assert {name for name in found if name.startswith("ProfilerStep")} == {"ProfilerStep#4", "ProfilerStep#5"}


def test_simulated_device(tmp_path: Path) -> None:
    """The late device's kernels are in the window that they belong to."""
    said = run("simulated_device", tmp_path)
    (line,) = (line for line in said.splitlines() if line.startswith("simulated:"))
    assert int(line.split()[1]) > 1000
    assert sum(event.get("cat") == "kernel" for event in events(tmp_path / "trace.json")) > 300


def test_decorators(tmp_path: Path) -> None:
    """Functions, resumed generators and coroutines are spans; flows and instants are beside them."""
    said = run("decorators", tmp_path)
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line[:1].isalpha() and "  " in line}
    assert rows["parse"][1] == rows["send"][1] == "5"
    assert rows["read"][:2] == ["loading", "6"]  # the last resumption ends the generator
    assert {"row", "a row of zeros"} <= names_in(events(tmp_path / "trace.json"))


def test_flight_recorder(tmp_path: Path) -> None:
    """The slow step and the NaN are found, each with the steps before it."""
    said = run("flight_recorder", tmp_path)
    saved = [line for line in said.splitlines() if line.startswith("saved 0")]
    assert any("-step60-slow_step" in line for line in saved)
    assert any("-step101-not_finite" in line or "-step102-not_finite" in line for line in saved)
    assert "counter 'loss' is " in said
