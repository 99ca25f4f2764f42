"""The installed package has the files of the tree, and the tree keeps its shape."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import stepscope
import stepscope.runtime._core as core
from stepscope.runtime.version import VERSION
from tests.support.basics import ROOT, git
from tests.support.messages import refused

CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = CONFIG["tool"]["setuptools"]

NOT_INSTALLED = {"tests", "examples", "benchmarks", "docs", "tools"}
PARTS = sorted(
    init.parent.name
    for init in ROOT.glob("*/__init__.py")
    if init.parent.name not in {"stepscope", *NOT_INSTALLED} and not init.parent.name.startswith((".", "build"))
)
"""The folders next to `stepscope` that are installed as `stepscope.<name>`."""


def test_parts_are_declared() -> None:
    """A part that is not declared is left out of the wheel without a word."""
    assert sorted(CONFIG["tool"]["stepscope"]["parts"]) == PARTS


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_the_folder_of_its_name(part: str) -> None:
    """Tracebacks, breakpoints and coverage name the file that is edited, and no other way leads to it."""
    module = importlib.import_module(f"stepscope.{part}")
    assert Path(str(module.__file__)) == ROOT / part / "__init__.py"
    assert not (ROOT / "stepscope" / part).exists()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_one_name(part: str) -> None:
    """`runtime` in addition to `stepscope.runtime` would make every class exist twice."""
    assert part not in sys.modules
    done = subprocess.run(
        [sys.executable, "-c", f"import {part}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and f"import stepscope.{part}" in done.stderr.splitlines()[-1]


def test_git_has_no_links() -> None:
    """A checkout is the same where links are not known."""
    entries = [line.split(maxsplit=3) for line in git("ls-files", "--stage").splitlines()]
    assert not [path for mode, _, _, path in entries if mode == "120000"]


def test_a_checkout_without_its_editable_install_explains_itself() -> None:
    """Python finds `stepscope/` in its working directory first, and there no `runtime`."""
    program = (
        "import sys; sys.meta_path[:] = [one for one in sys.meta_path if 'Editable' not in str(one)]; import stepscope"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install -e ." in done.stderr.splitlines()[-1], done.stderr


def test_a_missing_compiler_is_one_sentence(tmp_path: Path) -> None:
    """With the command for Debian and that for Fedora."""
    environment = {**os.environ, "CC": "no-such-compiler"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(tmp_path),
        "--build-temp",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert "no-such-compiler" in sentence and "apt-get install" in sentence and "dnf install" in sentence


def test_types_are_shipped() -> None:
    """Type checkers look for py.typed, and for the stub of the native core."""
    folder = Path(stepscope.__file__).parent
    assert (folder / "py.typed").is_file()
    assert "py.typed" in SETUPTOOLS["package-data"]["stepscope"]
    assert Path(core.__file__).with_name("_core.pyi").is_file()
    assert "*.pyi" in SETUPTOOLS["package-data"]["stepscope.runtime"]


def test_the_stub_has_the_public_names_of_the_core() -> None:
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
    assert importlib.metadata.version("stepscope") == VERSION == stepscope.__version__


GROUPS = ("backends", "control", "errors", "exporters", "results", "triggers")


def test_few_public_names() -> None:
    """A beginner sees few, and the groups that have the others."""
    assert len(stepscope.__all__) <= 25
    assert sorted({*stepscope.__all__, *GROUPS}) == dir(stepscope)


@pytest.mark.parametrize("module", ["stepscope", *(f"stepscope.{group}" for group in GROUPS)])
def test_public_names_exist(module: str) -> None:
    """Everything in `__all__` can be had, is sorted, and has a docstring or is a value."""
    names: list[str] = importlib.import_module(module).__all__
    assert names == sorted(names)
    for name in names:
        value = getattr(importlib.import_module(module), name)
        assert not callable(value) or value.__doc__, name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MemoryExporter", "stepscope.exporters.MemoryExporter"),
        ("ChromeExporter", "ChromeTraceExporter"),
        ("WindowReqest", "stepscope.control.WindowRequest"),
    ],
)
def test_a_name_that_is_elsewhere_or_misspelt(name: str, meant: str) -> None:
    """The error says which name was meant."""
    with refused(AttributeError, name, meant):
        getattr(stepscope, name)


def test_shells_complete_the_public_names() -> None:
    """Also those that are imported when they are asked for, which nothing has done in a new interpreter."""
    asked = "import stepscope; print(*dir(stepscope))"
    done = subprocess.run([sys.executable, "-P", "-c", asked], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {*stepscope.__all__, *GROUPS}


@pytest.mark.parametrize("module", ["numpy", "asyncio", "msgspec", "anyio", "uvloop", "logging"])
def test_import_loads_little(module: str) -> None:
    """A program that imports stepscope and traces nothing pays milliseconds."""
    loaded = f"import sys, stepscope; sys.exit({module!r} in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", loaded], check=True)


@pytest.mark.parametrize(
    "module",
    [
        "torch",
        "tensorboard",
        "sklearn",
        "pandas",
        "viztracer",
        "aiohttp",
        "opentelemetry",
        "google.protobuf",
        "websockets",
        "litestar",
    ],  # fmt: skip
)
def test_import_works_without(module: str) -> None:
    """Importing stepscope needs none of the optional packages, and loads none of them."""
    blocked = f"import sys; sys.modules[{module!r}] = None; from stepscope import *"
    subprocess.run([sys.executable, "-P", "-W", "error", "-c", blocked], check=True)
    loaded = f"import sys, stepscope; sys.exit({module!r} in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", loaded], check=True)


def test_sources_without_their_core_name_the_command_that_builds_it() -> None:
    """A checkout that nothing was built in is what Python finds first in its directory."""
    program = "import sys; sys.modules['stepscope.runtime._core'] = None; import stepscope"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install -e ." in done.stderr.splitlines()[-1]
