"""Composer, which has an environment of its own, and its schedule."""

from __future__ import annotations

import pytest

from stepscope.compat.frameworks.composer_schedule import cyclic_schedule
from tests.support.basics import ROOT, composer_python
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.operators import environment

TESTS = ("tests/conformance/test_callback_conformance.py", "tests/support/composer_trainings.py")


@pytest.mark.checklist("B3")
def test_composer_itself() -> None:
    """The handler keeps the contract of callbacks, and does what Composer's profiler and its trainer ask of it."""
    # Composer 0.32 does many things that Python and torch warn of.
    command = [str(composer_python()), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "-k", "composer"]
    ours = ("PYTEST_", "RANK", "WORLD_SIZE")
    inherited = {name: value for name, value in environment().items() if not name.startswith(ours)}
    done = run_to_end([*command, *TESTS], timeout=280, cwd=ROOT, environment={**inherited, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_values_are_refused_at_once() -> None:
    """By name, when they are passed."""
    with refused(ValueError, "active", "0"):
        cyclic_schedule(active=0)
    with refused(ValueError, "skip_first", "-1"):
        cyclic_schedule(skip_first=-1)
    with refused(TypeError, "skip_first", "1.5"):
        cyclic_schedule(skip_first=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
