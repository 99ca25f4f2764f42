"""Accelerate's `profile`, with our handler, and the tracker; a real loop that accumulates gradients."""

# Annotations of torch and Accelerate are incomplete.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# mypy: allow-untyped-calls, disable-error-code="import-untyped"

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.events.record import Kind
from tests.support.basics import Deferred
from tests.support.callback_cases import Training, accelerated, accelerator
from tests.support.frameworks import Runs, check_well, fill
from tests.support.messages import refused

pytestmark = pytest.mark.needs("accelerate")

torch: Any = Deferred("torch")
ours: Any = Deferred("stepscope.accelerate")

OPTION = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2, "skip_first": 1}


def train(using: Any, run: Any, steps: int) -> int:
    """Trains, two batches to a step; how many updates there were."""
    return accelerated(using, run, Training(batches=2 * steps))


def events(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace in object form."""
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def test_all_windows_are_in_accelerates_file(tmp_path: Path) -> None:
    """Accelerate writes what our handler recorded: both cycles, where torch's profiler keeps one."""
    runs = Runs()
    seen: list[tuple[int, int]] = []

    def ready(window: Any) -> None:
        seen.append((window.step_num, len(window.window.steps)))
        window.export_chrome_trace(str(tmp_path / f"step{window.step_num}.json"))

    handler = ours.StepscopeProfileKwargs(
        schedule_option=OPTION,
        output_trace_dir=str(tmp_path / "traces"),
        on_trace_ready=ready,
        settings={"exporters": [runs]},
    )
    using = accelerator(handler, gradient_accumulation_steps=2)
    with using.profile() as run:
        assert isinstance(run, ours.AccelerateRun)
        assert train(using, run, 10) == 10
    check_well(run)
    assert runs.steps("profile") == [(3, 4), (7, 8)]
    names = [event["name"] for event in events(tmp_path / "traces" / "profile_0.json")]
    assert names.count("micro_step") == 8
    assert {f"ProfilerStep#{number}" for number in (3, 4, 7, 8)} <= set(names)
    assert "aten::linear" in names
    assert seen == [(5, 2), (9, 2)]
    first = [event["name"] for event in events(tmp_path / "step5.json")]
    assert first.count("micro_step") == 4 and "ProfilerStep#7" not in first
    assert "micro_step" in run.key_averages().table(sort_by="self_cpu_time_total", row_limit=10)


def test_without_a_schedule_everything_is_one_window(tmp_path: Path) -> None:
    """As with Accelerate's handler; nothing is exported without a directory, and the program may export itself."""
    runs = Runs()
    handler = ours.StepscopeProfileKwargs(settings={"exporters": [runs], "output_dir": str(tmp_path / "run")})
    using = accelerator()
    with using.profile(handler) as run:
        train(using, run, 3)
        run.export_chrome_trace(str(tmp_path / "early.json"))
    assert [str(error).partition(":")[0][-17:] for error in run.errors] == ["within the `with`"]
    assert runs.steps("profile")[0][:3] == (0, 1, 2)
    for name in ("one.json", "two.json"):
        run.export_chrome_trace(str(tmp_path / name))
        assert "micro_step" in {event["name"] for event in events(tmp_path / name)}
    assert len(run.errors) == 1


def test_torchs_own_handler_is_served(tmp_path: Path) -> None:
    """A program's `on_trace_ready` for torch's profiler writes each window here as there."""
    handler = ours.StepscopeProfileKwargs(
        schedule_option={"wait": 0, "warmup": 1, "active": 1, "repeat": 2},
        on_trace_ready=torch.profiler.tensorboard_trace_handler(str(tmp_path / "theirs")),
        settings={"output_dir": str(tmp_path / "run"), "tensorboard": False},
    )
    using = accelerator()
    with using.profile(handler) as run:
        train(using, run, 4)
    check_well(run)
    files = sorted((tmp_path / "theirs").glob("*.pt.trace.json"))
    assert len(files) == 2
    for file in files:
        assert sum(event["name"] == "micro_step" for event in events(file)) == 1


def test_the_tracker_records_logged_numbers(tmp_path: Path) -> None:
    """Numbers are counters, the configuration metadata; step times can be logged like any other metric."""
    memory = sc.exporters.MemoryExporter()
    handler = ours.StepscopeProfileKwargs(settings={"exporters": [memory], "output_dir": str(tmp_path)})
    using = accelerator(handler, log_with=[ours.StepscopeTracker(handler)])
    using.init_trackers("project", config={"rate": 0.5})
    with using.profile() as run:
        train(using, run, 4)
        assert run.metrics() == {}
    check_well(run)
    using.log(run.metrics())
    using.end_training()
    assert memory.names(kind=Kind.COUNTER) == ["updates"] * 8
    assert memory.run is not None and memory.run.metadata()["configuration"] == {"rate": 0.5}
    metrics = run.metrics()
    assert metrics["stepscope/steps"] >= 4
    assert 0 < metrics["stepscope/step_ms_p50"] <= metrics["stepscope/step_ms_p95"] <= metrics["stepscope/step_ms_max"]
    tracker = using.get_tracker("stepscope")
    assert not getattr(tracker, "errors", ())


def test_a_full_disk_costs_the_training_nothing(small_disk: Path) -> None:
    """Training ends as ever, though Accelerate exports in the program's thread; errors are stored."""
    (small_disk / "traces").mkdir()
    fill(small_disk)
    using = accelerator(ours.StepscopeProfileKwargs(output_trace_dir=str(small_disk / "traces")))
    with using.profile() as run:
        assert train(using, run, 3) == 6
    assert run.errors


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"schedule_option": {"active": 0}}, ["active", "0"]),
        ({"settings": {"schedule": None}}, ["settings['schedule']", "schedule_option"]),
        ({"settings": {"ranks": [-1]}}, ["ranks", "-1"]),
        ({"settings": {"unit": "epoch"}}, ["unit", "epoch", "step()"]),
        ({"activities": ["gpu"]}, ["activity", "gpu"]),
        ({"on_trace_ready": 3}, ["on_trace_ready", "3"]),
        ({"activities": "cpu"}, ["activities", "'cpu'", "['cpu']"]),
        ({"record_shape": True}, ["'record_shape'", "did you mean 'record_shapes'?"]),
    ],
)
def test_wrong_values_are_refused_at_once(given: dict[str, Any], facts: list[str]) -> None:
    """When the handler is made."""
    with refused((TypeError, ValueError), *facts):
        ours.StepscopeProfileKwargs(**given)


def loop(run: Any, steps: int) -> None:
    """So many steps."""
    for _ in range(steps):
        torch.ones(2).tanh()
        run.step()


def test_tables_and_events_are_torchs(tmp_path: Path) -> None:
    """By shapes and stacks, as torch's profiler has them: of a window, and of all that have ended."""
    seen: list[Any] = []
    handler = ours.StepscopeProfileKwargs(
        activities=["cpu"],
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
        with_flops=True,
        schedule_option={"wait": 0, "warmup": 1, "active": 1, "repeat": 2},
        on_trace_ready=seen.append,
        settings={"output_dir": str(tmp_path / "run"), "tensorboard": False, "options": sc.Options(linger=60)},
    )
    with accelerator(handler).profile() as run:
        for size in (1, 2, 3, 4):
            torch.mm(torch.ones(size, size), torch.ones(size, size))
            run.add_metadata("size", size)
            run.step()
    check_well(run)
    products = [row for row in run.key_averages(group_by_input_shape=True) if row.key == "aten::mm"]
    assert [(row.count, row.input_shapes) for row in products] == [
        (1, [[2, 2], [2, 2]]),
        (1, [[4, 4], [4, 4]]),
    ]
    assert [row.flops for row in products] == [16, 128]
    (last,) = [row for row in seen[1].key_averages(group_by_input_shape=True) if row.key == "aten::mm"]
    assert last.input_shapes == [[4, 4], [4, 4]] and seen[1].step_num == 4
    assert any(
        "test_accelerate" in line
        for row in run.key_averages(group_by_stack_n=5)
        for line in row.stack
        if row.key == "aten::mm"
    )
    assert [event.input_shapes for event in run.events() if event.name == "aten::mm"] == [
        [[2, 2], [2, 2]],
        [[4, 4], [4, 4]],
    ]
    run.export_stacks(str(tmp_path / "stacks.txt"), "self_cpu_time_total")
    assert "test_accelerate" in (tmp_path / "stacks.txt").read_text()
    run.export_memory_timeline(str(tmp_path / "memory.json"))
    assert json.loads((tmp_path / "memory.json").read_text())
    seen[0].export_chrome_trace(tmp_path / "first.json")
    metadata = json.loads((tmp_path / "first.json").read_text())
    assert metadata["with_stack"] == 1 and metadata["framework"] == "accelerate" and metadata["size"] == 4
    with pytest.raises(TypeError, match="group_by_shape"):
        run.key_averages(group_by_shape=True)  # pyright: ignore[reportCallIssue]


def test_results_that_cannot_be_had(tmp_path: Path) -> None:
    """The log says why."""
    settings: Any = {"output_dir": str(tmp_path), "options": sc.Options(journal=False)}
    seen: list[Any] = []
    with accelerator().profile(ours.StepscopeProfileKwargs(on_trace_ready=seen.append, settings=settings)) as run:
        loop(run, 1)
    for results in (run, seen[0]):
        with refused(ProfilerStateError, "Options.journal"):
            results.key_averages()
    with accelerator().profile(ours.StepscopeProfileKwargs(settings={"output_dir": str(tmp_path)})) as run:
        loop(run, 1)
        assert len(run.key_averages()) == len(run.events()) == 0
    with refused(ProfilerStateError, "export_stacks()", "with_stack=True"):
        run.export_stacks(str(tmp_path / "stacks.txt"))
    with accelerator().profile(
        ours.StepscopeProfileKwargs(settings={"ranks": [1], "output_dir": str(tmp_path)})
    ) as run:
        loop(run, 1)
    assert run.profiler is None and len(run.key_averages()) == 0
