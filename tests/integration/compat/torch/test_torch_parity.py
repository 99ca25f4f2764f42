"""Shapes, memory, FLOPs, stacks and backward operators: row by row as torch.profiler has them for the same program."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import stepscope.torch as ours
from stepscope.compat.torch.events.function_events import FunctionEvents
from stepscope.compat.torch.windows.finished_window import FinishedWindow, TorchFlags
from stepscope.exporters.journal import JournalExporter
from stepscope.runtime.events import tracks
from stepscope.runtime.events.tracks import TrackKind
from tests.support.operators import cpu, network, torch
from tests.support.viewers.scene import Scene, make_run, make_window

ASKED: list[dict[str, Any]] = [
    {},
    {"record_shapes": True},
    {"record_shapes": True, "profile_memory": True},
    {"with_flops": True},
    {"with_stack": True},
    {"with_stack": True, "record_shapes": True, "profile_memory": True, "with_flops": True, "with_modules": True},
]


def recorded(p: Any, asked: dict[str, Any]) -> Any:
    """Two training steps, the first of which warms up what torch does once only."""
    model, pictures = network(), torch.randn(4, 1, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "with_stack" in asked:  # without it torch 2.13 has no stacks in tables
            asked = {**asked, "experimental_config": torch._C._profiler._ExperimentalConfig(verbose=True)}
        with p.profile(activities=cpu(), schedule=p.schedule(wait=1, warmup=1, active=2, repeat=1), **asked) as prof:
            for _ in range(5):
                loss = model(torch.cat([pictures, pictures])).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                del loss  # its 4 bytes are freed in the step that made them
                prof.step()
    return prof


def stack_of(row: Any) -> list[str]:
    """Callers, without those in either profiler, and without addresses."""
    return [entry.partition(" at 0x")[0] for entry in row.stack if "profile" not in entry and "stepscope" not in entry]


def answers(prof: Any) -> dict[str, Any]:
    """Answers that are to be the same, Python functions left out: each profiler has some of its own."""
    events = prof.events()
    frames = {event.name for event in events if event.is_python_function}
    other_events = [event for event in events if event.name not in frames]
    averages = [row for row in prof.key_averages() if row.key not in frames]
    return {
        "averages": {
            row.key: (row.count, row.self_cpu_memory_usage, row.cpu_memory_usage, row.flops, row.is_user_annotation)
            for row in averages
        },
        "top level": {row.key for row in averages if row.cpu_parent is None},
        "by shapes": sorted(
            (row.key, str(row.input_shapes), row.count, row.self_cpu_memory_usage)
            for row in prof.key_averages(group_by_input_shape=True)
            if row.key not in frames
        ),
        # Regions begin inside of functions of the profilers' own.
        "by stacks": sorted(
            (row.key, str(stack_of(row)), row.count)
            for row in prof.key_averages(group_by_stack_n=5)
            if row.key not in frames and not row.is_user_annotation
        ),
        "events": sorted(
            (
                event.name,
                event.trace_name,
                str(event.structured_input_shapes),
                str(event.structured_input_strides),
                str(event.input_dtypes),
                event.scope,
                event.cpu_memory_usage,
                "" if event.cpu_parent is None or event.cpu_parent.name in frames else event.cpu_parent.name,
            )
            for event in other_events
        ),
        "columns": prof.key_averages().table().splitlines()[1].split(),
    }


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: "+".join(asked) or "nothing")
def test_answers_are_torchs(asked: dict[str, Any]) -> None:
    """All of them, for all that may be asked for."""
    both = [recorded(module, asked) for module in (ours, torch.profiler)]  # on one line, which is in stacks
    mine, theirs = map(answers, both)
    for what, wanted in theirs.items():
        assert mine[what] == wanted, what
    assert mine["averages"]["ProfilerStep*"][0] == 2
    both[0].raise_errors()


def test_stacks_for_flame_graphs(tmp_path: Path) -> None:
    """Each line is a stack, the outermost first, with its µs; stepscope's functions and threads are not among them."""
    prof = recorded(ours, {"with_stack": True})
    prof.export_stacks(tmp_path / "stacks.txt")
    lines = (tmp_path / "stacks.txt").read_text().splitlines()
    assert all(int(line.rpartition(" ")[2]) > 0 for line in lines)
    assert not [line for line in lines if "stepscope/" in line or "torch/profiler/" in line]
    assert not [event.name for event in prof.events() if event.is_python_function and "stepscope/" in event.name]
    found = [line for line in lines if "nn.Module:_Conv2d_0" in line]
    assert any("recorded" in line.partition("nn.Module:_Conv2d_0")[0] for line in found)
    with pytest.raises(ValueError, match="metric should be one of"):
        prof.export_stacks(tmp_path / "stacks.txt", "self_time")


@pytest.mark.needs("torch")
async def test_kernels_belong_to_the_operators_that_launched_them(tmp_path: Path) -> None:
    """A trace of a device, played from a journal: tables have its columns, times and shares, as torch has them."""
    run, window = make_run(tmp_path), make_window(steps=(0,))
    scene = Scene(run)
    stream = tracks.new(TrackKind.STREAM, 0, 7, "stream 7")
    number: dict[str, Any] = {"External id": 7}
    scene.span("aten::linear", 200, 200, **{"External id": 6})
    scene.span("aten::mm", 230, 100, **number)
    scene.span("cudaLaunchKernel", 240, 10, category="cuda_runtime", **number)
    scene.span("sgemm", 250, 40, category="kernel", track=stream, **number)
    journal = JournalExporter(tmp_path / "journal")
    await journal.open(run)
    await journal.export(scene.batch())
    await journal.close_window(window)
    await journal.aclose()
    finished = FinishedWindow(
        torch_flags=TorchFlags(use_device="cuda"), window=window, journal=journal.path, step_num=1, trace_id="x"
    )
    events = FunctionEvents(finished, None).build()
    averages = {row.key: row for row in events.key_averages()}
    assert averages["aten::linear"].device_time_total == averages["aten::mm"].device_time_total == 40
    assert averages["sgemm"].self_device_time_total == 40 and averages["sgemm"].cpu_time_total == 0
    assert averages["sgemm"].device_type == torch.autograd.DeviceType.CUDA
    assert averages["aten::mm"].self_cpu_time_total == 90 and averages["cudaLaunchKernel"].count == 1
    table = events.key_averages().table(sort_by="self_cuda_time_total")
    assert "Self CUDA %" in table and "Self CUDA time total: 40.000us" in table


@pytest.mark.parametrize("asked", [{}, {"record_shapes": True}, {"record_shapes": True, "with_stack": True}])
@pytest.mark.parametrize("mode", ["auto", "kineto"])
def test_a_text_of_a_region_is_an_input(mode: Any, asked: dict[str, Any]) -> None:
    """Where shapes are recorded, `record_function(name, args)` has one input that is no tensor, in events and in tables."""

    def inputs(p: Any, **more: Any) -> list[Any]:
        with p.profile(activities=cpu(), **asked, **more) as prof:
            for args in ("some text", "", None):
                with p.record_function(f"with {args!r}", args):
                    torch.ones(2)
        fields = ("name", "input_shapes", "concrete_inputs", "kwinputs", "structured_input_strides", "input_dtypes")
        events = [
            [getattr(event, field, None) for field in fields] for event in prof.events() if event.name[:4] == "with"
        ]
        averages = prof.key_averages(group_by_input_shape=True)
        return [*events, sorted((row.key, str(row.input_shapes)) for row in averages if row.key[:4] == "with")]

    assert inputs(ours, mode=mode) == inputs(torch.profiler)
