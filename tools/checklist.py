"""The rows of docs/checklist.md, and the tests that show them: `python -m tools.checklist` writes tests/checklist.json."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "checklist.md"
TESTS = ROOT / "tests"
LIST = TESTS / "checklist.json"
ROW = re.compile(r"^\| (?P<id>[A-F]\d+) \| (?P<what>[^|]+) \| (?P<here>[^|]+) \| (?P<state>[^|]+) \|$", re.MULTILINE)
STATES = ("✓", "◐", "✗", "n/a")


def rows(page: str) -> dict[str, str]:
    """The ids of a page, each with its state: one of `STATES`."""
    return {match["id"]: match["state"].split()[0] for match in ROW.finditer(page)}


def reasons(page: str) -> dict[str, str]:
    """Of the rows that are there in part, what is not."""
    return {
        match["id"]: match["state"].partition("◐")[2].strip() for match in ROW.finditer(page) if "◐" in match["state"]
    }


def marked(files: Iterable[Path]) -> dict[str, list[str]]:
    """The ids that tests are marked with, each with `file::test` of those tests.

    Raises:
        ValueError: if a mark has no id, or one that is no text.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(files):
        for name, node in _tests(ast.parse(path.read_text(encoding="utf-8")).body):
            for mark in _ids(node, path):
                found.setdefault(mark, []).append(f"{path.name}::{name}")
    return found


def _tests(
    body: list[ast.stmt], inside: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield f"{inside}{node.name}", node
            yield from _tests(node.body, f"{inside}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{inside}{node.name}", node


def _ids(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, path: Path) -> Iterator[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.checklist":
            ids = [argument.value for argument in decorator.args if isinstance(argument, ast.Constant)]
            if not ids or len(ids) < len(decorator.args) or not all(isinstance(one, str) for one in ids):
                raise ValueError(f"{path.name}:{decorator.lineno}: a mark takes ids of rows as text, such as 'A1'")
            yield from (str(one) for one in ids)


def listing() -> str:
    """The text of tests/checklist.json."""
    found = marked(TESTS.rglob("test_*.py"))
    listed = {row: list(dict.fromkeys(found.get(row, []))) for row in rows(PAGE.read_text(encoding="utf-8"))}
    return json.dumps(listed, indent=1) + "\n"


def unshown(page: str, passed: Iterable[str]) -> list[str]:
    """Rows that are marked as present, wholly or in part, of which no test has passed.

    Args:
        page: its text.
        passed: ids with which tests that passed are marked.
    """
    return sorted(row for row, state in rows(page).items() if state in "✓◐" and row not in set(passed))


if __name__ == "__main__":
    LIST.write_text(listing(), encoding="utf-8")
