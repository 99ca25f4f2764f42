"""torch has room for one profiler in a thread, or for one that records all: the program's own goes first; our loss is reported."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.basics import ROOT
from tests.support.launch import run_to_end
from tests.support.operators import environment

pytestmark = pytest.mark.needs("torch")

PROGRAM = ROOT / "tests" / "support" / "programs" / "torch_own_profilers.py"
REGIONS = PROGRAM.with_name("torch_regions.py")
AROUND = {"sin": 1, "cos": 1}


SAME = ["inside", "raw", "scheduled", "refused", "before", "outlives", "two"]
KINETO = [*SAME, "elsewhere", "elsewhere_long", "elsewhere_before"]


def results_of(program: Path, directory: str, before: tuple[str, ...], *cases: str) -> list[dict[str, Any]]:
    """Results of a program's cases, in a process of its own, as torch may crash."""
    command = [sys.executable, str(program), *before, directory, *cases]
    ended = run_to_end(command, environment=environment(PYTHONPATH=str(ROOT)), server="torch")
    assert ended.returncode == 0, (ended.returncode, ended.stderr[-4000:])
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


@cache
def results(mode: str) -> dict[str, Any]:
    """All cases of a mode."""
    with tempfile.TemporaryDirectory() as directory:
        lines = results_of(PROGRAM, directory, (mode,), *(KINETO if mode == "kineto" else SAME))
    return {line["case"]: line for line in lines}


@pytest.mark.parametrize("mode", ["stream", "kineto"])
@pytest.mark.parametrize(
    ("case", "recorded"),
    [
        ("inside", AROUND),
        ("raw", AROUND),
        ("scheduled", AROUND),
        ("refused", AROUND),
        ("before", {"sin": 0, "cos": 1}),
        ("outlives", {"sin": 0, "cos": 1}),
        ("two", {"sin": 1, "cos": 1, "exp": 2}),
    ],
)
def test_the_programs_own_profilers_go_first(mode: str, case: str, recorded: dict[str, int]) -> None:
    """They see all that is theirs; ours has everything at other times, and says for how long it has nothing, and why."""
    outcome = results(mode)[case]
    assert {name: outcome["names"].get(name, 0) for name in recorded} == recorded
    report = outcome["report"]
    assert "dropped   nothing\n" not in report and "accounts  balanced\n" not in report, report
    assert "note      torch: operators of" in report
    assert "why       window 0: incomplete: 'torch' has nothing of" in report
    assert "the program's own torch profiler was on" in report


@pytest.mark.parametrize(
    ("case", "recorded", "missing"),
    [
        ("elsewhere", {"sin": 3, "cos": 3}, False),
        ("elsewhere_long", {"sin": 1, "cos": 1}, True),
        ("elsewhere_before", {"sin": 1, "cos": 1}, True),
    ],
)
def test_kineto_is_used_on_another_thread(case: str, recorded: dict[str, int], missing: bool, tmp_path: Path) -> None:
    """A process has one recording of kineto. The program's is whole; ours is whole if it outlasts that."""
    outcome = results("kineto")[case]
    assert {name: outcome["names"].get(name, 0) for name in recorded} == recorded
    assert ("missing   torch: " in outcome["report"]) is missing
    assert ("dropped   nothing\n" in outcome["report"]) is not missing


@cache
def results_of_regions(mode: str) -> dict[str, str]:
    """The log and the report of each case, if the program goes on to its end, as it does without stepscope."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(REGIONS), mode, directory, *MISSING]
        ended = run_to_end(command, environment=environment(PYTHONPATH=str(ROOT)), server="torch")
    assert ended.returncode == 0 and "the program ended" in ended.stdout, (ended.returncode, ended.stdout[-200:])
    cases = (part.partition("\n") for part in ended.stdout.split("case ")[1:])
    return {name: text for name, _, text in cases}


MISSING = {
    "stops_inside": True,
    "nested": True,
    "starts_inside": True,
    "opened_inside": True,
    "closure": True,
    "in_operator": True,
    "hooks": True,
    "packs": True,
    "windows": False,
    "scripted": False,
    "compiled": False,
}
"""By case, whether something is missing of ours."""


@pytest.mark.parametrize("mode", ["stream", "kineto"])
@pytest.mark.parametrize("case", MISSING)
def test_a_profiler_of_torch_ends_while_a_region_is_open(mode: str, case: str) -> None:
    """torch does not crash, and missing events of ours are reported."""
    outcome = results_of_regions(mode)[case]
    # Where torch calls the program from an operator, a recording of kineto goes on, and the program's profiler is empty.
    stands_in = mode == "kineto" and case in ("hooks", "packs")
    assert ("began inside of an operator" in outcome) is (stands_in and case == "hooks"), "once in a process"
    assert ("the program's own torch profiler was on" in outcome) is (MISSING[case] and not stands_in), outcome


ALL_THREADS = PROGRAM.with_name("all_threads.py")
OPERATORS = [f"aten::{name}" for name in ("exp2", "atan", "tan")]
WHOLE = {
    "a live one ends inside": "A+L A. B+G A. B. A-L A. B. B-G A. B.",
    "a live one ends outside": "A+L A. B+G A. B. B-G A. B. A-L A.",
    "a live one and a backward pass": "A+L Ab B+G Ab Bb A-L Ab B-G Ab",
    "a live one in torch's own": "A+L A. B+g A. B. A-L A. B. B-g A. B.",
    "a live one inside of torch's own": "A+g A. B+L A. B. B-L A. B. A-g",
    "three threads": "A+L A. B+G A. B. A-L A. C+k C. C-k A. B-G",
}
BROKEN = {
    "torch's own inside": ("A+G A. B+k A. B. B-k A. B. A-G", OPERATORS[1:3]),
    "torch's own ends outside": ("A+G A. B+k A. A-G B. B-k", OPERATORS[1:2]),
    "emit_itt inside": ("A+G A. B+l A. B. B-l A. B. A-G", OPERATORS[1:2]),
    "torch's own with all threads": ("A+K A. B+g A. A-K A. B. B-g", OPERATORS[:2]),
}


@cache
def outcomes() -> dict[str, Any]:
    """The results of the profiles of each case."""
    with tempfile.TemporaryDirectory() as directory:
        lines = results_of(ALL_THREADS, directory, (), *WHOLE.values(), *(case for case, _ in BROKEN.values()))
    return {line["case"]: line["profiles"] for line in lines}


@pytest.mark.parametrize("case", WHOLE.values(), ids=list(WHOLE))
def test_each_has_all_that_is_its_own(case: str) -> None:
    """Once, whoever ends first."""
    for kind, found in outcomes()[case].items():
        broken = kind == "G" and "+k" in case
        assert bool(found["lost"]) is broken and ("missing" in found["notes"]) is broken, kind
        assert found["twice"] == [], kind


@pytest.mark.parametrize(("case", "lost"), BROKEN.values(), ids=list(BROKEN))
def test_the_programs_own_profilers_go_first_on_all_threads(case: str, lost: list[str]) -> None:
    """They are whole; ours has what was before and after, or says for how long it has nothing."""
    for kind, found in outcomes()[case].items():
        assert found["lost"] == (lost if kind in "GK" else []) and found["twice"] == [], kind
        assert ("missing" in found["notes"]) is (kind in "GK"), kind
