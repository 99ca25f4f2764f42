"""Imports: what import-linter does not see."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.support.basics import ROOT

PARTS: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["stepscope"]["parts"]

SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py") if path.is_file())


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yields the full name of everything that a file imports anywhere, with its line; `.` leads a relative one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def label(path: Path) -> str:
    """Names a file in a message."""
    return str(path.relative_to(ROOT))


def test_no_part_imports_the_package_stepscope() -> None:
    """import-linter holds the directions between the parts (pyproject.toml); it does not see imports of `stepscope` itself."""
    wrong = [
        f"{label(path)}:{line}: {name}"
        for path in SOURCES
        for name, line in imports(path)
        if name.split(".")[0] == "stepscope" and (name.split(".") + [""])[1] not in {*PARTS, "build"}
    ]
    assert not wrong


def test_the_runtime_needs_only_its_dependencies() -> None:
    """Packages that the runtime imports are declared in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {requirement.partition(">")[0].strip() for requirement in project["dependencies"]}
    known = declared | set(sys.stdlib_module_names) | {"stepscope"}
    runtime = [path for path in SOURCES if path.is_relative_to(ROOT / "runtime")]
    assert runtime
    wrong = [
        f"{label(path)}:{line}: {name}"
        for path in runtime
        for name, line in imports(path)
        if name.split(".")[0] not in known
    ]
    assert not wrong
