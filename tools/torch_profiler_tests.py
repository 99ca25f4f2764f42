"""Runs PyTorch's own tests of its profiler against `stepscope.torch`, with nothing but their imports changed.

    python -m tools.torch_profiler_tests PATH/test/profiler/test_profiler.py

PATH is a checkout of PyTorch: its tests are not part of this repository. They need `expecttest` and what PyTorch's
`requirements.txt` names for tests. Each test runs twice, as it is and with the imports changed. The exit status is 1 if one passes
with torch's profiler and fails with ours.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import stepscope.torch as ours

TIMEOUT_S = 1800
"""Seconds for one run of all tests."""

ABSENT = "type('Absent', (), {'__getattr__': lambda self, name: None})()"
"""Stands in for a name that torch does not have: it cannot be called, and its attributes are `None`."""


def with_imports(source: str, offered: Collection[str]) -> str:
    """The text of a test module that takes the `offered` names from `stepscope.torch`, and the rest from torch.

    Both `from torch.profiler import name` and `torch.profiler.name` are changed, also in programs that the module has as text.
    `ABSENT` takes the place of a name that the installed torch does not have: tests that call it fail with both.
    """
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt | ast.expr)]
    found = [(node, changed) for node in nodes if (changed := _changed(node, offered))]
    lines = source.splitlines(keepends=True)
    for node, changed in sorted(found, key=lambda one: (one[0].lineno, one[0].col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before = lines[first].encode()[: node.col_offset].decode()
        after = lines[last].encode()[node.end_col_offset or 0 :].decode()
        lines[first : last + 1] = [before + changed + after]
    text = "".join(lines)
    return text.replace("import torch\n", "import torch\nimport stepscope.torch as _ours\n", 1) if offered else text


def _changed(node: ast.stmt | ast.expr, offered: Collection[str]) -> str:
    """The new text of a node; empty if it stays."""
    match node:
        case ast.ImportFrom(module=str(module), level=0) if module.startswith("torch."):
            return "; ".join(_import(module, alias, offered) for alias in node.names)
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="torch"), attr="profiler")) if node.attr in offered:
            return f"_ours.{node.attr}"
        case ast.Constant(value=str(text)) if "from torch.profiler import" in text:
            return repr(with_imports(text, offered))
        case _:
            return ""


def _import(module: str, alias: ast.alias, offered: Collection[str]) -> str:
    """The statement that imports a name."""
    if module == "torch.profiler" and alias.name in offered:
        module = "stepscope.torch"
    import_module(module)
    try:
        resolve_name(f"{module}.{alias.name}")
    except AttributeError:
        return f"{alias.asname or alias.name} = {ABSENT}"
    return f"from {module} import {ast.unparse(alias)}"


def run_tests(source: str, file: Path, chosen: str) -> dict[str, str]:
    """Runs a test module of this text as `file`. Returns `passed`, `skipped` or the first line of the failure, for each test.

    Raises:
        SystemExit: if pytest reports no result, as where the module cannot be imported.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    report = file.with_suffix(".xml")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--rootdir=."]
    done = subprocess.run(
        [*command, *(["-k", chosen] if chosen else []), file.name],
        cwd=file.parent,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # some of the tests count the threads that there are
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    results: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        failure = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        if failure is not None:
            results[name] = (failure.get("message") or "failed").splitlines()[0][:200]
        else:
            results[name] = "passed" if case.find("skipped") is None else "skipped"
    if not results:
        sys.exit(f"pytest ran no test of {file}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return results


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path, help="PyTorch's test/profiler/test_profiler.py")
    parser.add_argument("-k", dest="chosen", default="", help="tests to run, as for pytest")
    parser.add_argument("--keep", type=Path, help="folder for the changed module and pytest's reports")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        source, name = options.tests.read_text(), options.tests.name  # some of the tests look for the name in stacks
        before, after = (
            run_tests(with_imports(source, offered), folder / place / name, options.chosen)
            for place, offered in (("with_torch", ()), ("with_stepscope", ours.__all__))
        )
    passes = [name for name, result in before.items() if result == "passed"]
    failed = {name: after.get(name, "not run") for name in passes if after.get(name) != "passed"}
    for name, why in failed.items():
        print(f"{name}: {why}")
    skipped = sum(result == "skipped" for result in before.values())
    print(
        f"{len(passes)} of {len(before)} pass with torch, {skipped} are skipped; {len(passes) - len(failed)} of them pass here"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
