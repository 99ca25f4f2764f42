"""`stepscope demo`: a real training, and what the real viewers show of it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from stepscope.runtime.control.entry_points.environment import SIGNALS_VARIABLE
from tests.support.basics import ROOT, require
from tests.support.commands import python, stepscope
from tests.support.messages import check_messages
from tests.support.viewers.perfetto import PROBLEMS, query
from tests.support.viewers.tensorboard import average_step, load_run, operators

RECORDED = [*range(8, 48), *range(51, 91)]
"""Steps that the demo's schedule records."""


class Demo:
    """A demo that has run."""

    def __init__(self, directory: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.directory = directory
        self.done = done


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo with all that it can show, in an empty directory."""
    require("torch")
    require("sklearn")
    place = tmp_path_factory.mktemp("demo")
    done = stepscope("demo", cwd=place, env={"COLUMNS": "80", SIGNALS_VARIABLE: "all"})
    assert done.returncode == 0, done.stderr
    (directory,) = (place / "stepscope_runs" / "demo").iterdir()
    return Demo(directory, done)


def test_it_prints_its_plan_and_its_result(demo: Demo) -> None:
    """The plan on standard output, progress on standard error; the network recognises most digits that it has not seen."""
    assert f"-------W{'R' * 39}S--W{'R' * 39}S---" in demo.done.stdout
    assert "4 epochs, 180 steps, loss 0." in demo.done.stderr
    assert "USDT" not in demo.done.stderr
    match = re.search(r"recognises (\d+\.\d)% of 360 digits", demo.done.stdout)
    assert match is not None and float(match[1]) > 90


def test_the_readme_names_the_place_of_the_fault(demo: Demo) -> None:
    """As the answer does in a checkout, where `make demo` runs. The line is that of most samples."""
    (place,) = re.findall(r"Digits\.__getitem__ \(\S+\.py:", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert place in stepscope("explain", demo.directory, cwd=ROOT).stdout


def test_it_prints_commands_that_open_its_files(demo: Demo) -> None:
    """The commands can be pasted, and name what is there."""
    place = demo.directory.parent.parent.parent
    (line,) = re.findall(r"^  TensorBoard  (.*)$", demo.done.stdout, re.MULTILINE)
    *command, flag, logdir = shlex.split(line)
    assert flag == "--logdir"
    assert any((place / logdir).iterdir())
    assert subprocess.run([*command, "--version"], cwd=place, capture_output=True, timeout=100).returncode == 0
    (dragged,) = re.findall(r"view (\S+), or drag it into \S+$", demo.done.stdout, re.MULTILINE)
    assert (place / dragged).stat().st_size > 100_000
    (convert,) = re.findall(r"^  other forms  (.*)$", demo.done.stdout, re.MULTILINE)
    assert subprocess.run(shlex.split(convert), cwd=place, capture_output=True, timeout=100).returncode == 0
    assert (place / "trace.json.gz").exists()


def test_it_ends_with_the_planted_fault(demo: Demo) -> None:
    """With its line, and with the commands that come next, which can be pasted."""
    _, _, end = demo.done.stdout.partition("What is slow")
    lines = (ROOT / "stepscope" / "demo" / "digits.py").read_text().splitlines()
    assert "Input-bound: " in end and "Digits.__getitem__ (" in end
    (number,) = re.findall(r"demo/digits\.py:(\d+)\)", end)
    assert "self._scipy" in lines[int(number) - 1] or "avg_pool2d" in lines[int(number) - 1]
    *_, page, yours = end.splitlines()
    assert " run train.py" in yours
    place = demo.directory.parent.parent.parent
    assert subprocess.run(shlex.split(page), cwd=place, capture_output=True, timeout=100).returncode == 0
    assert "Input-bound" in (place / "report.html").read_text()


def test_the_answer_is_json(tmp_path: Path) -> None:
    """Nothing else is on standard output."""
    require("torch")
    require("sklearn")
    done = stepscope("demo", "--json", "--epochs", "1", cwd=tmp_path)
    result = json.loads(done.stdout)
    answer = result["answer"]
    assert 0 < result["accuracy"] < 0.9 and done.returncode == 1, done.stderr
    assert answer["verdict"]


def test_a_second_demo_keeps_the_first(demo: Demo) -> None:
    """A directory that holds something is left alone."""
    before = sorted(demo.directory.rglob("*"))
    done = stepscope("demo", "--out", demo.directory, cwd=demo.directory)
    assert done.returncode == 1
    check_messages(done.stderr, "--out")
    assert sorted(demo.directory.rglob("*")) == before


def test_tensorboard_loads_it(demo: Demo) -> None:
    """The plugin's own loader finds steps, operators and data loading."""
    run = load_run(demo.directory / "tensorboard")
    views = [view.display_name for view in run.views]
    assert views[:3] == ["Overview", "Operator", "Trace"]
    shown: list[int] = []
    for profile in run.profiles.values():
        shown += [int(row[0]) for row in profile.overview["steps"]["rows"]]
        assert average_step(profile)["DataLoader"] > 0
        found = operators(profile)
        assert found["aten::mkldnn_convolution"]["calls"] == found["aten::convolution_backward"]["calls"] == 80
    assert sorted(shown) == RECORDED


def test_perfetto_loads_it(demo: Demo) -> None:
    """Perfetto reads everything, with the optimizer's steps inside ours."""
    nested = """
    select count(*) as n from slice c join slice p on c.parent_id = p.id
    where c.name = 'Optimizer.step#Adam.step' and p.name glob 'ProfilerStep#*'"""
    problems, steps = query(demo.directory / "trace.json", PROBLEMS, nested)
    assert problems == []
    assert steps == [{"n": 80}]


def test_without_torch_it_says_so(tmp_path: Path) -> None:
    """One line says what to install."""
    hide = (
        "import importlib.util as u, sys; found = u.find_spec; "
        "u.find_spec = lambda name, *a: None if name in ('torch', 'sklearn') else found(name, *a); "
        "from stepscope.cli.main import main; sys.exit(main(['demo']))"
    )
    done = python("-c", hide, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "stepscope demo: torch and sklearn cannot be imported; install them: pip install 'stepscope[demo]'\n"
    )
    assert not list(tmp_path.iterdir())
