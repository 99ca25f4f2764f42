"""Rules: each is one file, is checked, and stands in the documentation."""

from __future__ import annotations

import re

from stepscope.analysis.rules import RULES_OF_STEPS, RULES_OF_TASKS
from tests.support.basics import ROOT


def test_every_rule_is_checked_and_documented() -> None:
    """Who reads of `memory-grows` finds `memory_grows.py`."""
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8").partition("## Rules\n")[2]
    files = sorted(path.stem for path in (ROOT / "analysis" / "rules").glob("*.py") if path.stem != "__init__")
    assert sorted(name.replace("-", "_") for name in re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == files
    assert sorted(rule.__module__.rpartition(".")[2] for rule in (*RULES_OF_STEPS, *RULES_OF_TASKS)) == files
