"""Runs PyTorch's own tests of its profiler against `stepscope.torch`, with nothing but their imports changed.

    python -m tools.torch_profiler_tests PATH/test/profiler/test_profiler.py

PATH is a checkout of PyTorch: its tests are not part of this repository. They need `expecttest` and what PyTorch's
`requirements.txt` names for tests. Each test runs twice, as it is and with the imports changed. The exit status is 1 if one passes
with torch's profiler and fails with ours.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import stepscope.torch as ours

TIMEOUT_S = 1800
"""Seconds for one run of all tests."""


def with_our_imports(source: str) -> str:
    """The text of a test module that takes from `stepscope.torch` what that offers, and the rest from torch.

    Both `from torch.profiler import name` and `torch.profiler.name` are changed, also in programs that the module has as text.
    """
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt | ast.expr)]
    found = [(node, changed) for node in nodes if (changed := _changed(node))]
    lines = source.splitlines(keepends=True)
    for node, changed in sorted(found, key=lambda one: (one[0].lineno, one[0].col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before = lines[first].encode()[: node.col_offset].decode()
        after = lines[last].encode()[node.end_col_offset or 0 :].decode()
        lines[first : last + 1] = [before + changed + after]
    return "".join(lines).replace("import torch\n", "import torch\nimport stepscope.torch as _ours\n", 1)


def _changed(node: ast.stmt | ast.expr) -> str:
    """The new text of a node; empty if it stays."""
    match node:
        case ast.ImportFrom(module="torch.profiler", level=0):
            return "; ".join(f"from {our_or_their(alias.name)} import {ast.unparse(alias)}" for alias in node.names)
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="torch"), attr="profiler")) if (
            node.attr in ours.__all__
        ):
            return f"_ours.{node.attr}"
        case ast.Constant(value=str(text)) if "from torch.profiler import" in text:
            return repr(with_our_imports(text))
        case _:
            return ""


def our_or_their(name: str) -> str:
    """The module to import a name from."""
    return "stepscope.torch" if name in ours.__all__ else "torch.profiler"


def run_tests(file: Path, folder: Path, chosen: str) -> dict[str, str]:
    """Runs a test module with pytest. Returns `passed`, `skipped` or the first line of the failure, for each test.

    Raises:
        SystemExit: if pytest reports no result, as where the module cannot be imported.
    """
    report = folder / f"{file.stem}.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        "--rootdir",
        str(folder),
    ]
    done = subprocess.run(
        [*command, *(["-k", chosen] if chosen else []), str(file)],
        cwd=folder,
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
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        source = options.tests.read_text()
        theirs, changed = folder / "test_with_torch.py", folder / "test_with_stepscope.py"
        theirs.write_text(source)
        changed.write_text(with_our_imports(source))
        before, after = (run_tests(file, folder, options.chosen) for file in (theirs, changed))
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
