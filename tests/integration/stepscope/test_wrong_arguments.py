"""Bad input from end to end: a clear error, and nothing else is lost."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import Deliver, Span
from stepscope.runtime.events.record import Kind
from tests.support.commands import python
from tests.support.messages import refused


def load(path: Path) -> list[dict[str, object]]:
    """Events of a Chrome trace; not JSON is an error, NaN included."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    events: list[dict[str, object]] = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    return events


def test_a_name_of_a_megabyte_is_cut_and_counted(output_dir: Path) -> None:
    """The ledger of the window counts the characters that were cut."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir) as profiler, sc.span("é" * (1 << 20)):
        pass
    (name,) = [name for name in memory.names(kind=Kind.SPAN) if not name.startswith("ProfilerStep")]
    assert name == "é" * 512
    assert memory.windows[0].ledger.cut["names_cut"] >= 1
    assert "names cut" in str(profiler.report())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "no number", None])
def test_counters_without_a_finite_value(value: object, output_dir: Path) -> None:
    """They are recorded as what they are, and no output becomes invalid by them."""
    memory = sc.exporters.MemoryExporter()
    chrome = sc.ChromeTraceExporter(output_dir / "trace.json")
    with sc.trace(exporters=[memory, chrome], output_dir=output_dir) as profiler:
        sc.counter("loss", value)  # type: ignore[arg-type]
        sc.counter("loss", 2.5)
    profiler.raise_errors()
    first, second = memory.events(kind=Kind.COUNTER)["value"]
    assert not np.isfinite(first)
    assert second == 2.5
    samples = [event["args"] for event in load(output_dir / "trace.json") if event.get("ph") == "C"]
    assert samples == [{"value": 2.5}]
    (counter,) = profiler.aggregates().counters
    assert counter.mean == 2.5


def test_negative_durations_become_nothing(output_dir: Path) -> None:
    """A device whose clock runs backwards cannot break a trace; the spans are recorded with no duration."""
    backend = sc.backends.ScriptedBackend([Deliver([Span("back", 1000, -500), Span("forth", 1000, 500)])])
    memory = sc.exporters.MemoryExporter()
    chrome = sc.ChromeTraceExporter(output_dir / "trace.json")
    with sc.trace(backends=[backend], exporters=[memory, chrome], output_dir=output_dir) as profiler:
        profiler.step()
        profiler.flush()
        sc.instant("end")
    profiler.raise_errors()
    spans = {event["name"]: event["dur"] for event in load(output_dir / "trace.json") if event.get("ph") == "X"}
    assert spans["back"] == 0
    assert spans["forth"] == 0.5
    rows = {row.name: row for row in profiler.aggregates().rows}
    assert rows["back"].total_ns == 0


def test_a_directory_removed_while_it_is_written(tmp_path: Path) -> None:
    """The loop and the other exporters go on, and the directory is made again."""
    gone = tmp_path / "gone"
    memory = sc.exporters.MemoryExporter()
    with sc.trace(
        schedule=sc.schedule(wait=0, warmup=0, active=1),
        exporters=[memory, sc.tensorboard_trace_handler(gone)],
        output_dir=tmp_path / "run",
    ) as profiler:
        sc.instant("tick")
        profiler.step()
        profiler.flush()
        for path in gone.iterdir():
            path.unlink()
        gone.rmdir()
        sc.instant("tick")
        profiler.step()
    assert len(memory.windows) == 2
    assert len(list(gone.glob("*.pt.trace.json"))) == 1


@pytest.mark.parametrize(
    "argument", [object(), [object()], {1: 2}, range(10**6), "x" * 10**6, 10**400, np.float32(1.5)]
)
def test_any_argument_is_recorded_or_named(argument: object, output_dir: Path) -> None:
    """No argument of a span raises, and no large one is recorded whole."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir) as profiler, sc.span("work", value=argument):
        pass
    profiler.raise_errors()
    (recorded,) = [arguments for arguments in memory.arguments() if "value" in arguments]
    assert len(repr(recorded["value"])) < 5000


def no_step() -> sc.ProfilerAction:
    """A schedule that cannot be asked about a step."""
    return sc.ProfilerAction.NONE


def no_windows(window: sc.Window) -> Iterator[sc.Window]:
    """A handler that is a generator function."""
    yield window


WRONG = {
    "schedule=5": (lambda: sc.trace(schedule=5), "schedule=stepscope.schedule(wait=..., warmup=..., active=...)"),  # type: ignore[arg-type]
    "schedule not called": (lambda: sc.trace(schedule=sc.schedule), "schedule=stepscope.schedule("),  # type: ignore[arg-type]
    "schedule without a step": (lambda: sc.trace(schedule=no_step), "callable with a step's number"),  # type: ignore[arg-type]
    "keep_last=0": (lambda: sc.trace(keep_last=0), "keep_last must be 1 to"),
    "keep_last='20'": (lambda: sc.trace(keep_last="20"), "keep_last must be a number of steps"),  # type: ignore[arg-type]
    "backends='torch'": (lambda: sc.trace(backends="torch"), "backends=[...]"),  # type: ignore[arg-type]
    "a backend outside a list": (lambda: sc.trace(backends=sc.TorchBackend()), "backends=[TorchBackend(...)]"),  # type: ignore[arg-type]
    "an exporter among backends": (lambda: sc.trace(backends=[sc.exporters.MemoryExporter()]), "stepscope.backends.Backend"),  # type: ignore[list-item]
    "handler not called": (lambda: sc.trace(on_trace_ready=sc.tensorboard_trace_handler), "tensorboard_trace_handler(...)"),
    "exporter not called": (lambda: sc.trace(on_trace_ready=sc.ChromeTraceExporter), "ChromeTraceExporter(...)"),
    "handler with a yield": (lambda: sc.trace(on_trace_ready=no_windows), "yield"),
    "on_trace_ready='runs'": (lambda: sc.trace(on_trace_ready="runs"), "tensorboard_trace_handler"),  # type: ignore[arg-type]
    "start='no'": (lambda: sc.trace(start="no"), "start must be True or False, got str: 'no'"),  # type: ignore[arg-type]
    "control=True": (lambda: sc.trace(control=True), "control=stepscope.Control(socket=True)"),  # type: ignore[arg-type]
    "control={...}": (lambda: sc.trace(control={"socket": True}), "Control(**{'socket': True})"),  # type: ignore[arg-type]
    "fixed='name'": (lambda: sc.trace(fixed="name"), "fixed=['name']"),
    "options=Options": (lambda: sc.trace(options=sc.Options), "options=stepscope.Options(...)"),  # type: ignore[arg-type]
    "FlightRecorder(5)": (lambda: sc.FlightRecorder(5), "FlightRecorder takes its fields by name"),  # type: ignore[call-arg]
    "Options({...})": (lambda: sc.Options({"linger": 3}), "Options takes its fields by name"),  # type: ignore[call-arg, arg-type]
    "one trigger": (lambda: sc.FlightRecorder(steps=5, triggers=sc.triggers.SlowStep()), "triggers=(SlowStep(...),)"),  # type: ignore[arg-type]
    "a trigger not called": (lambda: sc.FlightRecorder(steps=5, triggers=(sc.triggers.Stalled,)), "stepscope.triggers.Stalled()"),  # type: ignore[arg-type]
    "a trigger's name": (lambda: sc.FlightRecorder(steps=5, triggers=("raised",)), "stepscope.triggers.Raised()"),  # type: ignore[arg-type]
    "Raised(only=ValueError)": (lambda: sc.triggers.Raised(only=ValueError), "only=(ValueError,)"),  # type: ignore[arg-type]
    "a path that is a number": (lambda: sc.ChromeTraceExporter(3), "path must be a str or a Path, got int: 3"),  # type: ignore[arg-type]
    "no path": (lambda: sc.PerfettoExporter(""), "path must not be empty"),
    "a journal's path": (lambda: sc.exporters.JournalExporter(3), "path must be a str or a Path, got int: 3"),  # type: ignore[arg-type]
    "a directory's name": (lambda: sc.tensorboard_trace_handler(3), "dir_name must be a str or a Path, got int: 3"),  # type: ignore[arg-type]
    "a worker's name": (lambda: sc.tensorboard_trace_handler("runs", 3), "worker_name must be a str, got int: 3"),  # type: ignore[arg-type]
    "gzip='no'": (lambda: sc.ChromeTraceExporter("a.json", gzip="no"), "gzip must be True or False, got str: 'no'"),  # type: ignore[arg-type]
    "max_bytes='5GB'": (lambda: sc.ChromeTraceExporter("a.json", max_bytes="5GB"), "max_bytes must be a whole number of bytes, got str: '5GB'"),  # type: ignore[arg-type]
    "max_bytes=-1": (lambda: sc.exporters.MemoryExporter(max_bytes=-1), "max_bytes must be 0 or more, got -1"),
    "a file's name for a stream": (lambda: sc.exporters.ConsoleExporter("out.txt"), "stream must be an open file, got str: 'out.txt'"),  # type: ignore[arg-type]
    "sort_by='sel'": (lambda: sc.exporters.ConsoleExporter(sort_by="sel"), "self, total"),
    "no scheme": (lambda: sc.CollectorExporter("head:7788"), "did you mean 'ws://head:7788'?"),
    "a collector's URL": (lambda: sc.CollectorExporter(3), "url must be a str such as ws://host:7788, got int: 3"),  # type: ignore[arg-type]
    "tls=True": (lambda: sc.CollectorExporter("ws://127.0.0.1:7788", tls=True), "tls must be an ssl.SSLContext"),  # type: ignore[arg-type]
    "servers of NATS": (lambda: sc.exporters.NatsExporter(3), "nats://host:4222"),  # type: ignore[arg-type]
    "no scheme for OTLP": (lambda: sc.exporters.OtlpExporter("localhost:4318"), "did you mean 'http://localhost:4318'?"),
    "an endpoint": (lambda: sc.exporters.OtlpExporter(3), "endpoint must be a URL"),  # type: ignore[arg-type]
    "record_shapes='no'": (lambda: sc.TorchBackend(record_shapes="no"), "record_shapes must be True or False, got str: 'no'"),  # type: ignore[arg-type]
    "activities='CPU'": (lambda: sc.TorchBackend(activities="CPU"), "activities=["),
    "interval='x'": (lambda: sc.backends.HostBackend(interval="x"), "interval must be a number of seconds, got str: 'x'"),  # type: ignore[arg-type]
    "what=3": (lambda: sc.backends.HostBackend(3), "what must be a list of names, got int: 3"),  # type: ignore[arg-type]
    "root=3": (lambda: sc.backends.HostBackend(root=3), "root must be a str or a Path, got int: 3"),  # type: ignore[arg-type]
    "devices=0": (lambda: sc.backends.NvmlBackend(devices=0), "devices=[0]"),  # type: ignore[arg-type]
    "speed='x'": (lambda: sc.backends.ReplayBackend("journal", speed="x"), "speed must be a number, got str: 'x'"),  # type: ignore[arg-type]
    "streams='x'": (lambda: sc.backends.SimulatedDevice(streams="x"), "streams must be a whole number, got str: 'x'"),  # type: ignore[arg-type]
    "a plan of 'x' steps": (lambda: sc.schedule(wait=1, warmup=1, active=1).plan("x"), "steps must be a whole number, got str: 'x'"),  # type: ignore[arg-type]
    "include=3": (lambda: sc.instrument(sc, include=3), "include takes globs"),  # type: ignore[arg-type]
    "a recording's path": (lambda: sc.load(5), "path must be a str or a Path, got int: 5"),  # type: ignore[arg-type]
    "arm(3)": (lambda: sc.trace().arm(3), "got int: 3; write arm(stepscope.control.WindowRequest(steps=...))"),  # type: ignore[arg-type]
    "arm(steps=3)": (lambda: sc.trace().arm(steps=3), "Profiler.arm()"),  # type: ignore[call-arg]
    "propagate(3)": (lambda: sc.propagate(3), "propagate() takes a function, got int: 3"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_argument_is_named_with_valid_values(call: tuple[Callable[[], object], str]) -> None:
    """When the call is made, before anything is recorded: not later, in a report."""
    make, wanted = call
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert wanted in str(caught.value)


async def test_an_async_with_of_a_span_names_with() -> None:
    """The message names the same remedy in a coroutine as elsewhere."""
    with refused(TypeError, "with span('x'):"):
        async with sc.span("x"):  # type: ignore[attr-defined]
            pass


def test_an_output_that_is_a_directory_is_refused_with_a_file_in_it(tmp_path: Path) -> None:
    """By each exporter of a file; so is a run's directory that is a file."""
    for make, name in (
        (sc.ChromeTraceExporter, "trace.json"),
        (sc.PerfettoExporter, "trace.pftrace"),
        (sc.exporters.JournalExporter, "journal"),
    ):
        with pytest.raises(ValueError, match="a directory") as caught:
            make(tmp_path)
        assert repr(str(tmp_path / name)) in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(sc.errors.OutputError, match="it is a file; name a directory"):
        sc.trace(output_dir=tmp_path / "file").start()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("conter", "did you mean counter?"),
        ("profile", "use trace(), or stepscope.torch.profile"),
        ("start", "use trace(), which starts a profiler"),
        ("MemoryExporter", "did you mean stepscope.exporters.MemoryExporter?"),
        ("torch.profle", "did you mean profile?"),
        ("mindspore.Profilr", "did you mean Profiler?"),
        ("mxnet.set_confg", "did you mean set_config?"),
    ],
)
def test_a_name_that_is_not_there_has_one_hint(name: str, hint: str, tmp_path: Path) -> None:
    """Python, which would add a guess of its own to the traceback, finds ours."""
    module = f"stepscope.{name}".rpartition(".")[0]
    done = python("-c", f"import {module}; stepscope.{name}", cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert hint in last and last.lower().count("did you mean") <= 1


def test_a_step_before_start_names_the_missing_call(caplog: pytest.LogCaptureFixture) -> None:
    """It is ignored, as all that would disturb training, and reported once."""
    with caplog.at_level("WARNING"):
        profiler = sc.trace()
        profiler.step()
        profiler.step()
    (record,) = caplog.records
    assert "before start()" in record.getMessage() and "with trace() as" in record.getMessage()


def test_a_bool_of_numpy_is_a_switch() -> None:
    """A comparison of numpy's numbers makes one. An array of several is refused, as any other object."""
    flag = np.int64(3) > 2
    sc.TorchBackend(record_shapes=flag, profile_memory=None, with_stack=np.int64(1))  # type: ignore[arg-type]
    sc.ChromeTraceExporter("a.json", gzip=flag)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="with_stack must be True or False, got ndarray"):
        sc.TorchBackend(with_stack=np.zeros(2, np.int64))  # type: ignore[arg-type]
