"""Tests that call the native core run under the sanitizers, or are excused with a reason."""

from __future__ import annotations

import re

import pytest

from tests.support.basics import ROOT

SCRIPT = (ROOT / "tests" / "stress" / "sanitize.sh").read_text()
CALLS = re.compile(r"\b_core\.(?!pyi\b)\w+|\bNative\(\)")
"""The core by its name, or as native code calls it."""

EXCUSED = {
    "damaged_runs": "encodes one argument, as `arguments` does",
    "signal_masks": "compares the masks of all threads, to which a sanitizer adds its own",
    "profiler": "asks how many tracks there are; all that it records, `span` and `step_counter` do",
    "scripted": "decodes what it recorded, as `arguments` does",
}
"""Tests that call the core and are not tried, and why."""


def nouns(kind: str) -> set[str]:
    """Tests that a sanitizer runs."""
    common, *more = re.findall(r"^ *nouns\+?=\(([^)]*)\)", SCRIPT, re.MULTILINE)
    (address,) = more
    return set(common.split()) | (set(address.split()) if kind == "address" else set())


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_sanitized_tests_exist(kind: str) -> None:
    """A test that was renamed would go missing."""
    assert [noun for noun in sorted(nouns(kind)) if not [*(ROOT / "tests").rglob(f"test_{noun}.py")]] == []


def test_tests_that_call_the_core_are_sanitized_or_excused() -> None:
    """Every test that names the core directly."""
    calling = {path.stem[5:] for path in (ROOT / "tests").rglob("test_*.py") if CALLS.search(path.read_text())}
    assert sorted(calling - nouns("address") - set(EXCUSED)) == []
    assert sorted(set(EXCUSED) & nouns("address")) == [], "tried after all"
    assert sorted(set(EXCUSED) - calling) == [], "calls it no more"


def test_every_part_of_the_core_is_tried() -> None:
    """The copy for the sanitizers has all packages that their tests import."""
    copied = re.search(r"pyproject.toml (.*) tests \|", SCRIPT)
    assert copied is not None
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "docs", "benchmarks"}
    assert packages <= set(copied[1].split())
