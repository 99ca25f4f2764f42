"""Rules on trainings whose steps are known to the nanosecond: the cause, its place, and what to try."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stepscope as sc
from stepscope.analysis.explain import judge
from stepscope.analysis.findings import Answer
from stepscope.analysis.reading.recording import Recording
from stepscope.analysis.tables.rank_summary import RankSummary, Sample
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind
from tests.support.journals import batch_with_arguments, write_journal

STEPS = 40
US = 1_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
TORCH = "site-packages/torch"
MAIN = "main (/p/train.py:20)"


class Span(NamedTuple):
    """The next thing that the thread that steps does, and for how long."""

    name: str
    us: int
    category: str = "user_annotation"
    arguments: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    kind: Kind = Kind.SPAN


MODEL = Span("aten::mm", 2_000, "cpu_op")


def answer(directory: Path, step: Callable[[int], list[Span]], *stacks: tuple[str, str], waits: bool = False) -> Answer:
    """The answer on a run.

    Args:
        step: makes the spans of the step of a number. Those without a name are time in no span.
        stacks: stacks of the thread that steps, and its states; each is sampled in each of twenty steps.
        waits: whether the thread uses no processor.
    """
    rows: list[tuple[int, int, Span]] = []
    at = 0
    for number in range(STEPS):
        rows.append((at, number, Span("step", 0, kind=Kind.STEP)))
        for span in step(number):
            rows += [(at, number, span)] if span.name else []
            at += span.us * US
    batch = batch_with_arguments([span.name for _, _, span in rows], [span.arguments for _, _, span in rows])
    events = batch.events.copy()
    events["ts"], events["step"] = [ts for ts, _, _ in rows], [number for _, number, _ in rows]
    events["dur"], events["kind"] = [span.us * US for _, _, span in rows], [span.kind for _, _, span in rows]
    events["category"] = [strings.category(span.category) for _, _, span in rows]
    write_journal(directory / "journal", [EventBatch(batch.source, 0, events, batch.args)])
    recording = sc.load(directory)
    summary = RankSummary(recording.ranks[0])
    begins = summary.judged_steps["begin"][:20].tolist()
    summary.samples = [Sample(begin + 1, stack, state, "") for begin in begins for stack, state in stacks]
    if waits:
        summary.judged_steps["cpu_ns"] = 0
    return judge(recording, [summary])


@pytest.mark.parametrize(
    ("name", "category", "title"),
    [("torch.save", "checkpoint", "Saving checkpoints"), ("SummaryWriter.add_histogram", "logging", "Logging")],
)
def test_checkpoints_and_logging_in_each_step(name: str, category: str, title: str, tmp_path: Path) -> None:
    """They are found, with their place."""
    call = Span(name, 3_000, category, {"place": "keep (/p/train.py:7)"})
    (found,) = answer(tmp_path, lambda _: [MODEL, call]).findings
    assert found.id == "saves-and-logs" and found.title.startswith(f"{title} takes 59%")
    assert found.evidence[0].startswith(f"calls of {name} take 2.9")
    assert str(found.places[0]) == "keep (/p/train.py:7)"


@pytest.mark.parametrize(("every", "is_found"), [(10, True), (25, False)])
def test_compilations_in_the_loop(every: int, is_found: bool, tmp_path: Path) -> None:
    """Three are a fault, and the slow steps that they make are no other one; one or two are the first sight of a shape."""
    compilation = Span("_compile.compile_inner (dynamo_timed)", 20_000)
    found = answer(tmp_path, lambda number: [MODEL, *([compilation] if number % every == every - 1 else [])]).findings
    assert ([one.id for one in found] == ["recompiles"]) is is_found
    assert not is_found or "dynamic=True" in found[0].action


@pytest.mark.parametrize("library", ["compiler.py", "array.py"])
def test_compilations_of_jax(library: str, tmp_path: Path) -> None:
    """Samples show them, as JAX records none."""
    stack = f"{MAIN};update (/p/train.py:12);backend_compile (site-packages/jax/_src/{library}:353)", "S"
    found = answer(tmp_path, lambda _: [Span("", 4_000)], stack, waits=True).findings
    assert [one.id for one in found] == ["recompiles"] * (library == "compiler.py")
    assert not found or (found[0].places[0].function == "update" and "JAX_EXPLAIN" in found[0].action)


def test_backward_that_is_compiled_with_forward_counts_once(tmp_path: Path) -> None:
    """As torch.compile does for dynamic shapes."""
    outer = Span("_compile.compile_inner (dynamo_timed)", 20_000)
    inner = [Span("", -15_000), Span("compile_fx.<locals>.bw_compiler (dynamo_timed)", 12_000), Span("", 3_000)]
    (found,) = answer(tmp_path, lambda number: [MODEL, *([outer, *inner] if number % 10 == 9 else [])]).findings
    assert found.id == "recompiles" and "for 20.0ms at the median" in found.evidence[0]


def test_code_that_torch_has_compiled(tmp_path: Path) -> None:
    """It is the forward pass, and its file is none of the program."""
    stack = f"{MAIN};Runner.call (/tmp/torchinductor_me/sq/csqmjx.py:128)", "R"
    found = answer(tmp_path, lambda _: [Span("Torch-Compiled Region: 0/0", 4_000), Span("", 1_000)], stack)
    assert found.ranks[0].shares[0].name == "forward" and "Runner.call" not in str(found)


@pytest.mark.parametrize(("workers", "does"), [(0, "draws a new order"), (2, "starts 2 workers each time")])
def test_an_iterator_that_is_made_anew_for_each_batch(workers: int, does: str, tmp_path: Path) -> None:
    """More workers make it worse."""
    begun = Span("DataLoader", 0, "loader", {"workers": workers, "persistent": False}, Kind.INSTANT)
    stack = f"{MAIN};DataLoader.__iter__ ({TORCH}/utils/data/dataloader.py:400)", "R"
    (found,) = answer(tmp_path, lambda _: [begun, Span(LOADER, 3_000), MODEL], stack).findings
    assert found.id == "input-bound-iterator" and "next(batches)" in found.action and "num_workers" not in found.action
    assert does in found.evidence[0] and found.places[0].function == "main"


@pytest.mark.parametrize(
    ("workers", "persistent", "action"),
    [(0, False, "make the batch once"), (2, False, "persistent_workers=True"), (2, True, "make the batch once")],
)
def test_a_data_set_of_one_batch(workers: int, persistent: bool, action: str, tmp_path: Path) -> None:
    """Each pass is one batch, so one iterator for all of them cannot be had."""
    facts = {"workers": workers, "persistent": persistent, "batches": 1}
    begun = Span("DataLoader", 0, "loader", facts, Kind.INSTANT)
    stack = f"{MAIN};DataLoader.__iter__ ({TORCH}/utils/data/dataloader.py:400)", "R"
    (found,) = answer(tmp_path, lambda _: [begun, Span(LOADER, 3_000), MODEL], stack).findings
    assert found.id == "input-bound-iterator" and action in found.action and "next(batches)" not in found.action
    assert ("starts 2 workers each time" in found.evidence[0]) is (workers == 2 and not persistent)


@pytest.mark.parametrize(("state", "waits"), [("S", True), ("R", False)])
def test_items_that_wait_for_the_network(state: str, waits: bool, tmp_path: Path) -> None:
    """They need no processor, so more workers than processors are advised."""

    def step(number: int) -> list[Span]:
        begun = Span("DataLoader", 0, "loader", {"workers": 0}, Kind.INSTANT)
        return [*([] if number else [begun]), Span(LOADER, 20_000), MODEL]

    fetch = f"{MAIN};fetch ({TORCH}/utils/data/_utils/fetch.py:54);Images.__getitem__ (/p/train.py:9)"
    (found,) = answer(tmp_path, step, (fetch, state)).findings
    assert found.id == "input-bound-in-process"
    assert any("is waiting" in text for text in found.evidence) is waits


@pytest.mark.parametrize(
    ("library", "action"),
    [
        ("post (site-packages/httpx/_client.py:1144);read (site-packages/httpcore/_sync.py:9)", "to another thread"),
        (
            "Queue.get (/lib/python3.11/queue.py:171);Condition.wait (/lib/python3.11/threading.py:327)",
            "fills the queue",
        ),
        (
            "Queue.put (/lib/python3.11/queue.py:140);Condition.wait (/lib/python3.11/threading.py:327)",
            "to another thread",
        ),
    ],
)
def test_the_function_that_waits_in_a_library(library: str, action: str, tmp_path: Path) -> None:
    """For a server, for threads that fill a queue, or for those that empty it."""
    stack = f"{MAIN};Tracker.log (/p/train.py:14);{library}", "S"
    (found,) = answer(tmp_path, lambda _: [MODEL, Span("", 4_000)], stack, waits=True).findings
    assert found.id == "program-waits" and str(found.places[0]) == "Tracker.log (/p/train.py:14)"
    assert action in found.action


SKLEARN = "roc_auc_score (site-packages/sklearn/metrics/_ranking.py:621)"
MODULE = f"Module._call_impl ({TORCH}/nn/modules/module.py:1784);Bert.forward (site-packages/transformers/bert.py:9)"


def test_the_function_that_calls_a_library_between_operators(tmp_path: Path) -> None:
    """A module of a library computes operators, and is not what runs between them."""
    auc, model = (f"{MAIN};Metrics.update (/p/train.py:14);{SKLEARN}", "R"), (f"{MAIN};{MODULE}", "R")
    (found,) = answer(tmp_path, lambda _: [MODEL, Span("", 1_000)], auc, model, model).findings
    assert found.id == "python-between-operators" and str(found.places[0]) == "Metrics.update (/p/train.py:14)"


TEXT = f"Tensor.__format__ ({TORCH}/_tensor.py:1142);_str ({TORCH}/_tensor_str.py:715);Tensor.__iter__ ({TORCH}/_tensor.py:1195)"


@pytest.mark.parametrize(("others", "is_found"), [(3, True), (10, False)])
def test_texts_of_tensors(others: int, is_found: bool, tmp_path: Path) -> None:
    """Their operators and the Python between them are one cause."""
    text, model = (f"{MAIN};Net.forward (/p/train.py:14);{TEXT}", "R"), (f"{MAIN};{MODULE}", "R")
    tiny = [Span("aten::select", 1, "cpu_op"), Span("", 1)] * 1_200
    found = answer(tmp_path, lambda _: [MODEL, *(tiny if is_found else [])], text, *[model] * others).findings
    assert [one.id for one in found] == ["text-of-tensors"] * is_found
    assert not found or (found[0].cost == 0.25 and found[0].places[0].function == "Net.forward")


@pytest.mark.parametrize(
    ("third", "found"),
    [
        ("main (/p/train.py:22)", ["67% main (/p/train.py:20)", "33% main (/p/train.py:22)"]),
        (f"{MAIN};evaluate (/p/train.py:8)", ["67% evaluate (/p/train.py:7)", "33% evaluate (/p/train.py:8)"]),
    ],
)
def test_lines_of_a_loop_without_a_fault(third: str, found: list[str], tmp_path: Path) -> None:
    """Those that call what takes most of the time; where all of that is one function, its lines."""
    first = f"{MAIN};evaluate (/p/train.py:7);{MODULE}", "R"
    whole = answer(tmp_path, lambda _: [MODEL], first, first, (f"{third};{MODULE}", "R"))
    assert not whole.findings and [f"{place.share:.0%} {place}" for place in whole.ranks[0].places] == found
    assert "Where" in str(whole)


@pytest.mark.parametrize(("function", "inner"), [("bias", "bias.<locals>.<listcomp>"), ("<module>", "<genexpr>")])
def test_comprehensions_belong_to_their_function(function: str, inner: str, tmp_path: Path) -> None:
    """It has the samples of all of them."""
    outer = f"{MAIN};{function} (/p/train.py:6)"
    stacks = (
        (outer, "R"),
        (f"{outer};{inner} (/p/train.py:7)", "R"),
        (f"{outer};{inner}.<listcomp> (/p/train.py:7)", "R"),
    )
    (found,) = answer(tmp_path, lambda _: [MODEL, Span("", 4_000)], *stacks).findings
    assert found.places[0].function == function and found.places[0].line == 7 and found.places[0].share == 1


@pytest.mark.parametrize(("count", "us", "is_found"), [(30, 100, True), (5, 600, False), (30, 5, False)])
def test_many_small_collectives(count: int, us: int, is_found: bool, tmp_path: Path) -> None:
    """As of gradients that are averaged one by one; few or quick ones are no fault."""
    found = answer(tmp_path, lambda _: [MODEL, *[Span("gloo:all_reduce", us)] * count], (MAIN, "S")).findings
    assert [one.id for one in found] == ["many-collectives"] * is_found
    assert not found or found[0].title == "30 collectives in each step take 60% of it." and "buckets" in found[0].action


@pytest.mark.parametrize(("size", "certainty"), [(2, "certain"), (4, "likely")])
def test_many_collectives_where_ranks_are_missing(size: int, certainty: str, tmp_path: Path) -> None:
    """The others may wait for one of these."""
    step = [MODEL, *[Span("gloo:all_reduce", 100)] * 30]
    summaries: list[RankSummary] = []
    for number in range(2):
        place = tmp_path / f"rank{number}"
        place.mkdir()
        answer(place, lambda _: step)
        rank = sc.load(place).ranks[0]
        rank.rank, rank.world_size = number, size
        summaries.append(RankSummary(rank))
    (found,) = judge(Recording(tmp_path, [each.recorded for each in summaries], []), summaries).findings
    assert (found.id, found.certainty) == ("many-collectives", certainty)


def test_many_collectives_before_the_steps(tmp_path: Path) -> None:
    """As of parameters that are sent one by one to the other ranks; no step has one."""
    sent = [Span("gloo:broadcast", 100)] * 1_000
    assert not answer(tmp_path, lambda number: [*(sent if number == 0 else []), MODEL]).findings


@pytest.mark.parametrize(("library", "is_found"), [("broadcast_object_list", True), ("broadcast", False)])
def test_objects_that_are_sent_between_ranks(library: str, is_found: bool, tmp_path: Path) -> None:
    """Those of tensors are no such thing."""
    stack = f"{MAIN};Table.share (/p/train.py:9);{library} ({TORCH}/distributed/distributed_c10d.py:405)", "S"
    found = answer(tmp_path, lambda _: [MODEL], (MAIN, "R"), stack).findings
    assert (
        [(one.id, str(one.places[0])) for one in found] == [("object-collectives", "Table.share (/p/train.py:9)")]
    ) is is_found


def test_steps_that_await_one_thing_after_the_other(tmp_path: Path) -> None:
    """The span says where; the thread is in the event loop, which is no place of the program."""
    stack = "<module> (/p/copy.py:51);run (/lib/python3.11/asyncio/runners.py:190)", "S"
    (found,) = answer(tmp_path, lambda _: [Span("write", 5_000)], stack, waits=True).findings
    assert found.id == "program-waits" and found.title.endswith("most of it in the span write.")
    assert not found.places and found.action.startswith("write: await at once")


@pytest.mark.parametrize(("name", "kind"), [("aten::mul", "tiny-operators"), ("aten::item", "value-read-back")])
def test_the_loop_over_elements_is_named(name: str, kind: str, tmp_path: Path) -> None:
    """Though more samples are in modules that are called elsewhere."""
    module = f"{MAIN};Linear.forward ({TORCH}/nn/modules/linear.py:134)", "R"
    loop = [Span(name, 1, "cpu_op"), Span("", 1)] * 1_200
    found = answer(tmp_path, lambda _: loop, ("clip (/p/train.py:6)", "S"), module, module).findings
    assert found[0].id == kind and found[0].places[0].function == "clip"


@pytest.mark.parametrize(
    ("us", "operator"), [(6_000, "aten::mul_"), (6_000, "aten::_fused_adamw_"), (1_000, "aten::mul_")]
)
def test_an_optimizer_that_takes_most_of_the_step(us: int, operator: str, tmp_path: Path) -> None:
    """The advice says that fewer updates may do, and the fused one is named if it is not used already."""
    step = [MODEL, Span("Optimizer.step#AdamW.step", us), Span(operator, 1, "cpu_op")]
    found = answer(tmp_path, lambda _: step).findings
    assert [one.id for one in found] == ["slow-optimizer"] * (us > 1_000)
    assert not found or "accumulated" in found[0].action
    assert not found or ("AdamW(..., fused=True)" in found[0].action) is (operator == "aten::mul_")
