"""Rules: each has a name of its own and stands in the documentation."""

from __future__ import annotations

from stepscope.analysis.rules import RULES
from tests.support.basics import ROOT


def test_every_rule_is_documented() -> None:
    """With what it finds, needs, and what would prove it wrong."""
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert [
        rule.id for rule in RULES if f"| `{rule.id}` | {rule.finds} | {rule.needs} | {rule.wrong_if} |\n" not in page
    ] == []
