"""docs/checklist.md has every row, and what it says of each is shown by tests that pass."""

from __future__ import annotations

from pathlib import Path

from tests.support.messages import refused
from tools.checklist import LIST, PAGE, STATES, TESTS, listing, marked, reasons, rows, unshown

TEXT = PAGE.read_text(encoding="utf-8")
FOUND = marked(TESTS.rglob("test_*.py"))
COUNTS = {"A": 40, "B": 20, "C": 25, "D": 23, "E": 20, "F": 20}
"""Rows by chapter."""


def test_every_row_is_there() -> None:
    """Once, and none that nobody knows."""
    assert list(rows(TEXT)) == [
        f"{chapter}{number + 1}" for chapter, count in COUNTS.items() for number in range(count)
    ]


def test_each_row_has_a_state() -> None:
    """And says what is missing where it is there in part."""
    assert set(rows(TEXT).values()) <= set(STATES)
    assert all(reasons(TEXT).values())


def test_marks_are_of_rows() -> None:
    """A mark with an unknown id would show nothing."""
    assert not FOUND.keys() - rows(TEXT).keys()


def test_present_rows_are_tested() -> None:
    """Also what is there in part."""
    assert unshown(TEXT, FOUND) == []


def test_the_list_of_tests_is_current() -> None:
    """`python -m tools.checklist` writes it."""
    assert LIST.read_text(encoding="utf-8") == listing()


def test_a_row_whose_tests_were_skipped_is_not_shown() -> None:
    """Marks alone show nothing: the tests must have passed (`pytest_sessionfinish`)."""
    page = "| A1 | what | here | ✓ |\n| A2 | what | here | ◐ no more |\n| A3 | what | here | ✗ |\n"
    assert unshown(page, ["A1"]) == ["A2"] and unshown(page, []) == ["A1", "A2"]
    assert reasons(page) == {"A2": "no more"}


def test_marks_that_cannot_be(tmp_path: Path) -> None:
    """The line is named."""
    source = tmp_path / "test_some.py"
    source.write_text(
        '@pytest.mark.checklist("A1", "A2")\ndef test_it(): ...\nclass TestMore:\n    def test_no(self): ...'
    )
    assert marked([source]) == {"A1": ["test_some.py::test_it"], "A2": ["test_some.py::test_it"]}
    source.write_text("@pytest.mark.checklist(3)\ndef test_it(): ...")
    with refused(ValueError, "test_some.py:1", "A1"):
        marked([source])
