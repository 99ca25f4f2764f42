"""A profile that records all threads beside others on other threads: none ends another one's recording, and what is missing is said."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import cache
from typing import Any

import pytest

from tests.support.basics import ROOT
from tests.support.launch import run_to_end
from tests.support.operators import environment

pytestmark = pytest.mark.needs("torch")

PROGRAM = ROOT / "tests" / "support" / "programs" / "all_threads.py"
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
    """What the program found in all cases, which it runs in a process of its own, as torch may crash."""
    cases = [*WHOLE.values(), *(case for case, _ in BROKEN.values())]
    with tempfile.TemporaryDirectory() as directory:
        where = environment(PYTHONPATH=str(ROOT))
        ended = run_to_end([sys.executable, str(PROGRAM), directory, *cases], environment=where, server="torch")
    assert ended.returncode == 0, (ended.returncode, ended.stderr[-4000:])
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return {line["case"]: line["profiles"] for line in lines}


@pytest.mark.parametrize("case", WHOLE.values(), ids=list(WHOLE))
def test_each_has_all_that_is_its_own(case: str) -> None:
    """Once, whoever ends first."""
    for kind, found in outcomes()[case].items():
        broken = kind == "G" and "+k" in case
        assert bool(found["lost"]) is broken and ("missing" in found["notes"]) is broken, kind
        assert found["twice"] == [], kind


@pytest.mark.parametrize(("case", "lost"), BROKEN.values(), ids=list(BROKEN))
def test_the_programs_own_profilers_go_first(case: str, lost: list[str]) -> None:
    """They are whole; ours has what was before and after, or says for how long it has nothing."""
    for kind, found in outcomes()[case].items():
        assert found["lost"] == (lost if kind in "GK" else []) and found["twice"] == [], kind
        assert ("missing" in found["notes"]) is (kind in "GK"), kind
