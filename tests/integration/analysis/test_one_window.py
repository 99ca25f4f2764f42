"""One window of a run: listed without its events, and read by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.page.render import report_html
from stepscope.analysis.recording import load
from stepscope.runtime.errors import NoWindowError
from stepscope.runtime.windows.window import which_windows
from tests.support.basics import require
from tests.support.commands import stepscope
from tests.support.torch_trace import loop, rows, save


def run_of_spans(place: Path) -> Path:
    """Three windows of 25 steps, each with spans of a name of its own."""
    with sc.trace(schedule=sc.schedule(wait=5, warmup=0, active=25, repeat=3), output_dir=place) as profiler:
        for step in range(90):
            with sc.span(f"part {step // 30}"):
                pass
            profiler.step()
    return place


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three windows."""
    return run_of_spans(tmp_path / "run")


def test_windows_are_listed(run: Path) -> None:
    """With their times and steps, for people and for programs."""
    done = stepscope("windows", run, cwd=run)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["window", "begins", "lasts", "steps", "events", "dropped"] and len(lines) == 3
    assert "35 to 59" in lines[1] and "incomplete" not in done.stdout
    told = json.loads(stepscope("windows", run, "--json", cwd=run).stdout)
    assert [(each["window"], each["first_step"], each["last_step"]) for each in told] == [
        (0, 5, 29),
        (1, 35, 59),
        (2, 65, 89),
    ]
    assert all(each["complete"] and each["events"] >= 50 and each["seconds"] > 0 for each in told)


def test_one_window_is_judged(run: Path) -> None:
    """Nothing of another one is in the answer, the page or the arrays."""
    recording = load(run)
    recording.select(1)
    (rank,) = recording.ranks
    assert list(rank.windows) == [1] and rank.steps["step"].tolist() == list(range(35, 60))
    names = set(rank.names(rank.events()["name"]))
    assert "part 1" in names and not {"part 0", "part 2"} & names
    statistics = explain(run, 2).ranks[0].statistics
    assert statistics is not None and statistics.steps == 25
    assert stepscope("explain", run, "--window", "0", cwd=run).stdout != stepscope("explain", run, cwd=run).stdout
    assert "part 0" not in report_html(run, 1)


def test_a_window_that_is_not_there(run: Path) -> None:
    """The error says which there are."""
    with pytest.raises(NoWindowError, match="has no window 7; it has 3 windows, from 0 to 2"):
        explain(run, 7)
    for command in (("explain", run), ("report", run, "-o", run / "page.html")):
        done = stepscope(*command, "--window", "7", cwd=run)
        assert done.returncode == 4 and "from 0 to 2" in done.stderr


def test_cycles_of_torchs_profiler_are_windows(tmp_path: Path) -> None:
    """Their events say when they were."""
    save(tmp_path / "a.pt.trace.json", [*rows(), *loop()])
    told = json.loads(stepscope("windows", tmp_path, "--json", cwd=tmp_path).stdout)
    assert [(each["first_step"], each["last_step"]) for each in told] == [(0, 29)] and told[0]["events"] > 60
    assert explain(tmp_path, 0).findings[0].id == "device-idle"


def test_a_trace_that_stepscope_wrote_is_not_read(run: Path) -> None:
    """Its run is, and the error says from where."""
    assert stepscope("convert", run, run / "trace.json", cwd=run).returncode == 0
    done = stepscope("explain", run / "trace.json", cwd=run)
    assert done.returncode == 1 and f"is read from {run}" in done.stderr


def test_a_trace_that_lies_elsewhere_is_named_for_what_it_is(run: Path, tmp_path: Path) -> None:
    """One of stepscope's, away from its run; and `convert` takes no trace, and names the run beside it."""
    assert stepscope("convert", run, tmp_path / "trace.json", cwd=run).returncode == 0
    done = stepscope("explain", tmp_path / "trace.json", cwd=tmp_path)
    assert done.returncode == 1 and "is a Chrome trace in array form, as stepscope writes them" in done.stderr
    (run / "trace.json").write_bytes((tmp_path / "trace.json").read_bytes())
    done = stepscope("convert", "trace.json", "other.json", cwd=run)
    assert done.returncode == 1 and "is a trace, and not a journal" in done.stderr


def test_which_windows_there_are(run: Path) -> None:
    """`convert` says it as well."""
    done = stepscope("convert", run, "x.json", "--window", "7", cwd=run)
    assert done.returncode == 4 and "has no window 7; it has 3 windows, from 0 to 2" in done.stderr
    assert which_windows([0, 1]) == "it has windows 0 and 1" and which_windows([4]) == "it has only window 4"


def test_step_0_is_said_to_be_startup(tmp_path: Path) -> None:
    """Of a run whose steps an optimizer ends, so that the list agrees with the number of steps in the answer."""
    require("torch")
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(5):\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    done = stepscope("run", "--quiet", "--out", "run", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Step 0 is startup" in stepscope("windows", "run", cwd=tmp_path).stdout
    assert "Step 0" not in stepscope("windows", run_of_spans(tmp_path / "other"), cwd=tmp_path).stdout
