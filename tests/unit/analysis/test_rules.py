"""Rules: each is one file, has a name of its own, and stands in the documentation."""

from __future__ import annotations

import sys

from stepscope.analysis.rules import RULES
from tests.support.basics import ROOT


def test_every_rule_is_documented() -> None:
    """With what it finds and needs, its threshold, and what would prove it wrong."""
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    assert len({rule.id for rule in RULES}) == len(RULES)
    rows = {
        f"| `{rule.id}` | {rule.finds} | {rule.threshold} | {rule.needs} | {rule.wrong_if} |\n": rule for rule in RULES
    }
    assert [rule.id for row, rule in rows.items() if row not in page] == []


def test_every_rule_is_the_file_of_its_name() -> None:
    """So that who reads `[memory-grows]` finds `memory_grows.py`."""
    files = {path.stem for path in (ROOT / "analysis" / "rules").glob("*.py")} - {"__init__"}
    assert {rule.id.replace("-", "_") for rule in RULES} == files
    for rule in RULES:
        module = sys.modules[f"stepscope.analysis.rules.{rule.id.replace('-', '_')}"]
        assert vars(module)["RULE"] is rule
