"""Private names of other packages: each is where docs/dependencies.md says, is there, and there are no others."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from stepscope.runtime import _core
from stepscope.runtime.errors import BackendError
from tests.support.basics import ROOT, mindspore_python, missing, require

PARTS = ("runtime", "backends", "exporters", "analysis", "collector", "compat", "stepscope")
PRIVATE = re.compile(r"_(?!Z)[A-Za-z]\w*(?<!_)")
"""Not so are names in underscores on both sides, as of enums, and those of C++ functions as libraries export them."""
DOCUMENTED = {"_replace", "_thread"}
"""Of named tuples; a module that Python documents."""
PATH = re.compile(r"(?:\w+\.)*_[A-Za-z]\w*(?:\.\w+)*")
"""A string that is such a name, or leads through one."""
C_STRING = re.compile(r'(?:GetAttrString\(\w+, |ImportModule\(|dlsym\(\w+, |loaded_attribute\()((?:(?:, )?"[\w.]+")+)')
LOOKUPS = {"getattr", "hasattr", "setattr", "delattr", "import_module", "find_spec", "private"}
"""Functions that get such strings."""
PIECES = {"startswith", "endswith", "removeprefix", "removesuffix"}
"""Functions that get strings which are no names."""
MINDSPORE = "MindSpore"

RESOLVE = r"""
import ctypes, importlib, inspect, re, sys
def assigns(kind, name):
    source = ""
    for each in kind.__mro__:
        try:
            source += inspect.getsource(each)
        except (OSError, TypeError):  # a class in C
            pass
    return re.search(rf"\bself\.{name}\b[^=\n]*=[^=]", source) is not None
def is_there(path):
    names = path.split(".")
    if len(names) == 1:
        return hasattr(ctypes.pythonapi, path)
    for length in range(len(names), 0, -1):
        try:
            found = importlib.import_module(".".join(names[:length]))
        except ModuleNotFoundError:
            continue
        break
    else:
        return False
    for name in names[length:]:
        called = name.endswith("()")
        name = name.removesuffix("()")
        if not hasattr(found, name):
            return inspect.isclass(found) and name == names[-1] and assigns(found, name)
        found = getattr(found, name)() if called else getattr(found, name)
    return True
print(*(path for path in sys.argv[1:] if not is_there(path)))
"""


class Row(NamedTuple):
    """A line of the table."""

    package: str
    names: tuple[str, ...]
    here: tuple[str, ...]
    """Those that this version of Python should have."""
    modules: tuple[str, ...]

    @property
    def last(self) -> set[str]:
        """The private names that its paths lead to."""
        return {_private(name)[-1] for name in self.names}


@cache
def table() -> tuple[Row, ...]:
    """The table of docs/dependencies.md."""
    text = Path(ROOT, "docs", "dependencies.md").read_text(encoding="utf-8")
    part = text.partition("\n## Private names of others\n")[2].partition("\n## ")[0]
    rows: list[Row] = []
    for line in [line for line in part.splitlines() if line.startswith("| ")][2:]:
        package, cell, modules, _ = line.strip("| ").split(" | ")
        found = re.findall(r"`([^`]+)`(?: \(Python < 3\.(\d+)\))?", cell)
        here = tuple(name for name, minor in found if not minor or sys.version_info < (3, int(minor)))
        rows.append(Row(package, tuple(name for name, _ in found), here, tuple(modules.split(", "))))
    return tuple(rows)


@cache
def _own() -> frozenset[str]:
    """Names that our own sources give to something."""
    names = {name for kind in vars(_core).values() if isinstance(kind, type) for name in vars(kind)}
    for tree in _sources().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.alias):
                names.add(node.asname or "")
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                names.add(node.attr)
    return frozenset(names)


@cache
def _sources() -> dict[str, ast.Module]:
    """Our modules by their paths."""
    paths = sorted(path for part in PARTS for path in Path(ROOT, part).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _private(path: str) -> list[str]:
    return [name for name in path.split(".") if PRIVATE.fullmatch(name) and name not in DOCUMENTED]


def _of_python(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Private names in a module, and of each whether it is another package's, as far as can be seen."""
    foreign = {
        alias.asname or alias.name.partition(".")[0] for node in ast.walk(tree) for alias in _imported_from_others(node)
    }
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = "" if isinstance(node, ast.Import) else f"{node.module}."
            for alias in _imported_from_others(node):
                yield from ((name, True) for name in _private(module + alias.name))
        elif isinstance(node, ast.Attribute):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            is_foreign = isinstance(root, ast.Name) and root.id in foreign or node.attr not in _own()
            yield from ((name, is_foreign) for name in _private(node.attr))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PATH.fullmatch(node.value):
            asked = parents[node]
            looks_up = isinstance(asked, ast.Call) and _called(asked) in LOOKUPS and not _is_self(asked.args[0])
            is_piece = (
                isinstance(asked, ast.JoinedStr | ast.BinOp) or isinstance(asked, ast.Call) and _called(asked) in PIECES
            )
            for name in _private(node.value):
                yield name, looks_up or not is_piece and name not in _own()
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, False


def _imported_from_others(node: ast.AST) -> list[ast.alias]:
    if isinstance(node, ast.ImportFrom):
        return [] if (node.module or "").partition(".")[0] in ("stepscope", "__future__") else node.names
    if isinstance(node, ast.Import):
        return [alias for alias in node.names if alias.name.partition(".")[0] != "stepscope"]
    return []


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@cache
def _uses() -> dict[str, list[tuple[str, bool]]]:
    """Private names by the file that they are in."""
    uses = {path: list(_of_python(tree)) for path, tree in _sources().items()}
    for path in sorted(Path(ROOT, "runtime", "core").rglob("*.[ch]")):
        found = C_STRING.findall(path.read_text(encoding="utf-8"))
        uses[str(path.relative_to(ROOT))] = [
            (name, True)
            for strings in found
            for string in re.findall(r'"([^"]+)"', strings)
            for name in _private(string)
        ]
    return uses


@pytest.mark.parametrize("package", sorted({row.package for row in table()}))
def test_the_names_are_there(package: str) -> None:
    names = [name for row in table() if row.package == package for name in row.here]
    if package == MINDSPORE:
        python = str(mindspore_python())
    else:
        for name in names:
            module = name.partition(".")[0]
            if module != name and find_spec(module) is None:
                missing(f"the module {module}", "`make test` installs it.")
        python = sys.executable
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    command = [python, "-c", RESOLVE, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "", f"{package} has these no more; docs/dependencies.md says what is lost"


def test_the_sources_use_no_others() -> None:
    known = {
        (module, name) for row in table() for module in row.modules for path in row.names for name in _private(path)
    }
    used = {(module, name) for module, names in _uses().items() for name, foreign in names if foreign}
    assert not used - known, "each needs a row in docs/dependencies.md, under 'Private names of others'"


def test_the_modules_use_the_names_of_the_table() -> None:
    used = {(module, name) for module, names in _uses().items() for name, _ in names}
    assert not {(module, name) for row in table() for module in row.modules for name in row.last} - used


def test_each_name_is_used_in_one_module() -> None:
    """One of Python's and one of the C core at most."""
    modules: dict[str, list[str]] = {}
    for row in table():
        for name in row.names:
            modules.setdefault(name, []).extend(row.modules)
    assert not [name for name, where in modules.items() if len({Path(module).suffix for module in where}) < len(where)]
    homes = {(name, module) for row in table() for name in row.last for module in row.modules}
    elsewhere = {
        (name, module)
        for module, names in _uses().items()
        for name, foreign in names
        if foreign and name in {name for name, _ in homes} and (name, module) not in homes
    }
    assert not elsewhere


async def test_a_client_whose_servers_cannot_be_checked_connects_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    client = require("nats.aio.client").Client
    monkeypatch.delattr(client, "_process_info")
    connection = require("stepscope.exporters.nats.connection")
    servers = require("stepscope.exporters.nats.servers").Servers(("nats://127.0.0.1:1",))
    with pytest.raises(require("nats.errors").Error, match="_process_info.*nothing is sent"):
        await connection.connect(servers)


def test_missing_names_of_torch_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = require("torch.autograd.profiler")
    monkeypatch.delattr(profiler, "_set_is_profiler_enabled")
    slot = require("stepscope.backends.torch.kineto.slot").TorchSlot()
    with pytest.raises(BackendError, match=r"torch\.autograd\.profiler\._set_is_profiler_enabled, a private name"):
        slot.watch()
    monkeypatch.undo()
    begins = profiler.record_function.__enter__
    slot.watch()
    assert profiler.record_function.__enter__ is not begins, "the refused one has left nothing behind"
    slot.unwatch()
    assert profiler.record_function.__enter__ is begins
