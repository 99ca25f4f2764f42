"""The constraints of `make test-lowest`: what users need at its lowest, and torch and the tests' own packages as ever."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tests.support.basics import ROOT
from tools.lowest import lowest

PINNED = "# why\ntorch==2.13.0\nruff==1.0\n"


def project(*needs: str) -> dict[str, Any]:
    """A project that needs these, and has an extra of each kind."""
    extras = {"torch": ["torch>=2.4"], "web": ["client[fast]>=3.1", "own[torch]"], "dev": ["pytest>=8.3", "ruff>=0.9"]}
    return {"name": "own", "dependencies": list(needs), "optional-dependencies": extras}


def test_users_packages_are_the_lowest_and_others_as_they_are_pinned() -> None:
    """Markers stay, and extras of a package are left out."""
    assert lowest(project("numpy>=1.26,<3", "loop>=0.21; sys_platform != 'win32'"), PINNED) == [
        "client==3.1",
        "loop==0.21; sys_platform != 'win32'",
        "numpy==1.26",
        "ruff==1.0",
        "torch==2.13.0",
    ]


@pytest.mark.parametrize("need", ["numpy", "numpy<2", "numpy<2,>=1.26"])
def test_a_need_without_a_lowest_version_is_refused(need: str) -> None:
    """Nobody knows which version would be installed for it."""
    with pytest.raises(ValueError, match="write name>=version"):
        lowest(project(need), PINNED)


def test_our_own_project_has_them() -> None:
    """Each dependency that is not optional is among them."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {line.partition("==")[0] for line in lowest(ours, (ROOT / "constraints.txt").read_text(encoding="utf-8"))}
    assert {need.partition(">=")[0] for need in ours["dependencies"]} < names
    assert "torch" in names and "pytest" not in names
