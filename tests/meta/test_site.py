"""The documentation as a site: all links lead somewhere, public names have a place, generated pages are current."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import stepscope
import stepscope.runtime._core as core
from docs import commands, messages
from stepscope.cli.main import NAMES
from tests.support.basics import ROOT, require
from tests.support.messages import SNAPSHOT

NOT_SHOWN = {
    "stepscope.__version__",
    *(f"stepscope.torch.{name}" for name in ("DeviceType", "ExecutionTraceObserver", "itt", "kineto_available")),
}
"""A value, and names of torch's own."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site. A link or anchor that leads nowhere, a page that no menu has and a docstring that cannot be shown are errors."""
    require("mkdocs")
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(built)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return built


def public_names(module: str) -> Iterator[str]:
    """Reads the names in a module's `__all__` without importing it: some modules need a framework that is not installed."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from (f"{module}.{name}" for name in ast.literal_eval(node.value))


def test_every_public_name_has_a_place(site: Path) -> None:
    """With its docstring, on the page of its module."""
    require("mkdocs")
    from docs.site_pages import MODULES

    for module in MODULES:
        page = (site / "api" / f"{module}.html").read_text(encoding="utf-8")
        names = set(public_names(module)) - NOT_SHOWN
        assert names and names <= set(re.findall(r'id="([\w.]+)"', page))


def test_public_modules_have_pages() -> None:
    """Modules that programs import stand next to the package's own, or are folders that it names."""
    require("mkdocs")
    from docs.site_pages import MODULES

    groups = {f"stepscope.{name}" for name in dir(stepscope) if name not in stepscope.__all__}
    files = {f"stepscope.{path.stem}" for path in (ROOT / "stepscope").glob("*.py")}
    own = {f"stepscope.{name}" for name in ("__init__", "__main__", "build", "likely", "shown")}
    assert set(MODULES) == {"stepscope"} | groups | (files - own)


def test_the_site_has_the_readme_and_the_examples(site: Path) -> None:
    """Pages that are not in docs/, with links that lead to pages of the site."""
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="usage.html"' in home and 'href="docs/' not in home
    assert (site / "examples" / "quickstart.py").is_file()
    assert 'href="quickstart.py"' in (site / "examples" / "index.html").read_text(encoding="utf-8")


def test_the_page_of_commands_is_current() -> None:
    """`make docs` writes it anew."""
    assert commands.PAGE.read_text(encoding="utf-8") == commands.page()


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_commands_has_every_option(name: str) -> None:
    """As `--help` of the command lists them."""
    section = commands.page().partition(f"\n## stepscope {name}\n")[2].partition("\n## ")[0]
    shown = set(re.findall(r"--[\w-]+", section))
    listed = re.findall(r"^  (?:-\w(?: \S+)?, )?(--[\w-]+)", commands.help_of(name), re.MULTILINE)
    assert set(listed) - {"--help", "--traceback"} <= shown  # those of every command are named once


def test_the_page_of_messages_is_current() -> None:
    """`make docs` writes it anew."""
    assert messages.PAGE.read_text(encoding="utf-8") == messages.page()


def test_the_page_of_messages_has_the_recorded_messages() -> None:
    """But for short ones, and those of msgspec and of the system, which stand nowhere in our code."""
    pieces = [text.split(messages.GAP) for found in messages.messages().values() for text in found]
    recorded = [text for texts in json.loads(SNAPSHOT.read_text(encoding="utf-8")).values() for text in texts]
    found = [text for text in recorded if any(_in_this_order(text, each) for each in pieces)]
    assert len(found) > 0.8 * len(recorded)


def _in_this_order(text: str, pieces: list[str]) -> bool:
    """True if a text has all the pieces, one behind the other."""
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def test_texts_of_the_code_are_messages() -> None:
    """Values are gaps, lines are apart; docstrings, help and short texts are left out."""
    source = '''
def f(x):
    """A docstring of a function that is no message."""
    parser.add_argument("--x", help="the help of an option that is no message")
    raise ValueError(f"x must be a number, got {x}; {'set it to 5 % of that' if x else 'too short'}")
log.warning("%s of %o cannot be read\\nshort\\nand a second line of it", 1, 2)
'''
    assert list(messages.lines_of(messages.texts_in_python(ast.parse(source)))) == [
        "x must be a number, got …; …",
        "set it to 5 % of that",
        "… of … cannot be read",
        "and a second line of it",
    ]
    core = 'return PyErr_Format(PyExc_ValueError, x ? "this block has \\"%.200s\\" "\n  "of %zd" : "too short", y);'
    assert list(messages.lines_of(messages.texts_in_c(core))) == ['this block has "…" of …']


@pytest.mark.parametrize("name", ["span", "instant", "counter", "flow"])
def test_names_of_the_core_have_the_docstring_that_help_shows(name: str) -> None:
    """The site and editors read the stub, `help()` reads the core."""
    stub = ast.parse((ROOT / "runtime" / "_core.pyi").read_text(encoding="utf-8"))
    (node,) = (node for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name)
    assert ast.get_docstring(node) == getattr(core, name).__doc__
