"""What all tests of this folder have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path) -> Iterator[None]:
    """Programs write where they are."""
    with contextlib.chdir(tmp_path):
        yield
