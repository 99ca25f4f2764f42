"""Makes `build/package`: the sources laid out as they are installed.

`stepscope.runtime` is the folder `runtime`, which Python learns from the editable installation. Tools that look for modules
in folders do not learn it: mypy, pyright and import-linter read this copy.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "package"
NOT_INSTALLED = ("tests", "examples", "benchmarks", "docs", "tools")
"""Packages of the checkout that are not installed."""
KINDS = (".py", ".pyi", ".so")


def parts() -> list[str]:
    """Folders that are installed as `stepscope.<name>`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        config: dict[str, Any] = tomllib.load(file)
    names: list[str] = config["tool"]["stepscope"]["parts"]
    return names


def places() -> Iterator[tuple[Path, Path]]:
    """Each folder, and where it is in the copy."""
    yield ROOT / "stepscope", TREE / "stepscope"
    for part in parts():
        yield ROOT / part, TREE / "stepscope" / part
    for name in NOT_INSTALLED:
        yield ROOT / name, TREE / name


def make() -> Path:
    """Brings the copy up to date, and returns it. Files keep their times, so that tools know what has changed."""
    wanted: set[Path] = {TREE / "pyproject.toml"}
    for source, target in places():
        for path in source.rglob("*"):
            if path.suffix in KINDS or path.name == "py.typed":
                wanted.add(target / path.relative_to(source))
                _copy(path, target / path.relative_to(source))
    _copy(ROOT / "pyproject.toml", TREE / "pyproject.toml")
    for path in [path for path in TREE.rglob("*") if path.is_file() and path.suffix in KINDS]:
        if path not in wanted:
            path.unlink()
    return TREE


def _copy(source: Path, target: Path) -> None:
    if target.is_file() and target.stat().st_mtime_ns == source.stat().st_mtime_ns:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def original(text: str) -> str:
    """A tool's output with the names of files as they are in the checkout."""
    for part in parts():
        text = text.replace(f"stepscope/{part}/", f"{part}/")
    return text.replace(f"{TREE}/", "")


if __name__ == "__main__":
    make()
