"""The detail that a window is asked for with: it holds for that window, whichever way it came, and for no other."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import stepscope as sc
from stepscope import Control
from stepscope.backends.base import Adjustable
from stepscope.backends.counters.process_memory import ProcessMemoryBackend
from stepscope.backends.python_stacks import PythonStacksBackend
from stepscope.backends.simulated.scripted import ScriptedBackend
from stepscope.cli.main import main
from stepscope.control import WindowDetail, WindowRequest
from stepscope.exporters import Kind
from stepscope.runtime.control.entry_points.client import ask_process
from stepscope.runtime.events import strings
from stepscope.runtime.requests.command import Command
from stepscope.runtime.requests.window_detail import detail_from
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import FULL, MARKS_ONLY, NO_OPERATORS
from stepscope.runtime.schedule.schedule import never
from tests.support.basics import missing, require
from tests.support.messages import refused

QUICK = sc.Options(journal=False, drain_interval=0.01)


@contextlib.contextmanager
def running(directory: Path, *backends: Any, **more: Any) -> Generator[tuple[sc.Profiler, sc.exporters.MemoryExporter]]:
    """A profiler that records what it is asked for."""
    memory = sc.exporters.MemoryExporter()
    chosen: dict[str, Any] = {"options": QUICK, **more}
    if "control" not in chosen:
        chosen["schedule"] = never
    with sc.trace(backends=backends, exporters=[memory], output_dir=directory, **chosen) as profiler:
        yield profiler, memory
    profiler.raise_errors()
    assert profiler.audit() == ()


def work(profiler: sc.Profiler, steps: int, what: Callable[[], object] = lambda: None) -> None:
    """Steps with a span in each."""
    for _ in range(steps):
        with sc.span("work"):
            what()
        profiler.step()


def work_until(profiler: sc.Profiler, condition: Callable[[], object]) -> None:
    """Goes on until something holds."""
    deadline = time.monotonic() + 60
    while not condition():
        work(profiler, 1, lambda: time.sleep(0.001))
        assert time.monotonic() < deadline


def spans(memory: sc.exporters.MemoryExporter, window: int) -> list[int]:
    """The steps that have their span."""
    events = memory.events(window, Kind.SPAN)
    return [int(event["step"]) for event in events if strings.name_of(event) == "work"]


def categories(memory: sc.exporters.MemoryExporter, window: int) -> set[str]:
    """Categories of the events of a window."""
    return {strings.text(int(category)) for category in memory.events(window)["category"]}


def live_torch(needed: bool = True) -> ModuleType:
    """torch; skips, or fails where all is required, if its operators are needed live and cannot arrive so in this process."""
    require("torch")
    operators = importlib.import_module("tests.support.operators")
    if needed and not operators.ARMED:
        missing("torch's live operators", "Import stepscope before torch, as tests/conftest.py does.")
    return require("torch")


@pytest.mark.checklist("A4", "A8")
def test_events_in_some_steps_of_one_window(output_dir: Path) -> None:
    """As many as was asked for; the windows before and after it, with no step between, have all."""
    with running(output_dir) as (profiler, memory):
        for number, detail in enumerate([None, WindowDetail(every=2), WindowDetail(every=0), None]):
            assert profiler.arm(WindowRequest(start_step=2 + 4 * number, steps=4, detail=detail))
        work(profiler, 25)
    assert [spans(memory, number) for number in range(4)] == [[2, 3, 4, 5], [6, 8], [], [14, 15, 16, 17]]
    assert [len(window.steps) for window in memory.windows] == [4] * 4 and all(w.complete for w in memory.windows)
    assert [window.metadata["armed"].get("detail") for window in memory.windows] == [None, "every=2", "every=0", None]
    assert not any("overhead" in note for window in memory.windows for note in window.diagnostics)


@pytest.mark.checklist("A4", "A8")
@pytest.mark.parametrize("warmup", [0, 2])
def test_a_backend_is_chosen_for_one_window(output_dir: Path, warmup: int) -> None:
    """On its own thread, before the window and when it has ended; also when the window is cut or withdrawn."""

    class RecordsDetails(ScriptedBackend):
        """Notes each detail that it gets, and the thread."""

        def __init__(self, thread_bound: bool) -> None:
            super().__init__(name=f"told {thread_bound}", thread_bound=thread_bound)
            self.calls: list[Any] = []
            self.threads: set[int] = set()

        def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
            super().transition(before, after, at)
            self.calls.append(after.name)

        def can_choose(self, what: str, on: bool) -> str | None:
            return {"stacks": "", "memory": "" if on else "it is always recorded"}.get(what)

        def choose(self, chosen: Mapping[str, bool]) -> None:
            self.threads.add(threading.get_ident())
            self.calls.append(dict(chosen))

    backends = RecordsDetails(True), RecordsDetails(False)
    assert isinstance(backends[0], Adjustable)
    with running(output_dir, *backends) as (profiler, _):
        detail = WindowDetail(stacks=False)
        assert profiler.arm(WindowRequest(start_step=3, steps=2, detail=detail, warmup=warmup))
        work(profiler, 10)
        assert profiler.arm(WindowRequest(steps=1000, detail=detail))
        work(profiler, 3)
        profiler.abort()
        work(profiler, 2)
        assert profiler.arm(WindowRequest(steps=1))
        work(profiler, 3)
    before = [{"stacks": False}, "WARMUP", "RECORD"] if warmup else [{"stacks": False}, "RECORD"]
    one = [{"stacks": False}, "RECORD", "RECORD_AND_SAVE", {}, "NONE"]
    for backend in backends:
        assert backend.calls == [*before, *one[2:], *one, "RECORD", "RECORD_AND_SAVE", "NONE"], backend.name
    assert backends[0].threads == {threading.get_ident()} != backends[1].threads


def test_stacks_and_memory_in_windows_that_ask_for_them(output_dir: Path) -> None:
    """Sources that are there all the time are switched on for a window, and off for another."""
    sources = PythonStacksBackend(0.002, always=False), ProcessMemoryBackend(0.002)
    with running(output_dir, *sources) as (profiler, memory):
        for number, detail in enumerate(["memory=off", "stacks", "memory=off, stacks", None]):
            # Samplers hear on the loop that a window has ended: the next begins so much later.
            assert profiler.arm(WindowRequest(start_step=1 + 150 * number, steps=60, detail=detail_from(detail)))
        work(profiler, 520, lambda: time.sleep(0.001))
    found = [categories(memory, number) & {"python_function", "memory"} for number in range(4)]
    assert found == [set(), {"python_function", "memory"}, {"python_function"}, {"memory"}]


def test_facts_of_torchs_operators_in_one_window(output_dir: Path) -> None:
    """Shapes, memory, stacks and estimates are had for the window that asks for them; or left out of it."""
    torch = live_torch(needed=False)

    def multiply() -> None:
        torch.mm(torch.ones(3, 5), torch.ones(5, 7))

    asked = [None, "shapes,flops,memory", "operators=off", "modules=off", None]
    with running(output_dir, sc.TorchBackend(mode="kineto")) as (profiler, memory):
        for number, detail in enumerate(asked):
            assert profiler.arm(WindowRequest(start_step=2 + 2 * number, steps=2, detail=detail_from(detail)))
        small = profiler.arm(WindowRequest(start_step=20, steps=1, detail=WindowDetail(shortest_us=5)))
        assert "shortest_us=5: backend 'torch' records with kineto, which delivers all operators" in small.reason
        work(profiler, 14, multiply)
    with running(output_dir / "less", sc.TorchBackend(record_shapes=True)) as (profiler, less):
        for number, detail in enumerate(["shapes=off", None]):
            profiler.arm(WindowRequest(start_step=2 + 3 * number, steps=2, warmup=1, detail=detail_from(detail)))
        work(profiler, 10, multiply)

    def has(memory: sc.exporters.MemoryExporter, window: int) -> dict[str, bool]:
        names, arguments = memory.names(window), memory.arguments(window)
        mm = [args for name, args in zip(names, arguments, strict=True) if name == "aten::mm"]
        return {
            "operators": bool(mm),
            "shapes": any("Input Dims" in args for args in mm),
            "flops": any("FLOPs" in args for args in mm),
            "memory": bool(len(memory.events(window, Kind.MEMORY))),
        }

    plain = {"operators": True, "shapes": False, "flops": False, "memory": False}
    everything, nothing = dict.fromkeys(plain, True), dict.fromkeys(plain, False)
    assert [has(memory, number) for number in range(5)] == [plain, everything, nothing, plain, plain]
    assert [has(less, number)["shapes"] for number in range(2)] == [False, True]
    assert "overhead_budget" not in " ".join(profiler.diagnostics())


def test_live_operators_of_one_window(output_dir: Path) -> None:
    """They can be left out; what they do not have is refused, with what would have it."""
    torch = live_torch()
    with running(output_dir, sc.TorchBackend(mode="stream")) as (profiler, memory):
        for number, detail in enumerate([None, "operators=off,shapes=off", "shortest_us=1e9", None]):
            assert profiler.arm(WindowRequest(start_step=2 + 2 * number, steps=2, detail=detail_from(detail)))
        refused = profiler.arm(WindowRequest(start_step=20, steps=2, detail=WindowDetail(shapes=True)))
        work(profiler, 12, lambda: torch.ones(3).relu())
    assert ["aten::relu" in memory.names(number) for number in range(4)] == [True, False, False, True]
    assert [spans(memory, number) for number in range(4)] == [[2, 3], [4, 5], [6, 7], [8, 9]]
    assert str(refused) == (
        "refused: detail shapes: operators of backend 'torch' arrive live, which have no shapes; make it with mode='kineto'"
    )


def test_unavailable_detail_is_refused(output_dir: Path) -> None:
    """The answer says what would have it; to leave out what is not there is no mistake."""
    with running(output_dir) as (profiler, memory):
        refused = profiler.arm(WindowRequest(start_step=1, steps=1, detail=WindowDetail(stacks=True)))
        assert refused.reason == (
            "detail stacks: no backend of this profiler records that; add PythonStacksBackend() or "
            "TorchBackend(mode='kineto')"
        )
        assert profiler.arm(WindowRequest(start_step=1, steps=1, detail=WindowDetail(stacks=False, operators=True)))
        work(profiler, 3)
    assert len(memory.windows) == 1


def test_a_request_from_before_the_start_is_looked_at_then(output_dir: Path) -> None:
    """How a backend records is known when it is open: a window that it cannot record is withdrawn, and reported."""
    live_torch()
    backend = sc.TorchBackend()
    profiler = sc.trace(schedule=never, backends=[backend], output_dir=output_dir, options=QUICK)
    assert profiler.arm(WindowRequest(start_step=2, steps=2, detail=WindowDetail(shapes=True)))
    with profiler:
        work(profiler, 5)
    (status,) = profiler.armed()
    if backend.report().mode == "kineto":  # as where there is a GPU
        assert status.state == "recorded"
    else:
        assert (status.state, "arrive live" in status.reason) == ("withdrawn", True)
        assert any("arrive live" in note for note in profiler.diagnostics())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stack", "unknown field 'stack'; did you mean 'stacks'?"),
        ("record_shapes", "did you mean 'shapes'?"),
        ("shortest_us=-1", "shortest_us must be a number >= 0.0, got float: -1.0"),
        ("stacks=of", "stacks is 'of'; did you mean 'off'?"),
        ("stacks,stacks=off", "it says stacks twice"),
        ("every=9999999", "every must be a whole number <= 1048576, got int: 9999999"),
        ("every=4.0", "every is '4.0'; write a number, such as every=10"),
        (",", "unknown field ''; known: every"),
        ("mode=kineto", "mode cannot be changed at run time: a backend chooses how it records when it is opened"),
    ],
)
def test_texts_that_are_wrong(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The part that is wrong is named; the command line says it before it asks."""
    with pytest.raises(ValueError) as refused:
        detail_from(text)
    assert message in str(refused.value) and repr(text) in str(refused.value)
    with pytest.raises(SystemExit) as ended:
        main(["arm", "--pid", "1", "--steps", "1", f"--detail={text}"])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_texts_are_read_back() -> None:
    """The text that describes a window's detail can be asked for again."""
    for text in ("stacks", "operators=off", "stacks,memory=off,shortest_us=2.5,every=10", "every=0"):
        detail = detail_from(text)
        assert detail is not None and detail.text() == text and detail_from(detail) is detail
    assert detail_from(None) is None
    assert detail_from("every=3") == WindowDetail(every=3)
    assert detail_from("every=04,shortest_us=.5") == WindowDetail(every=4, shortest_us=0.5)
    for field, value in (("every", -1), ("stacks", 1)):
        wrong: Any = {field: value}
        with refused(ValueError, f"WindowDetail.{field}", value):
            WindowDetail(**wrong)


def test_a_budget_goes_first() -> None:
    """A window has what both allow."""
    asked = WindowDetail(every=6, operators=True, stacks=True)
    both = asked.within(NO_OPERATORS)
    assert (both.every, both.operators, both.chosen) == (6, False, (("operators", True), ("stacks", True)))
    assert not both.requested and asked.within(FULL).requested
    assert asked.within(MARKS_ONLY).every == 0


@pytest.mark.checklist("A4", "B6")
def test_by_the_file_the_socket_and_the_environment(output_dir: Path) -> None:
    """As text or object; a wrong one is reported with its place."""
    path = output_dir / "stepscope.json"
    control = Control(path=str(output_dir), socket=True, poll=0.01)

    def write(**fields: Any) -> None:
        draft = path.with_name("draft")
        draft.write_text(json.dumps({"start_step": "next", "steps": 2, **fields}))
        draft.replace(path)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(path.with_name("stepscope.json.status.json").read_text())
        return found

    with running(output_dir / "run", control=control) as (profiler, memory):
        asked: list[Any] = ["every=0", {"every": 0, "stacks": False}, None]
        for number, detail in enumerate(asked):
            write(run_id=f"r{number}", detail=detail)
            work_until(profiler, lambda: len(memory.windows) > number)  # noqa: B023
        wrong: list[tuple[Any, str]] = [
            ({"stack": True}, "detail: unknown field 'stack'; did you mean 'stacks'?"),
            ({"stacks": "yes"}, "detail.stacks must be True, False or None, got str: 'yes'"),
            ("stack", "unknown field 'stack'; did you mean 'stacks'?"),
        ]
        for detail, message in wrong:
            write(run_id="wrong", detail=detail)
            work_until(profiler, lambda: status().get("state") == "bad")
            assert message in status()["reason"], status()
            write(run_id="right", start_step=None, steps=None)
            work_until(profiler, lambda: status().get("state") == "ok")
        request = WindowRequest(start_step=profiler.step_num + 500, steps=2, detail=WindowDetail(every=0))
        (answer,) = ask_process(os.getpid(), Command(command="arm", request=request), 30)
        assert answer.armed is not None and answer.armed.accepted
        work_until(profiler, lambda: len(memory.windows) == 4)
    assert [bool(spans(memory, number)) for number in range(4)] == [False, False, True, False]
