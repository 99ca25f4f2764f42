"""What tests of recovery begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.crashes import Crash


@pytest.fixture
def crash(tmp_path: Path) -> Crash:
    """A program to be killed."""
    return Crash(tmp_path)
