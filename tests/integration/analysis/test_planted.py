"""The cause comes first in recordings of programs with a planted fault; cured twins and healthy programs have no finding."""

from __future__ import annotations

import msgspec
import pytest

from stepscope.runtime.observers import processor_demand
from tests.planted import recordings
from tests.planted.live import programs

RECORDED = recordings.recordings()


@pytest.mark.parametrize("name", RECORDED)
def test_the_planted_fault_is_found_first(name: str) -> None:
    """In what the program recorded when it ran under `stepscope run`."""
    outcome = recordings.judge(*RECORDED[name])
    assert outcome.found == outcome.wanted, [finding.title for finding in outcome.answer.findings]


@pytest.mark.checklist("D13")
@pytest.mark.parametrize(("busy", "workers"), [(60.0, True), (98.0, False)])
def test_more_workers_need_free_processors(busy: float, workers: bool) -> None:
    """A loader that is too slow is advised more workers where processors are free; where all are busy, that they do not help."""
    _, _, path = RECORDED["keywords"]
    (rank,) = recordings.ranks_of(path)
    demand = rank.demand | {processor_demand.PROCESSORS: [(0, 8.0)]}
    busier = msgspec.structs.replace(rank, demand=demand, counter_means={"host cpu %": busy})
    answer = recordings.answer_of([recordings.summary_of(busier)])
    first = answer.findings[0]
    assert first.id == "input-bound-workers"
    assert ("num_workers=" in first.action) is workers
    assert ("more workers do not help while the processors are 98% busy" in first.gain) is not workers


def test_there_is_a_recording_of_each_program() -> None:
    """And of each cured twin."""
    wanted = {program.name for program in programs()} | {
        f"{program.name}-cured" for program in programs() if program.cured is not None
    }
    assert set(RECORDED) == wanted
