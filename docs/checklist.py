"""Writes the tests into the last column of checklist.md. `python -m docs.checklist`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PAGE = Path(__file__).with_name("checklist.md")
TESTS = Path(__file__).parents[1] / "tests"
OPEN = "*open*"
"""What stands in the place of tests while there is none."""
ROW = re.compile(r"^\| (?P<id>[A-F]\d+) \| (?P<what>[^|]+) \| (?P<here>[^|]+) \|(?P<tests>[^|]*)\|$", re.MULTILINE)


def rows(page: str) -> dict[str, list[str]]:
    """The ids of a page, each with the tests that stand there."""
    return {
        match["id"]: [name for name in match["tests"].replace("<br>", " ").replace("`", "").split() if name != OPEN]
        for match in ROW.finditer(page)
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


def page(before: str, found: dict[str, list[str]]) -> str:
    """The page with these tests in its last column."""

    def row(match: re.Match[str]) -> str:
        tests = "<br>".join(f"`{name}`" for name in dict.fromkeys(found.get(match["id"], []))) or OPEN
        return f"| {match['id']} | {match['what']} | {match['here']} | {tests} |"

    return ROW.sub(row, before)


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), marked(TESTS.glob("test_*.py"))), encoding="utf-8")


if __name__ == "__main__":
    main()
