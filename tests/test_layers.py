"""Imports go one way: compat, collector and analysis to exporters and backends, these to the runtime."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

BELOW = {
    "runtime": {"runtime"},
    "backends": {"backends", "runtime"},
    "exporters": {"exporters", "runtime"},
    "collector": {"collector", "exporters", "backends", "runtime"},
    "analysis": {"analysis", "exporters", "backends", "runtime"},
    "compat": {"compat", "trace", "collector", "analysis", "exporters", "backends", "runtime"},
}
"""What each part may import; `trace` is the function of that name. The front door and its command line may import everything."""

COLLECTOR = [
    {"clocks", "page"},
    {"runs"},
    {"files"},
    {"downloads"},
    {"live"},
    {"retention", "archive", "merge", "nats", "orders"},
    {"web"},
]
"""The folders of the collector: each may import those before its own line."""

SOURCES = sorted(
    path for part in BELOW if (ROOT / part).is_dir() for path in (ROOT / part).rglob("*.py") if path.is_file()
)
FRONT = sorted((ROOT / "stepscope").glob("*.py")) + sorted((ROOT / "stepscope" / "cli").rglob("*.py"))


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


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_parts_import_only_what_is_below_them(path: Path) -> None:
    """An import against the direction, or of the front door, would make a cycle sooner or later."""
    allowed = BELOW[path.relative_to(ROOT).parts[0]]
    wrong = [
        f"line {line}: {name}"
        for name, line in imports(path)
        if name.split(".")[0] == "stepscope" and (name.split(".") + [""])[1] not in allowed
    ]
    assert not wrong, f"{label(path)} may import only {', '.join(sorted(allowed))}"


@pytest.mark.parametrize("path", [*SOURCES, *FRONT], ids=label)
def test_one_name_for_each_module(path: Path) -> None:
    """Relative imports and a part's short name would make a second copy of its classes."""
    wrong = [
        f"line {line}: {name}" for name, line in imports(path) if name.startswith(".") or name.split(".")[0] in BELOW
    ]
    assert not wrong


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in (ROOT / "collector").glob("*/__init__.py")))
def test_folders_of_the_collector_import_only_what_is_below_them(folder: str) -> None:
    """So that each can be read without those above it."""
    (level,) = [at for at, folders in enumerate(COLLECTOR) if folder in folders]
    allowed = {folder}.union(*COLLECTOR[:level])
    above = {name for folders in COLLECTOR for name in folders} - allowed
    wrong = [
        f"{label(path)}:{line}: {name}"
        for path in sorted((ROOT / "collector" / folder).rglob("*.py"))
        for name, line in imports(path)
        if name.startswith("stepscope.collector.") and name.split(".")[2] in above
    ]
    assert not wrong


def test_the_runtime_needs_only_its_dependencies() -> None:
    """What the runtime imports from others is declared in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {requirement.partition(">")[0].strip() for requirement in project["dependencies"]}
    assert declared == {"aiofiles", "anyio", "msgspec", "numpy", "uvloop"}
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
