"""What all tests of this folder have in common."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs write where they are."""
    monkeypatch.chdir(tmp_path)
