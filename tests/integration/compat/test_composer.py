"""The handler for Composer, driven by a small trainer with Composer's events, and its schedules."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope as sc
from stepscope.backends.conformance import check_backend
from stepscope.backends.torch.kineto.trace_files import ChromeFilesBackend
from stepscope.composer import StepscopeTraceHandler, cyclic_schedule
from stepscope.runtime.events.record import Kind
from stepscope.runtime.schedule.action import ProfilerAction
from tests.support.arming import SOCKET, arm_here, say_in_environment
from tests.support.composer_trainer import Action, SmallTrainer, Timestamp, write_trace
from tests.support.frameworks import Runs, check_incomplete, check_well, fill, steps
from tests.support.messages import refused

ACTIONS = {
    ProfilerAction.NONE: Action.SKIP,
    ProfilerAction.WARMUP: Action.WARMUP,
    ProfilerAction.RECORD: Action.ACTIVE,
    ProfilerAction.RECORD_AND_SAVE: Action.ACTIVE_AND_SAVE,
}


def theirs(**cycle: int) -> Any:
    """A schedule that answers with Composer's actions."""
    ours = cyclic_schedule(**cycle)

    def answer(state: Any) -> Action:
        return ACTIONS[ours(state)]

    return answer


def handler(tmp_path: Path, **given: Any) -> StepscopeTraceHandler:
    """One that writes into the test's directory."""
    return StepscopeTraceHandler(output_dir=str(tmp_path / "{run_name}"), **given)


def test_composers_schedule_and_markers_are_followed(tmp_path: Path) -> None:
    """A window in each epoch, markers as spans, microbatches in it."""
    runs = Runs()
    traced = handler(tmp_path, exporters=[runs])
    cycle = theirs(skip_first=1, wait=1, warmup=1, active=3)
    SmallTrainer(traced, schedule=cycle, microbatches=2).fit(epochs=2)
    check_well(traced)
    assert runs.steps("fit") == [(3, 4, 5), (11, 12, 13)]
    assert all(window.complete for window in runs.windows("fit"))
    spans = runs.spans("fit")
    assert spans.count("event/batch") == 6 and spans.count("micro_step") == 12
    assert (tmp_path / "small" / "fit" / "journal").is_file()


def test_a_window_ends_with_its_epoch(tmp_path: Path) -> None:
    """However long it was to be; the next epoch begins anew."""
    runs = Runs()
    traced = handler(tmp_path, exporters=[runs])
    SmallTrainer(traced, schedule=theirs(wait=1, warmup=1, active=9), batches=5).fit(epochs=2)
    check_well(traced)
    assert runs.steps("fit") == [(2, 3, 4), (7, 8, 9)]


def test_without_composers_profiler_it_has_a_schedule_of_its_own(tmp_path: Path) -> None:
    """By the batches of an epoch, or by those of the training; torch's operators are recorded then."""
    runs = Runs()
    traced = handler(tmp_path, exporters=[runs], batch_schedule=cyclic_schedule(warmup=1, active=2))
    SmallTrainer(traced, batches=5).fit(epochs=2)
    check_well(traced)
    assert runs.steps("fit") == [(1, 2), (6, 7)]
    assert "aten::linear" in runs.spans("fit")
    runs = Runs()
    traced = handler(tmp_path, exporters=[runs], schedule=sc.schedule(wait=3, warmup=0, active=4, repeat=1))
    SmallTrainer(traced, batches=5).fit(epochs=2)
    check_well(traced)
    assert runs.steps("fit") == [(3, 4, 5, 6)]


@pytest.mark.parametrize("own", [True, False])
def test_a_resumed_training_goes_on_counting(tmp_path: Path, own: bool) -> None:
    """In its epoch the first cycle begins where the training does; later ones begin with their epoch."""
    runs = Runs()
    cycle = {"wait": 0, "warmup": 1, "active": 2}
    at = Timestamp(epoch=1, batch=11, batch_in_epoch=3)
    if own:
        traced = handler(tmp_path, exporters=[runs], batch_schedule=cyclic_schedule(**cycle))
        SmallTrainer(traced, resumed=at).fit(epochs=2)
    else:
        traced = handler(tmp_path, exporters=[runs])
        SmallTrainer(traced, resumed=at, schedule=theirs(**cycle)).fit(epochs=2)
    check_well(traced)
    assert runs.steps("fit") == [(12, 13)]


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_a_file_of_torchs_profiler_becomes_part_of_the_window(tmp_path: Path, packed: str) -> None:
    """Though the program deletes it at once, and reading takes its time."""
    memory = sc.exporters.MemoryExporter()
    traced = handler(tmp_path, exporters=[memory])

    def in_batch(batch: int) -> None:
        if batch == 3:
            file = write_trace(tmp_path / f"torch.pt.trace.json{packed}", ["marked by torch"])
            traced.process_chrome_json_trace_file(file)
            file.unlink()

    SmallTrainer(traced, schedule=theirs(wait=1, warmup=1, active=3), in_batch=in_batch).fit(epochs=1)
    check_well(traced)
    assert steps(memory) == [(2, 3, 4)]
    spans = memory.events(kind=Kind.SPAN)
    found = dict(zip(memory.names(kind=Kind.SPAN), spans["step"].tolist(), strict=True))
    assert found["marked by torch"] == 3 and found["aten::add"] == 3
    assert traced.profiler is not None
    assert "chrome_files" in str(traced.profiler.report())


def test_a_file_that_is_none_is_a_note(tmp_path: Path) -> None:
    """One that is missing is an error of the hook; one that is no trace, a note of the source."""
    traced = handler(tmp_path, tensorboard=False)
    (tmp_path / "no.json").write_text("no trace")

    def in_batch(batch: int) -> None:
        if batch == 3:
            traced.process_chrome_json_trace_file(tmp_path / "missing.json")
            traced.process_chrome_json_trace_file(tmp_path / "no.json")

    SmallTrainer(traced, schedule=theirs(wait=1, warmup=1, active=3), in_batch=in_batch).fit(epochs=1)
    assert [type(error) for error in traced.errors] == [FileNotFoundError]
    assert traced.profiler is not None
    assert "no.json could not be read" in str(traced.profiler.report())
    assert traced.profiler.audit() == ()


def test_instants_and_counters(tmp_path: Path) -> None:
    """What Composer's system profiler and markers tell besides durations."""
    memory = sc.exporters.MemoryExporter()
    traced = handler(tmp_path, exporters=[memory], schedule=None)

    def in_batch(batch: int) -> None:
        stamp = Timestamp(batch=batch)
        traced.process_instant_event("saved", ("checkpoint",), stamp, 0)
        traced.process_counter_event("memory", (), stamp, 0, {"used": 3, "free": 1.5})

    SmallTrainer(traced, batches=4, in_batch=in_batch).fit(epochs=1)
    check_well(traced)
    assert memory.names(kind=Kind.INSTANT) == ["saved"] * 4
    assert memory.names(kind=Kind.COUNTER) == ["memory/used", "memory/free"] * 4


@pytest.mark.checklist("B3")
def test_epochs_can_be_the_unit(tmp_path: Path) -> None:
    """The schedule counts epochs."""
    runs = Runs()
    cycle = sc.schedule(wait=1, warmup=0, active=2, repeat=1)
    traced = handler(tmp_path, exporters=[runs], unit="epoch", schedule=cycle)
    SmallTrainer(traced, batches=3).fit(epochs=4)
    check_well(traced)
    assert runs.steps("fit") == [(1, 2)]
    assert runs.spans("fit").count("micro_step") == 6


def test_an_exception_goes_on_and_the_window_is_incomplete(tmp_path: Path) -> None:
    """The trainer closes its callbacks, whatever ended it."""
    runs = Runs()
    traced = handler(tmp_path, exporters=[runs])

    def in_batch(batch: int) -> None:
        if batch == 4:
            raise ZeroDivisionError("the training fails")

    with pytest.raises(ZeroDivisionError):
        SmallTrainer(traced, schedule=theirs(wait=1, warmup=0, active=9), in_batch=in_batch).fit(epochs=1)
    traced.raise_errors()
    assert runs.steps("fit") == [(1, 2, 3)]
    check_incomplete(runs, "fit")


def test_a_broken_schedule_exporter_or_disk_costs_the_training_nothing(tmp_path: Path, small_disk: Path) -> None:
    """Training ends as ever; errors are kept."""

    def broken(state: Any) -> Any:
        raise KeyError("schedule")

    fill(small_disk)
    exporter = sc.exporters.MemoryExporter(name="broken", fail={"export": RuntimeError("no")})
    for traced, expected in (
        (handler(tmp_path, batch_schedule=broken), KeyError),
        (handler(tmp_path, exporters=[exporter], schedule=None), sc.errors.ExporterError),
        (handler(small_disk), sc.errors.ExporterError),
    ):
        trainer = SmallTrainer(traced)
        trainer.fit(epochs=1)
        assert trainer.state.timestamp.batch == 8
        assert traced.errors and isinstance(traced.errors[0], expected)


@given(
    skip_first=st.integers(0, 4),
    wait=st.integers(0, 3),
    warmup=st.integers(0, 3),
    active=st.integers(1, 4),
    repeat=st.integers(0, 3),
    resumed=st.integers(0, 5),
    length=st.one_of(st.none(), st.integers(1, 30)),
)
def test_the_schedule_is_composers(
    skip_first: int, wait: int, warmup: int, active: int, repeat: int, resumed: int, length: int | None
) -> None:
    """An epoch written down in order: what is skipped, then cycle after cycle, cut with a save at its last batch."""
    batches = 30 if length is None else length
    cycle = ["skip"] * wait + ["warmup"] * warmup + ["active"] * (active - 1) + ["active_and_save"]
    expected = ["skip"] * (skip_first + resumed) + cycle * (repeat or 30) + ["skip"] * 60
    expected = expected[:batches]
    if length is not None and expected[-1] == "active":
        expected[-1] = "active_and_save"
    schedule = theirs(skip_first=skip_first, wait=wait, warmup=warmup, active=active, repeat=repeat)
    profiler = SimpleNamespace(resumption_batch_idx=resumed)
    found = [
        schedule(
            SimpleNamespace(timestamp=Timestamp(batch_in_epoch=batch), dataloader_len=length, profiler=profiler)
        ).value
        for batch in range(batches)
    ]
    assert found == expected


def test_wrong_values_are_refused_at_once(tmp_path: Path) -> None:
    """By name, when they are given."""
    with refused(ValueError, "active", "0"):
        cyclic_schedule(active=0)
    with refused(ValueError, "skip_first", "-1"):
        cyclic_schedule(skip_first=-1)
    with refused(TypeError, "skip_first", "1.5"):
        cyclic_schedule(skip_first=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "batch_schedule", "3"):
        StepscopeTraceHandler(batch_schedule=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "batch_schedule", "schedule", "keep_last"):
        StepscopeTraceHandler(batch_schedule=cyclic_schedule(), schedule=None)


def test_files_as_a_source_keep_the_contract_of_backends(tmp_path: Path) -> None:
    """The conformance suite, with a file of torch's profiler in each window."""
    made: list[ChromeFilesBackend] = []

    def make() -> ChromeFilesBackend:
        made.append(ChromeFilesBackend())
        return made[-1]

    def exercise() -> None:
        made[-1].add(write_trace(tmp_path / "torch.json", ["marked by torch"]))

    check_backend(make, exercise=exercise, deadline=60, tolerance=50_000_000)


@pytest.mark.parametrize("profiled", [True, False])
def test_an_operator_has_steps_recorded(tmp_path: Path, profiled: bool) -> None:
    """Beside those of Composer's schedule, if it has a profiler; else no others by default."""
    runs = Runs()
    traced = handler(tmp_path, exporters=[runs], control=SOCKET)

    def in_batch(batch: int) -> None:
        if batch == 4:
            assert arm_here(2)

    cycle = theirs(wait=1, warmup=0, active=2, repeat=1) if profiled else None
    SmallTrainer(traced, schedule=cycle, batches=9, in_batch=in_batch).fit(epochs=1)
    check_well(traced)
    assert runs.steps("fit") == ([(1, 2), (5, 6)] if profiled else [(5, 6)])
    assert runs.windows("fit")[-1].metadata["armed"]["trigger"] == "socket"


@pytest.mark.checklist("B6")
def test_the_environment_has_steps_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of Composer's schedule, in a directory for the stage where it says."""
    say_in_environment(monkeypatch, window={"start_step": 4, "steps": 2}, output_dir=str(tmp_path / "said"))
    runs = Runs()
    traced = handler(tmp_path, exporters=[runs])
    SmallTrainer(traced, schedule=theirs(wait=0, warmup=0, active=2)).fit(epochs=1)
    check_well(traced)
    assert runs.steps("fit") == [(4, 5)]
    assert (tmp_path / "said" / "fit" / "journal").is_file() and not (tmp_path / "small").exists()
