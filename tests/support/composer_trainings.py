"""Tests with Composer itself, which `tests/system/compat/test_composer.py` runs in an environment that has it."""

# Composer is not among what the types are checked with.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.compat.frameworks.composer_schedule import our_action
from stepscope.runtime.events.record import Kind
from tests.support.arming import SOCKET, arm_here
from tests.support.composer_models import composer, data, fit
from tests.support.frameworks import Runs, check_well

front: Any = import_module("stepscope.composer")
profiling: Any = import_module("composer.profiler")


def handler(directory: Path, **given: Any) -> tuple[Any, Runs]:
    """A handler that writes into the directory, and what will have its runs."""
    runs = Runs()
    return front.StepscopeTraceHandler(output_dir=str(directory / "{run_name}"), exporters=[runs], **given), runs


def profiler_of(directory: Path, traced: Any, **given: Any) -> Any:
    """Composer's profiler with its schedule, its markers, and torch's profiler, whose files it hands over."""
    return profiling.Profiler(
        schedule=profiling.cyclic_schedule(**given),
        trace_handlers=[traced],
        sys_prof_cpu=False,
        torch_prof_folder=str(directory / "torch"),
        torch_prof_remote_file_name=None,
        torch_prof_memory_filename=None,
        torch_prof_use_gzip=True,
    )


def numbers(runs: Runs, name: str) -> list[int]:
    """The steps in which spans of a name are."""
    memory = runs["fit"]
    events = zip(memory.names(kind=Kind.SPAN), memory.events(kind=Kind.SPAN)["step"].tolist(), strict=True)
    return sorted(step for found, step in events if found == name)


def check(traced: Any, runs: Runs, steps: list[tuple[int, ...]]) -> None:
    """These steps are recorded, each with its two microbatches and torch's operators in it, and all is accounted for."""
    check_well(traced)
    assert runs.stages == ["fit"] and runs.steps("fit") == steps
    assert all(window.complete for window in runs.windows("fit"))
    every = [number for window in steps for number in window]
    twice = sorted(every * 2)
    assert numbers(runs, "loss") == numbers(runs, "micro_step") == twice
    assert set(numbers(runs, "aten::linear")) == set(every)


def test_its_profiler(tmp_path: Path) -> None:
    """Its schedule is followed in each epoch, its markers are recorded, and the files of torch's profiler are read."""
    traced, runs = handler(tmp_path)
    profiler = profiler_of(tmp_path, traced, skip_first=1, wait=1, warmup=1, active=3, repeat=1)

    def mark() -> None:
        profiler.marker("load").counter({"cpu": 0.5})
        profiler.marker("noted").instant()

    fit(happens={8: mark}, epochs=2, accumulated=2, profiler=profiler)
    check(traced, runs, [(3, 4, 5), (11, 12, 13)])
    # Composer calls no events for the batch that it saves after.
    assert runs.spans("fit").count("event/batch") == 4 and runs.spans("fit").count("event/backward") == 8
    assert runs["fit"].names(kind=Kind.COUNTER) == ["load/cpu"]
    assert runs["fit"].names(kind=Kind.INSTANT) == ["noted"]
    assert (tmp_path / "small" / "fit" / "journal").is_file()


def test_a_window_ends_with_its_epoch(tmp_path: Path) -> None:
    """However long it was to be; the next epoch begins anew."""
    traced, runs = handler(tmp_path, batch_schedule=front.cyclic_schedule(wait=1, warmup=1, active=9))
    fit(batches=5, epochs=2, accumulated=2, callbacks=[traced])
    check(traced, runs, [(2, 3, 4), (7, 8, 9)])


def test_a_schedule_of_ours(tmp_path: Path) -> None:
    """For each epoch, without Composer's profiler; an evaluation falls into a step."""
    traced, runs = handler(tmp_path, batch_schedule=front.cyclic_schedule(wait=5, warmup=1, active=2))
    fit(epochs=2, accumulated=2, callbacks=[traced], eval_dataloader=data(2, 4), eval_interval="7ba")
    check(traced, runs, [(6, 7), (14, 15)])
    assert runs.spans("fit").count("eval") == 2


def test_a_training_that_goes_on(tmp_path: Path) -> None:
    """From a checkpoint in an epoch; with its own profiler Composer cannot do that."""
    fit(max_duration="11ba", save_folder=str(tmp_path / "saved"), save_interval="11ba")
    (checkpoint,) = (tmp_path / "saved").glob("ep*.pt")
    traced, runs = handler(tmp_path, batch_schedule=front.cyclic_schedule(wait=0, warmup=1, active=2, repeat=1))
    fit(epochs=2, accumulated=2, callbacks=[traced], load_path=str(checkpoint))
    check(traced, runs, [(12, 13)])


def test_a_requested_window_and_the_schedule_of_composer(tmp_path: Path) -> None:
    """Where Composer has a profiler."""
    traced, runs = handler(tmp_path, control=SOCKET)
    profiler = profiler_of(tmp_path, traced, wait=1, warmup=0, active=2, repeat=1)
    fit(happens={4: lambda: arm_here(2)}, batches=9, profiler=profiler)
    check_well(traced)
    assert runs.steps("fit") == [(1, 2), (5, 6)]


def test_errors_are_stored(tmp_path: Path) -> None:
    """Of a schedule that raises, and of a file that is missing."""

    def broken(state: Any) -> Any:
        raise KeyError("schedule")

    traced, _ = handler(tmp_path, batch_schedule=broken)
    assert int(fit(callbacks=[traced]).state.timestamp.batch) == 8
    assert {type(error) for error in traced.errors} == {KeyError}
    traced, _ = handler(tmp_path)
    missing = tmp_path / "missing.json"
    profiler = profiler_of(tmp_path, traced, wait=1, warmup=1, active=3)
    fit(happens={3: lambda: traced.process_chrome_json_trace_file(missing)}, profiler=profiler)
    assert {type(error) for error in traced.errors} == {FileNotFoundError}


def test_wrong_values_are_refused_at_once() -> None:
    """By name, when they are passed."""
    with pytest.raises(TypeError, match="batch_schedule must be callable"):
        front.StepscopeTraceHandler(batch_schedule=3)
    with pytest.raises(ValueError, match="batch_schedule says what is recorded; leave schedule and keep_last out"):
        front.StepscopeTraceHandler(batch_schedule=front.cyclic_schedule(), schedule=None)


def test_its_schedule_and_ours_are_one() -> None:
    """For every batch of an epoch, whatever the cycle, the length and where the training was resumed."""
    for skip, wait, warmup, active, repeat, at, length in product(
        (0, 2), (0, 1), (0, 2), (1, 3), (0, 1, 2), (0, 3), (None, 7, 12)
    ):
        cycle = {"skip_first": skip, "wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
        ours, theirs = front.cyclic_schedule(**cycle), profiling.cyclic_schedule(**cycle)
        for batch in range(length or 20):
            state: Any = SimpleNamespace(
                timestamp=composer.Timestamp(batch_in_epoch=batch),
                dataloader_len=None if length is None else composer.Time.from_batch(length),
                profiler=SimpleNamespace(resumption_batch_idx=at),
            )
            assert our_action(ours(state)) is our_action(theirs(state)), (cycle, at, length, batch)
