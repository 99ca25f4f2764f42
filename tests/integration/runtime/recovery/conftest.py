"""Fixtures of the tests of recovery."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.killed_programs import BODY, MIDWAY, Crash


@pytest.fixture
def crash(tmp_path: Path) -> Crash:
    """A program to be killed."""
    return Crash(tmp_path)


@pytest.fixture(scope="session")
def killed_session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a killed program: its journal has half of the events, its rings have the rest."""
    place = tmp_path_factory.mktemp("left")
    Crash(place).execute(BODY.format(between=MIDWAY), drain_interval=1000.0)
    return place


@pytest.fixture
def killed(killed_session: Path, tmp_path: Path) -> Crash:
    """A copy of it."""
    return Crash.copy(killed_session, tmp_path)
