"""The pages about the design are short, and name files that there are; pictures have light and dark colours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.basics import ROOT

PAGES = sorted((ROOT / "docs" / "design").glob("*.md"))
NAMES = [page.stem for page in PAGES]
FOLDERS = "analysis|backends|collector|compat|exporters|runtime|stepscope|tests"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(rf"`((?:{FOLDERS})/[\w/.]*)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_is_short_and_in_the_index(page: Path) -> None:
    index = page.with_name("README.md")
    assert len(page.read_text(encoding="utf-8").split()) <= (150 if page == index else 900)
    assert page == index or f"({page.name})" in index.read_text(encoding="utf-8")


def test_pictures_have_dark_colours() -> None:
    """Drawings have both, others have a second file; the trace view of TensorBoard's plugin is light only."""
    docs = ROOT / "docs"
    drawings = list(docs.glob("*.svg"))
    assert drawings and all("prefers-color-scheme: dark" in path.read_text(encoding="utf-8") for path in drawings)
    light = [path.stem for path in docs.glob("*.png") if not path.stem.endswith("-dark")]
    assert [stem for stem in light if not (docs / f"{stem}-dark.png").is_file()] == ["tensorboard"]
