"""`stepscope.torch` and torch.profiler: the documentation's programs, with the import as the only difference."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope.torch as ours
from tests.support.messages import refused
from tests.support.operators import cpu, network, torch
from tests.support.torch_programs import PROGRAMS

Program = Callable[[Any, Path], Any]


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Work that torch does once only is done."""
    network()(torch.randn(4, 1, 8, 8)).sum().backward()


def run(program: Program, module: Any, directory: Path) -> Any:
    """Runs a program; what torch warns of is its own affair."""
    directory.mkdir()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        if module is not ours:
            warnings.simplefilter("ignore")
        prof = program(module, directory)
    if module is ours:
        prof.raise_errors()
    return prof


def calls(averages: Any, frames: set[str]) -> dict[str, int]:
    """Calls of each operator and annotation."""
    return {row.key: row.count for row in averages if row.key not in frames}


def functions(events: Any) -> set[str]:
    """Names of Python functions, which are not the same where other profilers' own run."""
    return {event.name for event in events if event.is_python_function}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Callable[[Program], tuple[Any, Any]]]:
    """Runs a program here and there."""

    def both(program: Program) -> tuple[Any, Any]:
        return run(program, ours, tmp_path / "ours"), run(program, torch.profiler, tmp_path / "theirs")

    yield both


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_documented_programs(
    program: Program, pair: Callable[[Program], tuple[Any, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each runs as it is; its operators, their calls and the columns of its tables are those of torch's own run."""
    mine, theirs = pair(program)
    hidden = functions(mine.events()) | functions(theirs.events())
    assert calls(mine.key_averages(), hidden) == calls(theirs.key_averages(), hidden)
    assert mine.step_num == theirs.step_num
    headings = [line.split("  ") for line in capsys.readouterr().out.splitlines() if line.strip().startswith("Name ")]
    half = len(headings) // 2
    assert [[name.strip() for name in line if name] for line in headings[:half]] == [
        [name.strip() for name in line if name] for line in headings[half:]
    ]


def test_attributes_that_programs_read(tmp_path: Path) -> None:
    """Events and averages are objects of torch's own classes, with parents and children."""
    util = torch.autograd.profiler_util
    with ours.profile(activities=cpu(), record_shapes=True, output_dir=tmp_path / "run") as prof:
        with ours.record_function("region", "some text"):
            torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3))
    events = prof.events()
    assert isinstance(events, util.EventList) and all(isinstance(event, util.FunctionEvent) for event in events)
    (region,) = (event for event in events if event.name == "region")
    linear = next(event for event in events if event.name == "aten::linear")
    assert linear.cpu_parent is region and linear in region.cpu_children and region.is_user_annotation
    assert linear.input_shapes == [[2, 3], [4, 3], []] and linear.count == 1 and linear.key == linear.name
    assert 0 <= region.self_cpu_time_total < region.cpu_time_total
    assert region.time_range.start <= linear.time_range.start < linear.time_range.end <= region.time_range.end
    (average,) = (row for row in prof.key_averages() if row.key == "aten::linear")
    assert isinstance(average, util.FunctionEventAvg)
    assert average.cpu_time == average.cpu_time_total / average.count
    assert prof.key_averages().total_average().count == len(events)
    assert prof.profiler.self_cpu_time_total == pytest.approx(events.self_cpu_time_total, rel=0.001)
    assert prof.profiler.function_events == events
    assert prof.profiler.total_average().count == len(events) and "aten::linear" in prof.profiler.table()
    assert prof.activities == set(cpu()) and prof.current_action.name == "RECORD" and prof.record_shapes
    assert "some text" in json.dumps(exported(prof, tmp_path)["traceEvents"])


def exported(prof: Any, directory: Path) -> dict[str, Any]:
    """A profile's trace."""
    prof.export_chrome_trace(directory / "exported.json")
    trace: dict[str, Any] = json.loads((directory / "exported.json").read_text())
    return trace


def test_importing_needs_no_torch(tmp_path: Path) -> None:
    """Without torch regions are recorded and exported; what needs torch says so."""
    program = """
import sys, warnings
sys.modules["torch"] = None
from stepscope.torch import *
from stepscope.torch import ProfilerActivity, profile, record_function, supported_activities
from stepscope.runtime.errors import BackendError
assert supported_activities() == {ProfilerActivity.CPU}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        with record_function("region"):
            pass
assert "torch is not installed" in str(caught[0].message)
prof.export_chrome_trace("trace.json")
try:
    prof.key_averages()
except BackendError as error:
    print(error)
"""
    program = program.replace("from stepscope.torch import *\n", "")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "torch is not installed" in done.stdout
    assert "region" in {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}


def test_public_names() -> None:
    """Everything in `__all__` can be had; importing the module imports no torch."""
    assert list(ours.__all__) == sorted(ours.__all__)
    for name in ours.__all__:
        assert getattr(ours, name) is not None
    assert ours.ProfilerActivity is torch.profiler.ProfilerActivity
    assert ours.supported_activities() == torch.profiler.supported_activities()
    with refused(AttributeError, "stepscope.torch", "profil"):
        getattr(ours, "profil")  # noqa: B009
    lazy = "import sys, stepscope.torch; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", lazy], check=True)
