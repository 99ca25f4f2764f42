"""The cause comes first in recordings of programs with a planted fault; cured twins and healthy programs have no finding."""

from __future__ import annotations

import pytest

from tests.planted import recordings
from tests.planted.live import programs

RECORDED = recordings.recordings()


@pytest.mark.parametrize("name", RECORDED)
def test_the_planted_fault_is_found_first(name: str) -> None:
    """In what the program recorded when it ran under `stepscope run`."""
    outcome = recordings.judge(*RECORDED[name])
    assert outcome.found == outcome.wanted, [finding.title for finding in outcome.answer.findings]


def test_there_is_a_recording_of_each_program() -> None:
    """And of each cured twin."""
    wanted = {program.name for program in programs()} | {
        f"{program.name}-cured" for program in programs() if program.cured is not None
    }
    assert set(RECORDED) == wanted
