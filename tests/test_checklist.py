"""Each row of docs/checklist.md names the tests that show it, and those exist and know of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.checklist import OPEN, PAGE, TESTS, marked, page, rows

TEXT = PAGE.read_text(encoding="utf-8")
FOUND = marked(TESTS.glob("test_*.py"))
COUNTS = {"A": 40, "B": 20, "C": 25, "D": 11, "E": 20, "F": 20}
"""Rows by chapter."""


def test_every_row_is_there() -> None:
    """Once, and none that nobody knows."""
    numbers = {chapter: list(range(1, count + 1)) for chapter, count in COUNTS.items()}
    numbers["D"] = [*range(1, 9), 19, 20, 21]
    assert list(rows(TEXT)) == [f"{chapter}{number}" for chapter in numbers for number in numbers[chapter]]


def test_marks_are_of_rows() -> None:
    """A mark with an unknown id would show nothing."""
    assert not FOUND.keys() - rows(TEXT).keys()


def test_the_page_says_what_the_tests_say() -> None:
    """A row whose test was renamed, removed or added is not up to date: `python -m docs.checklist` writes it."""
    assert page(TEXT, FOUND) == TEXT


def test_no_row_is_open() -> None:
    """Each has a test that shows it."""
    assert not [row for row, tests in rows(TEXT).items() if not tests]


def test_a_row_without_a_test_is_found(tmp_path: Path) -> None:
    """It is `open`, and a row that had a test before and has none now differs from the page."""
    source = tmp_path / "test_some.py"
    source.write_text(
        '@pytest.mark.checklist("A1", "A2")\ndef test_it(): ...\nclass TestMore:\n    def test_no(self): ...'
    )
    found = marked([source])
    assert found == {"A1": ["test_some.py::test_it"], "A2": ["test_some.py::test_it"]}
    text = "| A1 | what | here | |\n| A3 | what | here | `test_gone.py::test_gone` |\n"
    made = page(text, found)
    assert rows(made) == {"A1": ["test_some.py::test_it"], "A3": []}
    assert made.count(OPEN) == 1 and page(made, found) == made
    source.write_text("@pytest.mark.checklist(3)\ndef test_it(): ...")
    with pytest.raises(ValueError, match=r"test_some\.py:1: a mark takes ids"):
        marked([source])
