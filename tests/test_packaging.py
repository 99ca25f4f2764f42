"""What is installed is what is in the tree, and the tree keeps its shape."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import stepscope
import stepscope.runtime._core as core
from tests.support import ROOT, git

CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = CONFIG["tool"]["setuptools"]

NOT_INSTALLED = {"tests", "examples", "benchmarks", "docs"}
PARTS = sorted(
    init.parent.name
    for init in ROOT.glob("*/__init__.py")
    if init.parent.name not in {"stepscope", *NOT_INSTALLED} and not init.parent.name.startswith((".", "build"))
)
"""The folders beside `stepscope` that are installed as `stepscope.<name>`."""


def test_every_source_package_is_declared() -> None:
    """A package that is not declared is left out of the wheel without a word."""
    found = {
        ".".join(("stepscope", *init.parent.relative_to(ROOT).parts))
        for part in PARTS
        for init in (ROOT / part).rglob("__init__.py")
    }
    # Its links to the parts are packages, too, but the same ones.
    own = [init for init in (ROOT / "stepscope").rglob("__init__.py") if init.resolve() == init]
    found |= {".".join(init.parent.relative_to(ROOT).parts) for init in own}
    assert set(SETUPTOOLS["packages"]) == found
    assert set(SETUPTOOLS["package-dir"]) == found


def test_package_folders_are_where_they_are_said_to_be() -> None:
    """Each package's folder is its name without `stepscope.`, or is inside `stepscope/`."""
    for package, folder in SETUPTOOLS["package-dir"].items():
        assert (ROOT / folder / "__init__.py").is_file(), package
        assert folder.replace("/", ".") in (package, package.removeprefix("stepscope."))


def test_every_c_source_is_declared() -> None:
    """A source that is not declared is not linked; one that is gone breaks the build of the wheel only."""
    (extension,) = SETUPTOOLS["ext-modules"]
    assert set(extension["sources"]) == {str(path.relative_to(ROOT)) for path in (ROOT / "runtime/core").glob("*.c")}
    assert set(extension["depends"]) == {str(path.relative_to(ROOT)) for path in (ROOT / "runtime/core").glob("*.h")}


def test_parts_are_imported_under_one_name() -> None:
    """`runtime` next to `stepscope.runtime` would make every class exist twice."""
    assert not [part for part in PARTS if part in sys.modules]


def test_links_for_type_checkers_are_links() -> None:
    """A checkout that turned a link into a copy or a text file would type-check something else."""
    for part in PARTS:
        link = ROOT / "stepscope" / part
        assert link.is_symlink(), part
        assert link.readlink() == Path("..", part)


def test_links_are_links_in_git() -> None:
    """Git must know the links as such, and no other link."""
    entries = [line.split(maxsplit=3) for line in git("ls-files", "--stage").splitlines()]
    linked = {path for mode, _, _, path in entries if mode == "120000"}
    assert linked == {f"stepscope/{part}" for part in PARTS}


def test_types_are_shipped() -> None:
    """Type checkers look for py.typed, and for the stub of the native core."""
    folder = Path(stepscope.__file__).parent
    assert (folder / "py.typed").is_file()
    assert "py.typed" in SETUPTOOLS["package-data"]["stepscope"]
    assert Path(core.__file__).with_name("_core.pyi").is_file()
    assert "*.pyi" in SETUPTOOLS["package-data"]["stepscope.runtime"]


def test_stub_names_what_the_core_has() -> None:
    """A name in the stub that the core lacks would pass the type checker and fail at run time."""
    stub = ast.parse((ROOT / "runtime" / "_core.pyi").read_text(encoding="utf-8"))
    named: set[str] = set()
    for node in stub.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            named.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            named.add(node.target.id)
    public = {name for name in named if not name.startswith("_")}
    assert public == {name for name in vars(core) if not name.startswith("_")}


def test_installed_version_is_the_trees() -> None:
    """An installation older than the tree would test something else."""
    assert importlib.metadata.version("stepscope") == CONFIG["project"]["version"]


def test_public_names_exist() -> None:
    """Everything in `__all__` can be had, is sorted, and has a docstring or is a value."""
    assert list(stepscope.__all__) == sorted(stepscope.__all__)
    for name in stepscope.__all__:
        value = getattr(stepscope, name)
        assert not callable(value) or value.__doc__, name


def test_shells_complete_the_public_names() -> None:
    """Also those that are imported when they are asked for, which nothing has done in a new interpreter."""
    asked = "import stepscope; print(*dir(stepscope))"
    done = subprocess.run([sys.executable, "-P", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == stepscope.__all__


@pytest.mark.parametrize(
    "module",
    [
        "torch",
        "tensorboard",
        "sklearn",
        "viztracer",
        "aiohttp",
        "opentelemetry",
        "google.protobuf",
        "websockets",
        "zstandard",
        "starlette",
    ],  # fmt: skip
)
def test_import_works_without(module: str) -> None:
    """Importing stepscope needs none of the optional packages, and loads none of them."""
    blocked = f"import sys; sys.modules[{module!r}] = None; from stepscope import *"
    subprocess.run([sys.executable, "-P", "-W", "error", "-c", blocked], check=True)
    loaded = f"import sys, stepscope; sys.exit({module!r} in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", loaded], check=True)


def test_sources_without_their_core_say_what_to_do() -> None:
    """A checkout that nothing was built in is what Python finds first in its directory."""
    program = "import sys; sys.modules['stepscope.runtime._core'] = None; import stepscope"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and "make install" in done.stderr.splitlines()[-1]
