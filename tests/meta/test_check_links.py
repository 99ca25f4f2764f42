"""`make links`: external pages to which the documentation links."""

from __future__ import annotations

from pathlib import Path

from tests.support.viewers.browser import served
from tools.check_links import links, problem


def test_links_are_found_with_their_pages() -> None:
    """An address in angle brackets, and a link; no address in a block of code."""
    found = links()
    assert "README.md" in found["https://ui.perfetto.dev"]
    assert "CHANGELOG.md" in found["https://semver.org/spec/v2.0.0.html"]
    assert not any("127.0.0.1" in address for address in found)


def test_a_page_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("text")
    with served(tmp_path) as address:
        assert problem(f"{address}/page.html") == ""
        assert "404" in problem(f"{address}/other.html")
