"""Each test of this folder runs in an empty directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path) -> Iterator[None]:
    """Makes an empty directory the current one: programs write there."""
    with contextlib.chdir(tmp_path):
        yield
