"""Results that programs read of torch's profiler, compared with torch's own: inputs of operators, the last window, the end of a trace."""

from __future__ import annotations

import importlib
import json
import logging
import lzma
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stepscope.torch as ours
from stepscope.analysis.reading.torch_traces import trace_of
from stepscope.backends.parallel_layout import groups
from stepscope.compat.torch.events.function_events import FunctionEvents
from stepscope.compat.torch.windows.finished_window import FinishedWindow, TorchFlags
from stepscope.exporters.specimens import run_in
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.basics import ROOT, require
from tests.support.operators import cpu, torch

RECORDED = ROOT / "tests" / "support" / "data" / "h200_gpt_two_streams.json.xz"
"""One window of torch 2.11 on an H200."""


def theirs(**arguments: Any) -> Any:
    """torch's own profile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.profiler.profile(activities=cpu(), **arguments)


def work() -> None:
    """Operators with scalars, lists, constants and tensors, and a function with keyword arguments."""
    x = torch.rand(2, 6)
    x.as_strided([4, 3], [1, 4])
    torch.add(x, 1.5, alpha=2)
    torch.full((2, 2), float("inf"))
    torch.nn.functional.dropout(x, 0.5, True)
    torch.clamp(x, None, -1.5e-7)
    with torch._C._profiler._RecordFunctionFast("fast", [x, x], {"stream": 3, "grid": "x", "on": True, "share": 0.5}):
        x.add(x)


def test_inputs_of_operators() -> None:
    """Values of inputs have the types that torch gives them; keyword arguments are apart from what torch records itself."""
    with theirs(record_shapes=True) as other:
        work()
    with ours.profile(activities=cpu(), record_shapes=True, mode="kineto") as prof:
        work()
    found, wanted = (
        [(event.name, event.concrete_inputs, event.kwinputs, event.input_shapes) for event in one.events()]
        for one in (prof, other)
    )
    assert found == wanted
    assert any(keywords for _, _, keywords, _ in found)


def test_metadata_as_json() -> None:
    """`metadata_json` has what torch's own has, and what traces have besides."""
    config = torch._C._profiler._ExperimentalConfig(expose_kineto_event_metadata=True)
    found: list[list[dict[str, Any]]] = []
    for profile in (theirs, partial(ours.profile, activities=cpu())):
        with profile(experimental_config=config) as prof:
            torch.add(1, 5)
        with pytest.warns(FutureWarning, match="event_metadata"):
            found.append(
                [json.loads(f"{{{event.metadata_json}}}") for event in prof.events() if event.name == "aten::add"]
            )
    (other,), (mine,) = found
    assert other.keys() == {"Ev Idx"} and mine.keys() > other.keys()


def test_overloads_of_operators() -> None:
    """Overloads have names of their own in addition to the operator's, in events and in tables; a trace has both in one text."""
    found: list[Any] = []
    for profile in (theirs, partial(ours.profile, activities=cpu(), mode="kineto")):
        config = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
        with profile(experimental_config=config) as prof:
            torch.add(1, 5)
            torch.ones(3).sum()
        rows = [prof.key_averages(), prof.key_averages(group_by_overload_name=True)]
        found.append(
            (
                [(event.name, event.overload_name) for event in prof.events()],
                *(sorted((row.key, row.overload_name, row.count) for row in table) for table in rows),
            )
        )
        prof.export_chrome_trace("trace.json")
        assert "aten::add.Tensor" in {
            event["name"] for event in json.loads(Path("trace.json").read_text())["traceEvents"]
        }
    (events, table, grouped), (wanted_events, wanted_table, wanted_grouped) = found[1], found[0]
    assert events == wanted_events and ("aten::add", "Tensor") in events
    assert grouped == wanted_grouped
    # A table that is not grouped has whichever overload came first, in torch.
    assert [(name, count) for name, _, count in table] == [(name, count) for name, _, count in wanted_table]


@pytest.mark.parametrize("all_threads", [True, False])
def test_operators_of_other_threads(all_threads: bool) -> None:
    """With `profile_all_threads` they are there, as in torch. The next profile is as ever."""
    square = torch.ones(8, 8)
    found: list[list[int]] = []
    for profile in (theirs, partial(ours.profile, activities=cpu())):
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=all_threads)
        with profile(experimental_config=config) as prof:
            thread = threading.Thread(target=lambda: square @ square)
            thread.start()
            thread.join()
            _ = square @ square
        found.append(sorted(Counter(event.thread for event in prof.events() if event.name == "aten::mm").values()))
    assert found == [[1, 1] if all_threads else [1]] * 2
    with ours.profile(activities=cpu(), record_shapes=True) as prof:
        _ = square @ square
    prof.raise_errors()
    assert [event.input_shapes for event in prof.events() if event.name == "aten::mm"] == [[[8, 8], [8, 8]]]


def test_a_live_profile_while_another_records_all_threads() -> None:
    """It has no operators and says why; the other one, which it must not end, has those of both threads."""
    lives: list[Any] = []

    def work() -> None:
        with ours.profile(activities=cpu(), mode="stream") as live:
            torch.ones(2).tanh()
        lives.append(live)

    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with ours.profile(activities=cpu(), experimental_config=config) as prof:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        torch.ones(2).sigmoid()
    names = {row.key for row in prof.key_averages()}
    assert {"aten::tanh", "aten::sigmoid"} <= names
    assert "records all threads with kineto" in " ".join(lives[0].run.report().backends["torch"].notes)


def test_metadata_of_kernels(tmp_path: Path) -> None:
    """Grid, stream and the like of a kernel are in `event_metadata`, as torch has them. The recording is of an H200."""
    require("torch")
    original = tmp_path / "original.json"
    original.write_bytes(lzma.decompress(RECORDED.read_bytes()))
    rank = trace_of(original)
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    for batch in rank.batches():
        writer.write_batch(batch)
    window = rank.windows[0]
    writer.write_window(window)
    writer.close()
    finished = FinishedWindow(
        torch_flags=TorchFlags(use_device="cuda"), window=window, journal=writer.path, step_num=1, trace_id=""
    )
    events = FunctionEvents(finished, None).build()
    launches = arrows(json.loads(original.read_text())["traceEvents"], "ac2g")
    assert [sum(numbers.values()) for numbers in flows(events, 2)] == [sum(numbers.values()) for numbers in launches]
    kernels = [
        event.event_metadata for event in events if event.event_metadata is not None and event.event_metadata.grid
    ]
    recorded = [
        event["args"] for event in json.loads(original.read_text())["traceEvents"] if event.get("cat") == "kernel"
    ]
    assert Counter((tuple(one.grid), tuple(one.block), one.stream) for one in kernels) == Counter(
        (tuple(args["grid"]), tuple(args["block"]), args["stream"]) for args in recorded
    )


def arrows(trace: Any, category: str) -> list[Counter[int]]:
    """Numbers of the flows of a trace, of those that begin and those that end."""
    return [
        Counter(event["id"] for event in trace if event.get("cat") == category and event["ph"] == phase)
        for phase in ("s", "f")
    ]


def flows(events: Any, kind: int) -> list[Counter[int]]:
    """The same, of events with torch's number of the kind."""
    return [
        Counter(event.flow_id for event in events if event.flow_type == kind and event.flow_start is starts)
        for starts in (True, False)
    ]


def train_once() -> None:
    """A forward and a backward pass, in a region."""
    with ours.record_function("region"):
        torch.nn.Linear(4, 4)(torch.rand(2, 4)).sum().backward()


@pytest.mark.parametrize(("mode", "details"), [("stream", {}), ("kineto", {}), ("kineto", {"with_stack": True})])
def test_events_are_those_of_the_trace(mode: Any, details: dict[str, Any]) -> None:
    """Kinds of events, flows, and numbers of Python functions and modules are as torch has them, and as the exported trace has them.
    Operators that arrive live have no flows."""
    train_once()
    linked = mode == "kineto"
    with theirs(**details) as other:
        train_once()
    with ours.profile(activities=cpu(), mode=mode, **details) as prof:
        train_once()
    found, wanted = (
        Counter(
            (event.name, event.activity_type, linked and (event.flow_type, event.flow_start), event.device_index)
            for event in one.events()
            if not event.is_python_function
        )
        for one in (prof, other)
    )
    assert found == wanted
    prof.export_chrome_trace("trace.json")
    trace = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert flows(prof.events(), 1) == arrows(trace, "fwdbwd")
    assert (sum(flows(prof.events(), 1)[0].values()) > 1) is linked
    recorded = {
        (event["name"], *(event["args"].get(f"Python {what}") for what in ("id", "parent id", "module id")))
        for event in trace
        if event.get("cat") == "python_function"
    }
    functions = {
        (
            event.name,
            *(
                None if number < 0 else number
                for number in (event.python_id, event.python_parent_id, event.python_module_id)
            ),
        )
        for event in prof.events()
        if event.is_python_function
    }
    assert functions <= recorded and bool(functions) is bool(details)


def doubled(x):  # type: ignore[no-untyped-def]
    """Is compiled to TorchScript."""
    return x + x  # pyright: ignore[reportUnknownVariableType]


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_stacks_in_torchscript() -> None:
    """Operators have the script's callers there, as in torch."""
    script = torch.jit.script(doubled)
    found: list[Any] = []
    for profile in (theirs, partial(ours.profile, activities=cpu())):
        with profile(with_stack=True, experimental_config=torch._C._profiler._ExperimentalConfig(verbose=True)) as prof:
            script(torch.ones(2))
        found += [event.stack for event in prof.events() if event.name == "aten::add"]
    assert found[0] == found[1] and "doubled" in found[0][0]


def test_python_functions_without_operators() -> None:
    """They are there where nothing else was recorded."""
    with ours.profile(activities=cpu(), with_stack=True) as prof:
        json.dumps([1])
    assert [row.key for row in prof.key_averages() if "dumps" in row.key]


DETAILS = dict.fromkeys(("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules"), True)


@pytest.mark.parametrize(("mode", "details"), [("kineto", DETAILS), ("stream", {})])
def test_torchs_validator_finds_nothing(mode: Any, details: dict[str, Any]) -> None:
    """torch has rules for traces, from problems that people met: order of kernels, numbers of the backward pass and so on. Other
    threads train as well, parts are computed again in the backward pass, and regions cross the borders of steps and windows."""
    require("torch")
    validate = importlib.import_module("torch.profiler._trace_validator").validate_trace
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    again = partial(importlib.import_module("torch.utils.checkpoint").checkpoint, network, use_reentrant=True)
    ended = threading.Event()
    files: list[str] = []

    def elsewhere() -> None:
        with ours.profile(activities=cpu(), mode="stream"):
            while not ended.wait(0.001):
                train_once()

    def export(view: Any) -> None:
        for ending in ("json", "pt.trace.json"):
            files.append(f"{view.step_num}.{ending}")
            view.export_chrome_trace(files[-1])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    schedule = ours.schedule(wait=1, warmup=1, active=2, repeat=2)
    with ours.profile(activities=cpu(), schedule=schedule, on_trace_ready=export, mode=mode, **details) as prof:
        for _ in range(9):
            with ours.record_function("ours"), torch.profiler.record_function("theirs"):
                optimizer.zero_grad()
                again(torch.rand(4, 8, requires_grad=True)).sum().backward()
                optimizer.step()
                prof.step()
    ended.set()
    thread.join()
    prof.raise_errors()
    assert len(files) == 4
    for name in files:
        assert validate(name) == (True, [])
        assert ('"Sequence number":' in Path(name).read_text()) is (mode == "kineto")  # which one of its rules is about


def test_results_that_take_too_long(caplog: pytest.LogCaptureFixture) -> None:
    """`events()` gives the events that were read by then, and torch's log says how many they are of all."""
    with ours.profile(activities=cpu(), post_processing_timeout_s=0, mode="kineto") as prof:
        torch.ones(2)
    assert not len(prof.events())
    expected = "events() timed out after post_processing_timeout_s, with partial results: 0 of 3 events"
    assert ("torch.autograd.profiler", logging.WARNING, expected) in caplog.record_tuples


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
@pytest.mark.filterwarnings("ignore:the last step.. began a window:UserWarning")
@pytest.mark.parametrize("all_windows", [False, True])
@pytest.mark.parametrize("steps, last, every", [(9, 3, 7), (11, 0, 8)])
def test_a_loop_that_ends_where_a_window_begins(steps: int, last: int, every: int, all_windows: bool) -> None:
    """The last window is empty then, as in torch. The trace that is exported is the last one that has something."""
    found: list[int] = []
    for profile, profiler in (
        (theirs, torch.profiler),
        (partial(ours.profile, activities=cpu(), mode="kineto"), ours),
    ):
        schedule = profiler.schedule(wait=0, warmup=1, active=4)
        with profile(schedule=schedule, acc_events=all_windows) as prof:
            for _ in range(steps):
                torch.add(1, 2)
                prof.step()
        found.append(sum(row.count for row in prof.key_averages() if row.key == "aten::add"))
    assert found[0] == found[1] == (every if all_windows else last)
    prof.export_chrome_trace("trace.json")
    trace = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert sum(event["name"] == "aten::add" for event in trace) == (last or 4)


def test_the_end_of_a_trace() -> None:
    """The last events say when the recording began and ended, in torch's order and form. All others are within."""
    with theirs() as other, torch.profiler.record_function("region"):
        torch.ones(2).tanh()
    with ours.profile(activities=cpu(), mode="kineto") as prof, ours.record_function("region"):
        torch.ones(2).tanh()
    ends: list[list[Any]] = []
    for one in (other, prof):
        one.export_chrome_trace("trace.json")
        events = json.loads(Path("trace.json").read_text())["traceEvents"]
        ends.append(
            [{key: value for key, value in event.items() if key not in ("ts", "dur", "args")} for event in events[-4:]]
        )
        span, border = events[-4], events[-1]["ts"]
        assert all(span["ts"] <= event["ts"] for event in events if "ts" in event)
        assert all(event["ts"] + event["dur"] <= border for event in events if "dur" in event)
    assert ends[0] == ends[1]


def test_regions_are_in_a_profile_of_torch_that_the_program_starts() -> None:
    """Regions are in both profiles where one of ours is around torch's."""
    region = ours.record_function("region")
    with theirs() as other:
        for _ in range(2):
            with region:
                torch.ones(2)
    with ours.profile(activities=cpu(), mode="kineto") as prof:
        with theirs() as inner, region:
            torch.ones(2)
        with region:
            torch.ones(2)
    counts = [sum(row.count for row in one.key_averages() if row.key == "region") for one in (other, inner, prof)]
    assert counts == [2, 1, 2]


@pytest.mark.parametrize("daemon", ["", "1"])
def test_torch_counts_steps_for_its_daemon(daemon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts our steps as those of its own profiler, if the environment says that there is a daemon."""
    monkeypatch.setenv("KINETO_USE_DAEMON", daemon)
    tracker = torch.autograd.profiler.KinetoStepTracker
    first = tracker.current_step()
    schedule = ours.schedule(wait=1, warmup=1, active=2)
    with ours.profile(activities=cpu(), schedule=schedule, mode="kineto") as prof:
        for _ in range(7):
            torch.ones(2)
            prof.step()
    assert tracker.current_step() - first == (7 if daemon else 0)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist: Any = torch.distributed
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def exported(directory: Path, destroy: Any = None) -> tuple[Any, str]:
    with ours.profile(output_dir=directory / "run") as profile:
        torch.ones(2)
    if destroy is not None:
        destroy()
    profile.export_chrome_trace(directory / "trace.json")
    return json.loads((directory / "trace.json").read_text()), str(profile.run.report())


def test_a_group_that_is_missing_is_reported(group: None, tmp_path: Path) -> None:
    """A program destroys its group, and exports afterwards."""
    trace, _ = exported(tmp_path, torch.distributed.destroy_process_group)
    info = trace["distributedInfo"]
    assert (info["backend"], info["rank"], info["world_size"], info["pg_count"]) == ("gloo", 0, 1, 1)
    assert len(info["pg_config"]) == 1


def test_missing_process_groups_are_reported(group: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of torch keeps the groups elsewhere: traces have the rest, and the report says so."""
    monkeypatch.setattr(groups, "problem", groups.problem)  # of the whole process
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_world", object())
    monkeypatch.setattr(torch.distributed, "get_pg_count", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    trace, report = exported(tmp_path)
    assert trace["distributedInfo"] == {"backend": "gloo", "rank": 0, "world_size": 1, "pg_count": 1}
    assert "traces have process groups backend, rank, world_size, pg_count only" in report
