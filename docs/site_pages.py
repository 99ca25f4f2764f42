"""Pages of the site other than docs/: README.md and other pages of the checkout, and the reference of public names.

mkdocs calls the functions `on_...` at their events (<https://www.mkdocs.org/user-guide/plugins/#events>). `make site` runs it.
"""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.package_tree import ROOT, make

BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
MODULES = (
    "stepscope",
    "stepscope.backends",
    "stepscope.control",
    "stepscope.errors",
    "stepscope.exporters",
    "stepscope.results",
    "stepscope.triggers",
    "stepscope.torch",
    "stepscope.mindspore",
    "stepscope.mxnet",
    "stepscope.nvtx",
    "stepscope.accelerate",
    "stepscope.composer",
    "stepscope.keras",
    "stepscope.lightning",
    "stepscope.transformers",
)
"""Modules whose `__all__` programs import; each has a page."""
FOR_EXTENSIONS = (
    "stepscope.backends.conformance",
    "stepscope.exporters.conformance",
    "stepscope.runtime.events.arguments",
    "stepscope.runtime.events.clock",
    "stepscope.runtime.events.record",
    "stepscope.runtime.events.strings",
    "stepscope.runtime.events.tracks",
    "stepscope.runtime.export.formats",
)
"""Modules for exporters and backends of others (extending.md); each has a page."""
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)")
_CODE = re.compile(r"`[^`\n]+`")


def on_startup(command: str, dirty: bool) -> None:
    """Lays the sources out as they are installed, where mkdocstrings looks for them as soon as it is configured."""
    make()


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Adds the pages that are not in docs/."""
    examples = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples").glob("*.*")))
    for name in (*BESIDE, *examples):
        files.append(File.generated(config, _on_site(name), abs_src_path=str(ROOT / name)))
    for module in (*MODULES, *FOR_EXTENSIONS):
        files.append(File.generated(config, f"api/{module}.md", content=f"# {module}\n\n::: {module}\n"))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links between files of the checkout into links between pages of the site."""
    place = page.file.src_uri
    source = next((name for name in BESIDE if _on_site(name) == place), None)
    source = source or (place if page.file.generated_by else f"docs/{place}")

    def moved(link: re.Match[str]) -> str:
        return link[1] + relpath(_on_site(normpath(join(dirname(source), link[2]))), dirname(place) or ".")

    # GitHub wants a bar within code escaped where it stands in a table; Python-Markdown shows the backslash.
    lines = (
        _CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in markdown.splitlines()
    )
    return _LINK.sub(moved, "\n".join(lines))


def _on_site(name: str) -> str:
    """The place of a file of the checkout on the site."""
    return "index.md" if name == "README.md" else name.removeprefix("docs/")
