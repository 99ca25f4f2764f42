"""The cause comes first in recordings of programs with a planted fault, also on an H200; cured twins and healthy programs have no finding."""

from __future__ import annotations

import msgspec
import pytest

from stepscope.analysis.rules.devices import check_device_idle
from stepscope.analysis.rules.evidence import Job
from stepscope.analysis.tables.rank_summary import Sample
from stepscope.runtime.observers import processor_demand
from stepscope.runtime.windows.step_facts import Phase
from tests.planted import gpu, recordings
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


@pytest.mark.parametrize(("waiting", "data", "is_found"), [(0.0, 1.0, True), (2.0, 1.0, False), (2.0, 0.5, False)])
def test_items_that_wait_for_a_processor_are_not_slow_themselves(waiting: float, data: float, is_found: bool) -> None:
    """Where other programs have the processors, any item may take several times as long as usual; also if the training waits for less
    time, as other batches are ready."""
    _, _, path = RECORDED["nodules"]
    (rank,) = recordings.ranks_of(path)
    begin, end = min(rank.facts["begin"]), max(rank.facts["end"])
    waits = [(int(begin), 0.0), (int(end), waiting * (end - begin))]
    busier = msgspec.structs.replace(rank, demand=rank.demand | {processor_demand.CHILDREN[1]: waits})
    summary = recordings.summary_of(busier)
    summary.judged_steps["phases"][:, Phase.DATA] = summary.phase(Phase.DATA) * data
    found = {finding.id for finding in recordings.answer_of([summary]).findings}
    assert ("slow-item" in found) is is_found


@pytest.mark.parametrize(("runs", "is_found"), [(0.25, True), (0.05, False)])
def test_workers_that_are_too_slow_with_processors_of_their_own(runs: float, is_found: bool) -> None:
    """Where other programs have the processors, the thread that steps waits for one while it does not wait for data."""
    _, _, path = RECORDED["keywords"]
    (rank,) = recordings.ranks_of(path)
    begin, end = int(min(rank.facts["begin"])), int(max(rank.facts["end"]))
    ran, waited = ([(begin, 0.0), (end, share * (end - begin))] for share in (runs, 1 - runs))
    demand = rank.demand | dict(zip(processor_demand.CHILDREN, (ran, waited), strict=True))
    summary = recordings.summary_of(msgspec.structs.replace(rank, demand=demand))
    steps = summary.judged_steps
    took = steps["end"] - steps["begin"]
    steps["phases"][:, Phase.DATA], steps["run_queue_ns"], steps["cpu_ns"] = 0.6 * took, 0.32 * took, 0.08 * took
    found = {finding.id for finding in recordings.answer_of([summary]).findings}
    assert ("input-bound-workers" in found) is is_found


def test_the_function_of_the_rank_for_which_the_others_wait_in_slow_steps() -> None:
    """Its own waiting for other ranks in these steps names no function."""
    summaries = [recordings.summary_of(rank) for rank in recordings.ranks_of(RECORDED["two_towers_ranks"][2])]
    for summary, phase in zip(summaries, (Phase.FORWARD, Phase.COMMUNICATION), strict=True):
        summary.judged_steps["end"][10::17] += 100_000_000
        summary.judged_steps["phases"][10::17, phase] += 100_000_000
    torch = "main (/p/a.py:9);_engine_run_backward (site-packages/torch/autograd/graph.py:979)", "S"
    stacks = [("main (/p/a.py:9);accuracy (/p/a.py:3)", "R")] * 2 + [torch] * 3
    begins = summaries[0].judged_steps["begin"].tolist()
    summaries[0].samples = [Sample(begin + 1, *torch, "") for begin in begins]
    summaries[0].samples += [Sample(begin + 2, *stack, "") for begin in begins[10::17] for stack in stacks]
    first = recordings.answer_of(summaries).findings[0]
    assert (first.id, first.ranks, str(first.places[0])) == ("periodic-stall", (0,), "accuracy (/p/a.py:3)")


def test_a_rank_waits_for_processors_for_longer_than_some_steps_take() -> None:
    """Where another program has them for longer, most steps wait for none."""
    summaries = [recordings.summary_of(rank) for rank in recordings.ranks_of(RECORDED["heartbeats_ranks-cured"][2])]
    for summary in summaries:
        summary.judged_steps["run_queue_ns"] = 0
    steps = summaries[1].judged_steps
    steps["run_queue_ns"][::3] = (steps["end"] - steps["begin"])[::3]
    found = {finding.id: finding for finding in recordings.answer_of(summaries).findings}
    contended = found["processors-contended"]
    assert contended.ranks == (1,) and "rank 1 waits for one" in contended.title


def test_there_is_a_recording_of_each_program() -> None:
    """And of each cured twin."""
    wanted = {program.name for program in programs()} | {
        f"{program.name}-cured" for program in programs() if program.cured is not None
    }
    assert set(RECORDED) == wanted


SAID = {
    "none": ("GPU 0 computes", "Quicker kernels"),
    "second-stream": ("GPU 0 computes",),
    "slow-items": ("Text.__getitem__",),
    "norms": ("aten::item",),
    "pageable": ("Pageable -> Device", "pin_memory=True"),
    "emptied": ("cudaFree", "cudaMalloc"),
    "for-each-parameter": ("one parameter after the other", "fused=True"),
    "graphs": ("launching kernels",),
}
"""Words that must be in the verdict, or in the first finding."""


@pytest.mark.parametrize("fault", gpu.WANTED)
def test_the_fault_on_a_device_is_found_first(fault: str) -> None:
    """With what it is that takes the time, and what to try."""
    answer = gpu.answer(fault)
    assert [finding.id for finding in answer.findings][:1] == [gpu.WANTED[fault]] * bool(gpu.WANTED[fault]), answer
    first = answer.findings[0] if answer.findings else None
    text = " ".join([answer.verdict, *(first.evidence if first else ()), first.action if first else ""])
    assert all(word in text for word in SAID[fault]), text


@pytest.mark.parametrize(("busy", "workers"), [(60.0, True), (98.0, False)])
def test_a_device_that_idles_for_a_loader(busy: float, workers: bool) -> None:
    """More workers are advised where there are processors for them."""
    (rank,) = recordings.ranks_of(gpu.PLACE / "slow-items.msgpack.xz")
    summary = recordings.summary_of(msgspec.structs.replace(rank, counter_means={"host cpu %": busy}))
    (found,) = check_device_idle(Job([summary]))
    assert ("num_workers" in found.action) is workers and ("98% busy" in found.action) is not workers
