"""Rules on trainings that are recorded as spans and samples of the stack: the cause, its place, and what to try."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.analysis.explain import judge
from stepscope.analysis.findings import Answer
from stepscope.analysis.tables.rank_summary import RankSummary, Sample
from stepscope.runtime.control.entry_points.environment import SIGNALS_VARIABLE

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
TORCH = "site-packages/torch"
MAIN = "main (/p/train.py:20)"


def record(directory: Path, step: Callable[[int], None], *stacks: tuple[str, str]) -> Answer:
    """The answer on a run of 30 steps.

    Args:
        stacks: stacks of the thread that steps, and its states; each is sampled in each of ten steps.
    """
    with sc.trace(output_dir=directory) as profiler:
        for number in range(30):
            step(number)
            profiler.step()
    recording = sc.load(directory)
    summary = RankSummary(recording.ranks[0])
    begins = summary.judged_steps["begin"][:10].tolist()
    summary.samples = [Sample(at + 1, stack, state, "") for at in begins for stack, state in stacks]
    return judge(recording, [summary])


def operators(count: int, name: str = "aten::mul") -> None:
    """So many short operators, and a longer one."""
    for _ in range(count):
        with sc.span(name, category="cpu_op"):
            pass
    with sc.span("aten::mm", category="cpu_op"):
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("name", "category", "title"),
    [("torch.save", "checkpoint", "Saving checkpoints"), ("SummaryWriter.add_histogram", "logging", "Logging")],
)
def test_checkpoints_and_logging_in_each_step(name: str, category: str, title: str, tmp_path: Path) -> None:
    """They are found, with their place."""

    def step(_: int) -> None:
        operators(1)
        with sc.span(name, category=category, place="keep (/p/train.py:7)"):
            time.sleep(0.003)

    (found,) = record(tmp_path, step).findings
    assert found.id == "saves-and-logs" and found.title.startswith(f"{title} takes")
    assert found.evidence[0].startswith(f"calls of {name} take") and str(found.places[0]) == "keep (/p/train.py:7)"


@pytest.mark.parametrize(("every", "is_found"), [(6, True), (15, False)])
def test_compilations_in_the_loop(every: int, is_found: bool, tmp_path: Path) -> None:
    """Three are a fault, and the slow steps that they make are no other one; one or two are the first sight of a shape."""

    def step(number: int) -> None:
        operators(1)
        if number % every == every - 1:
            with sc.span("_compile.compile_inner (dynamo_timed)", category="user_annotation"):
                time.sleep(0.02)

    found = record(tmp_path, step).findings
    assert ([one.id for one in found] == ["recompiles"]) is is_found
    assert not is_found or "dynamic=True" in found[0].action


def test_code_that_torch_has_compiled(tmp_path: Path) -> None:
    """It is the forward pass, and its file is none of the program."""

    def step(_: int) -> None:
        with sc.span("Torch-Compiled Region: 0/0"), sc.span("## Call CompiledFxGraph f6jui4izjb2vetnst ##"):
            time.sleep(0.004)
        time.sleep(0.001)

    answer = record(tmp_path, step, (f"{MAIN};Runner.call (/tmp/torchinductor_me/sq/csqmjx.py:128)", "R"))
    assert answer.ranks[0].shares[0].name == "forward" and "Runner.call" not in str(answer)


@pytest.mark.parametrize(("workers", "does"), [(0, "draws a new order"), (2, "starts 2 workers each time")])
def test_an_iterator_that_is_made_anew_for_each_batch(workers: int, does: str, tmp_path: Path) -> None:
    """More workers make it worse."""

    def step(_: int) -> None:
        sc.instant("DataLoader", category="loader", workers=workers, persistent=False)
        with sc.span(LOADER, category="user_annotation"):
            time.sleep(0.003)
        operators(1)

    (found,) = record(
        tmp_path, step, (f"{MAIN};DataLoader.__iter__ ({TORCH}/utils/data/dataloader.py:400)", "R")
    ).findings
    assert found.id == "input-bound-iterator" and "next(batches)" in found.action and "num_workers" not in found.action
    assert does in found.evidence[0] and found.places[0].function == "main"


@pytest.mark.parametrize(("state", "waits"), [("S", True), ("R", False)])
def test_items_that_wait_for_the_network(state: str, waits: bool, tmp_path: Path) -> None:
    """They need no processor, so more workers than processors are advised."""

    def step(number: int) -> None:
        if number == 0:
            sc.instant("DataLoader", category="loader", workers=0)
        sc.counter("processors", 2, category="processor demand")
        sc.counter("processors in use", 0, category="processor demand")
        with sc.span(LOADER, category="user_annotation"):
            time.sleep(0.02)
        time.sleep(0.002)

    fetch = f"{MAIN};fetch ({TORCH}/utils/data/_utils/fetch.py:54);Images.__getitem__ (/p/train.py:9)"
    (found, *_) = record(tmp_path, step, (fetch, state)).findings
    assert found.id == "input-bound-in-process"
    assert any("is waiting" in text for text in found.evidence) is waits
    workers = int(found.action.partition("num_workers=")[2].rstrip(")") or 1)
    assert (workers > 1) is waits, found.action


@pytest.mark.parametrize(
    ("library", "action"),
    [
        ("post (site-packages/httpx/_client.py:1144);read (site-packages/httpcore/_sync.py:9)", "to another thread"),
        (
            "Queue.get (/lib/python3.11/queue.py:171);Condition.wait (/lib/python3.11/threading.py:327)",
            "fills the queue",
        ),
    ],
)
def test_the_function_that_waits_in_a_library(
    library: str, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a server, or for threads that fill a queue."""
    monkeypatch.delenv(SIGNALS_VARIABLE)

    def step(_: int) -> None:
        operators(1)
        time.sleep(0.004)

    (found, *_) = record(tmp_path, step, (f"{MAIN};Tracker.log (/p/train.py:14);{library}", "S")).findings
    assert found.id == "program-waits" and str(found.places[0]) == "Tracker.log (/p/train.py:14)"
    assert action in found.action


@pytest.mark.parametrize(("name", "kind"), [("aten::mul", "tiny-operators"), ("aten::item", "value-read-back")])
def test_the_loop_over_elements_is_named(name: str, kind: str, tmp_path: Path) -> None:
    """Though more samples are in modules that are called elsewhere."""
    module = f"{MAIN};Linear.forward ({TORCH}/nn/modules/linear.py:134)"
    answer = record(
        tmp_path, lambda _: operators(1_200, name), ("clip (/p/train.py:6)", "S"), (module, "R"), (module, "R")
    )
    (found,) = (one for one in answer.findings if one.id == kind)
    assert found.places[0].function == "clip"


@pytest.mark.parametrize(("ms", "is_found"), [(6, True), (1, False)])
def test_an_optimizer_that_takes_most_of_the_step(ms: int, is_found: bool, tmp_path: Path) -> None:
    """The fused one is named, and that fewer updates may do."""

    def step(_: int) -> None:
        operators(1)
        with sc.span("Optimizer.step#AdamW.step"):
            time.sleep(ms / 1e3)

    found = record(tmp_path, step).findings
    assert [one.id for one in found] == ["slow-optimizer"] * is_found
    assert not found or ("AdamW(..., fused=True)" in found[0].action and "accumulated" in found[0].action)
