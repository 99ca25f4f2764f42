"""Kineto mode of the torch backend: against torch's own export of the same recording, and what takes long to convert."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.backends.collecting import CollectingSink
from stepscope.backends.torch.backend import TorchBackend
from stepscope.backends.torch.kineto import worker as kineto_worker
from stepscope.backends.torch.kineto.mode import KinetoMode
from stepscope.backends.torch.kineto.symbols import save_without_gil
from stepscope.backends.torch.kineto.worker import FinishedTrace, Keeper, KinetoWorker, SharedResult
from stepscope.backends.torch.settings import TorchSettings
from stepscope.runtime.events import clock, strings, tracks
from stepscope.runtime.events.clock import ClockAnchor, ClockMapping
from stepscope.runtime.events.record import Kind
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import schedule
from tests.support.basics import ROOT
from tests.support.block_contents import decoded, texts
from tests.support.operators import record, torch, train

pytestmark = pytest.mark.needs("torch")

GPU_TRACE = ROOT / "tests" / "support" / "data" / "kineto-gpu.json"

NONE, WARMUP, RECORD, SAVE = ProfilerAction

Row = tuple[str, str, str, int, int, str]
"""Phase, category, name, begin in ns, duration in ns, and arguments as JSON."""


def add() -> None:
    for _ in range(3):
        torch.add(torch.ones(2), 1)


def recorded_by_torch(**asked: bool) -> Any:
    """A finished profile of torch, with a training step in it."""
    profile = torch.autograd.profiler.profile(use_kineto=True, **asked)
    with profile, torch.profiler.record_function("odd, name#"):
        train(1)
    return profile.kineto_results


def finished(result: Any, until: int, anchor: ClockAnchor) -> FinishedTrace:
    """A recording that ended at a time, as the worker takes it."""
    return FinishedTrace(
        SharedResult(result),
        until=until,
        anchors=(anchor,),
        flops=False,
        since=0,
        left_out=frozenset(),
    )


def rows_of(sink: CollectingSink) -> Counter[Row]:
    """The delivered events, in the terms of kineto's file."""
    phases = {Kind.SPAN: "X", Kind.MEMORY: "i", Kind.INSTANT: "i", Kind.FLOW_START: "s", Kind.FLOW_END: "f"}
    return Counter(
        (
            phases[Kind(int(event["kind"]))],
            strings.text(int(event["category"])),
            strings.text(int(event["name"])),
            int(event["ts"]),
            int(event["dur"]) if event["kind"] == Kind.SPAN else 0,
            json.dumps(args, sort_keys=True),
        )
        for delivery in sink.deliveries
        for event, args in zip(delivery.events, decoded(delivery.events, delivery.args), strict=True)
    )


def rows_of_export(path: Path, mapping: ClockMapping) -> Counter[Row]:
    """The events of torch's own export, read by the standard library."""
    trace = json.loads(path.read_text())
    return Counter(
        (
            event["ph"],
            event["cat"],
            event["name"],
            mapping.to_ours(trace["baseTimeNanoseconds"] + round(event["ts"] * 1000)),
            round(event.get("dur", 0) * 1000),
            json.dumps(event.get("args", {}), sort_keys=True),
        )
        for event in trace["traceEvents"]
        if event["ph"] != "M" and isinstance(event["pid"], int)
    )


def without_times_of_frames(rows: Counter[Row]) -> Counter[Row]:
    """The same, without begins and durations of Python frames."""
    changed: Counter[Row] = Counter()
    for row, count in rows.items():
        changed[(*row[:3], 0, 0, row[5]) if row[1] == "python_function" else row] += count
    return changed


@pytest.mark.parametrize(
    "asked", [{}, {"record_shapes": True, "profile_memory": True}, {"with_stack": True, "with_modules": True}], ids=str
)
async def test_every_event_is_that_of_torchs_own_export(tmp_path: Path, asked: dict[str, bool]) -> None:
    """One to one: kinds, names, times to the ns and all arguments of one and the same recording."""

    class Saved:
        """Torch exports a result once only: this one hands out copies of that export."""

        def trace_start_ns(self) -> int:
            return 0

        def save(self, path: str) -> None:
            shutil.copyfile(tmp_path / "own.json", path)

    anchor = ClockAnchor.read()
    recorded_by_torch(**asked).save(str(tmp_path / "own.json"))
    until = clock.now()
    sink = CollectingSink()
    worker = KinetoWorker(sink)
    worker.put(finished(Saved(), until, anchor))
    worker.put(until)
    await worker.aclose()
    assert list(worker.problems) == ["exporting a trace stopped all Python threads for that time"]
    assert sink.passed == until
    theirs = rows_of_export(tmp_path / "own.json", ClockMapping(anchor.wall_ns, anchor.monotonic_ns))
    ours = rows_of(sink)
    if asked.get("with_stack"):  # frames that cross an annotation are cut at its border
        assert sum((ours - theirs).values()) < sum(ours.values()) / 10
        ours, theirs = without_times_of_frames(ours), without_times_of_frames(theirs)
    assert ours == theirs
    names = {name for _, _, name, *_ in theirs}
    assert {"odd, name#", "aten::convolution", "Optimizer.step#SGD.step"} <= names


@pytest.mark.parametrize("with_stack", [False, True])
def test_an_export_leaves_the_interpreter_alone(tmp_path: Path, with_stack: bool) -> None:
    """The direct call writes a whole trace."""
    result = recorded_by_torch(record_shapes=True, with_stack=with_stack)
    names = Counter(activity.name() for activity in result.trace_activities())
    assert save_without_gil(result, str(tmp_path / "direct.json"))
    trace = json.loads((tmp_path / "direct.json").read_text())
    saved = Counter(event["name"] for event in trace["traceEvents"] if "cat" in event and event["ph"] in "Xi")
    assert names["aten::convolution"] == 1 and names["nn.Module: Conv2d_0"] == with_stack
    assert saved - names == Counter({"PyTorch Profiler (0)": 1}) and not names - saved
    assert not save_without_gil(Other(), str(tmp_path / "none.json"))


@pytest.mark.parametrize("version", ["2.13.0a0+git1a2b3c4", "2.13.1", "2.12.0+cu129", "2.14.0"])
def test_only_tried_releases_are_called_directly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    """A build between two releases may keep its objects otherwise."""
    result = recorded_by_torch()
    monkeypatch.setattr("torch.__version__", version)
    assert not save_without_gil(result, str(tmp_path / "none.json"))
    assert not (tmp_path / "none.json").exists()


class Other:
    """No result of kineto."""

    def trace_start_ns(self) -> int:
        return 1


def test_shapes_and_memory_arrive_with_their_operators(tmp_path: Path) -> None:
    """Inputs of operators, allocations with their totals, and the track of the thread that recorded spans."""
    backend = TorchBackend(record_shapes=True, profile_memory=True)

    def work(_: sc.Profiler) -> None:
        with sc.span("around"):
            torch.mm(torch.ones(3, 5), torch.ones(5, 7))

    memory = record(tmp_path, work, backend)
    found = {name: args for name, args in zip(memory.names(), memory.arguments(), strict=True) if args}
    assert found["aten::mm"]["Input Dims"] == [[3, 5], [5, 7]]
    allocations = memory.events(kind=Kind.MEMORY)
    # Memory that other tests have not freed is in the totals, too.
    assert allocations["value"].max() - allocations["value"].min() == 4 * (15 + 35 + 21)
    spans = memory.events(kind=Kind.SPAN)
    track = {name: int(span["track"]) for name, span in zip(texts(spans), spans, strict=True)}
    assert track["around"] == track["aten::mm"]
    report = backend.report()
    assert (report.mode, report.notes) == ("kineto", ())
    assert report.training_thread_ns > 0


async def test_a_warm_up_that_leads_nowhere_is_undone() -> None:
    """After WARMUP and NONE torch's profiler is off, nothing is delivered, and recording works as ever."""
    sink = CollectingSink()
    mode = KinetoMode(TorchSettings(), sink)
    for before, after in ((NONE, WARMUP), (WARMUP, NONE)):
        mode.transition(before, after, clock.now())
    assert not torch.autograd._profiler_enabled()
    assert len(sink.events) == 0
    mode.transition(NONE, RECORD, clock.now())
    add()
    end = clock.now()
    mode.transition(RECORD, NONE, end)
    await mode.aclose()
    assert texts(sink.events).count("aten::add") == 3
    assert sink.passed == end


async def test_times_are_ours() -> None:
    """Operators lie between readings of our clock around them, within the bound that the report states."""
    sink = CollectingSink()
    mode = KinetoMode(TorchSettings(), sink)
    mode.transition(NONE, RECORD, clock.now())
    readings = [clock.now()]
    for _ in range(20):
        torch.ones(1).tanh()
        readings.append(clock.now())
    mode.transition(RECORD, NONE, clock.now())
    await mode.aclose()
    spans = sink.events[[name == "aten::tanh" for name in texts(sink.events)]]
    bound = int(mode.report().clock.partition("within ")[2].split()[0])
    assert bound < 1_000_000
    for span, before, after in zip(spans, readings, readings[1:], strict=False):
        # The readings bound the error where they are; between them both clocks run evenly.
        assert before - 2 * bound - 1000 <= span["ts"] <= span["ts"] + span["dur"] <= after + 2 * bound + 1000


@pytest.mark.parametrize("written", [0, 20])
async def test_a_lost_trace_costs_its_window_only(written: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that cannot be exported costs its window only: the watermark goes on, the report says why, and events of which a
    part of the file has are counted, wherever a piece of it ends."""

    class Broken:
        def trace_start_ns(self) -> int:
            return 1

        def save(self, path: str) -> None:
            Path(path).write_text('{"ph": "X"}, ' * written)
            raise RuntimeError("no space left")

    monkeypatch.setattr(kineto_worker, "_PIECE", 7)
    sink = CollectingSink()
    worker = KinetoWorker(sink)
    worker.put(finished(Broken(), 7, ClockAnchor.read()))
    worker.put(9)
    await worker.aclose()
    assert worker.problems["torch's recording was lost: no space left"] == 1
    assert sink.watermarks == [9]
    assert sum(loss.count for loss in sink.losses) == written


async def test_each_event_that_a_cut_trace_lost_counts_once(tmp_path: Path) -> None:
    """One is no JSON, and one is cut."""
    text = GPU_TRACE.read_text().replace('"cbid": 211', '"cbid": x')

    class Cut:
        def trace_start_ns(self) -> int:
            return 0

        def save(self, path: str) -> None:
            Path(path).write_text(text[: text.rindex('"name": ')])

    sink = CollectingSink()
    worker = KinetoWorker(sink)
    worker.put(finished(Cut(), clock.now(), ClockAnchor.read()))
    await worker.aclose()
    assert any("ends inside an event" in problem for problem in worker.problems)
    assert [loss.count for loss in sink.losses] == [1, 1]


def test_quotes_in_names_are_mended(tmp_path: Path) -> None:
    """Kineto writes quotes as they are, which is no JSON; other programs cannot read such a trace at all."""

    def work(_: sc.Profiler) -> None:
        for name in ('say "hi"', '"', "after"):
            with torch.profiler.record_function(name):
                torch.ones(1).tanh()

    names = record(tmp_path, work, TorchBackend("kineto")).names(kind=Kind.SPAN)
    assert [name for name in names if name in ('say "hi"', '"', "after")] == ['say "hi"', '"', "after"]
    assert names.count("aten::tanh") == 3


def test_stacks_leave_out_the_threads_of_the_runtime(tmp_path: Path) -> None:
    """Python functions are those of the program's threads: our own, which work meanwhile, are none of it."""
    go = threading.Event()

    def other() -> None:
        while not go.wait(0.01):
            pass

    thread = threading.Thread(target=other, name="the program's")
    thread.start()
    memory = sc.exporters.MemoryExporter()
    try:
        with sc.trace(
            backends=[TorchBackend("kineto", with_stack=True)],
            exporters=[memory],
            output_dir=tmp_path,
            options=sc.Options(journal=False, close_timeout=60.0),
        ):
            add()
            thread.join(0.2)  # it goes on meanwhile
    finally:
        go.set()
        thread.join()
    events = memory.events(kind=Kind.SPAN)
    frames = events[[strings.text(int(category)) == "python_function" for category in events["category"]]]
    found = {track.tid for row in set(frames["track"].tolist()) if (track := tracks.get(row)) is not None}
    assert found == {threading.main_thread().native_id, thread.native_id}


def test_a_keeper_may_save_again_and_may_raise(tmp_path: Path) -> None:
    """torch saves a recording once only, and ends the program at the second time; a keeper's error loses nothing."""
    saved: list[Path] = []

    def keep(trace: FinishedTrace) -> None:
        for number in range(2):
            saved.append(tmp_path / f"kept-{number}.json")
            trace.result.save(str(saved[-1]))
        raise RuntimeError("the keeper has no room")

    memory = sc.exporters.MemoryExporter()
    backend = TorchBackend("kineto", keeper=keep)
    with sc.trace(backends=[backend], exporters=[memory], output_dir=tmp_path / "run") as profiler:
        add()
    assert memory.names(kind=Kind.SPAN).count("aten::add") == 3
    assert saved[0].read_bytes() == saved[1].read_bytes() and b"aten::add" in saved[0].read_bytes()
    assert "the keeper of torch's recordings raised RuntimeError: the keeper has no room" in str(profiler.report())


def test_the_table_notes_operators_that_come_apart_from_spans(tmp_path: Path) -> None:
    """Their time is in Self of the span as well."""
    memory = sc.exporters.MemoryExporter()
    backends = [sc.TorchBackend("kineto")]
    with sc.trace(backends=backends, exporters=[memory], output_dir=tmp_path), sc.span("around"):
        add()
    summary = memory.windows[0].summary()
    assert summary.counts["apart"] == sum(row.count for row in summary.rows if row.category == "cpu_op")
    assert "operators whose time is also in Self of the spans around them" in summary.render()


ADDS = 30_000


def record_large(
    directory: Path, windows: int, keeper: Keeper | None = None, *, adds: int = ADDS, **options: Any
) -> tuple[sc.Profiler, Any]:
    """Records windows of many operators, and closes at once."""
    memory = sc.exporters.MemoryExporter()
    ones = torch.ones(2)
    with sc.trace(
        schedule=schedule(wait=0, warmup=0, active=1, repeat=windows),
        backends=[sc.TorchBackend("kineto", record_shapes=True, keeper=keeper)],
        exporters=[memory],
        output_dir=directory,
        options=sc.Options(journal=False, **options),
    ) as profiler:
        for _ in range(windows):
            for _ in range(adds):
                torch.add(ones, ones)
            profiler.step()
    return profiler, memory


def test_events_that_are_not_converted_in_time_are_missing(tmp_path: Path) -> None:
    """The time for closing is too short: windows are incomplete, and the report does not say that nothing was dropped."""
    closed = threading.Event()

    def keep(trace: FinishedTrace) -> None:
        closed.wait(30)
        trace.result.release()

    profiler, memory = record_large(tmp_path, 2, keep, close_timeout=4.0)
    closed.set()
    assert [window.complete for window in memory.windows] == [False, False]
    report = str(profiler.report())
    assert "missing   torch: " in report
    assert "dropped   nothing\n" not in report and "accounts  balanced\n" not in report, report
    why = [line for line in report.splitlines() if line.startswith("  why ") and "window" in line]
    assert any("incomplete: 'torch' has nothing of" in line and "raise Options.close_timeout" in line for line in why)
    assert not any("were spans, operators or a backend active" in line for line in why)


def test_a_window_waits_while_the_work_advances(tmp_path: Path) -> None:
    """Converting takes longer than a window lingers: it is whole all the same."""
    profiler, memory = record_large(tmp_path, 1, adds=4 * ADDS, linger=0.6, close_timeout=60.0)
    (window,) = memory.windows
    assert window.complete, window.diagnostics
    assert window.ledger.sources["torch"].accepted >= 4 * ADDS
    assert "dropped   nothing\n" in str(profiler.report())
