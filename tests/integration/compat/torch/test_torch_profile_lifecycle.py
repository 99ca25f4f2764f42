"""The life of a profile: its calls in every order, its arguments, and its messages about options that do not work."""

from __future__ import annotations

import inspect
import json
import os
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepscope as sc
import stepscope.torch as ours
from stepscope.compat.torch.activities import ProfilerActivity as OwnActivity
from stepscope.runtime.errors import ControlError, OutputError, ProfilerStateError
from tests.support.arming import SOCKET, arm_here, set_options_in_environment
from tests.support.messages import check_messages, refused
from tests.support.operators import cpu, torch

WORK = -1
MODES = pytest.mark.parametrize("mode", ["stream", "kineto"])


def tanh(results: Any) -> int:
    """How often the operator is in the table."""
    return sum(row.count for row in results.key_averages() if row.key == "aten::tanh")


@MODES
@pytest.mark.checklist("B1", "B2")
def test_start_and_stop_any_number_of_times(mode: Any, tmp_path: Path) -> None:
    """Each stretch is a run of its own whose last window counts; steps go on where they ended."""
    prof = ours.profile(
        activities=cpu(), mode=mode, schedule=ours.schedule(wait=0, warmup=1, active=2), record_shapes=False
    )
    for stretch in range(3):
        prof.start()
        for _ in range(3):
            torch.ones(stretch + 1).tanh()
            prof.step()
        prof.stop()
        assert tanh(prof) == 2 and prof.step_num == 3 * (stretch + 1)
    prof.export_chrome_trace(tmp_path / "trace.json")
    names = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {name for name in names if name.startswith("ProfilerStep")} == {"ProfilerStep#7", "ProfilerStep#8"}
    prof.raise_errors()


def test_calls_in_the_wrong_order() -> None:
    """Each says what is wrong and what to do; torch fails an assertion, or records nothing without a word."""
    prof = ours.profile(activities=cpu())
    for call in (prof.stop, prof.key_averages, prof.events, lambda: prof.export_chrome_trace("x.json")):
        with refused(ProfilerStateError, "start()"):
            call()
    prof.step()
    assert prof.step_num == 1 and prof.current_action is ours.ProfilerAction.RECORD
    prof.step_num = 5
    prof.start()
    with refused(ProfilerStateError, "start()", "stop()"):
        prof.start()
    torch.ones(2).tanh()
    prof.stop()
    with refused(ProfilerStateError, "stop()", "start()"):
        prof.stop()
    assert tanh(prof) == 1 and prof.step_num == 5
    with refused(ProfilerStateError, "export_stacks()", "with_stack=True"):
        prof.export_stacks("stacks.txt")
    with pytest.raises(OutputError):
        prof.export_chrome_trace("/dev/null/trace.json")


def test_results_without_any_window(tmp_path: Path) -> None:
    """A run that recorded nothing has empty tables, and no trace to export."""
    with ours.profile(activities=cpu(), schedule=ours.schedule(wait=5, warmup=0, active=1)) as prof:
        prof.step()
    assert len(prof.key_averages()) == len(prof.events()) == 0 and prof.key_averages().table() == ""
    assert prof.get_trace_id() is None
    with refused(ProfilerStateError, "trace"):
        prof.export_chrome_trace(tmp_path / "trace.json")


@MODES
def test_results_while_training_goes_on(mode: Any, tmp_path: Path) -> None:
    """Between steps the last finished window may be asked for: it is complete by then."""
    with ours.profile(activities=cpu(), mode=mode, schedule=ours.schedule(wait=1, warmup=0, active=1)) as prof:
        seen: list[int] = []
        for step in range(6):
            for _ in range(step):
                torch.ones(2).tanh()
            prof.step()
            seen.append(tanh(prof))
    assert seen == [0, 1, 1, 3, 3, 5]


def test_an_exception_in_the_body_keeps_recorded_operators() -> None:
    """An exception leaves the `with` unchanged, and the operators before it are recorded."""
    seen: list[int] = []

    def ready(view: Any) -> None:
        seen.append(tanh(view))

    with pytest.raises(KeyError), ours.profile(activities=cpu(), on_trace_ready=ready) as prof:
        torch.ones(2).tanh()
        raise KeyError("loss")
    assert seen == [1] and tanh(prof) == 1


def test_a_callback_may_end_the_profile() -> None:
    """It waits neither for itself nor for the training thread's end; `__exit__` finds it ended."""
    ended = threading.Event()

    def ready(view: Any) -> None:
        view.stop()
        ended.set()

    with ours.profile(
        activities=cpu(), schedule=ours.schedule(wait=0, warmup=0, active=1, repeat=1), on_trace_ready=ready
    ) as prof:
        torch.ones(2).tanh()
        prof.step()
        assert ended.wait(60)
        prof.step()
    assert tanh(prof) == 1 and prof.step_num == 2


@pytest.mark.parametrize(
    ("arguments", "error", "facts"),
    [
        ({"activities": []}, ValueError, ["activities", "ProfilerActivity.CPU"]),
        ({"activities": ["CPU twice"]}, ValueError, ["activities", "CPU"]),
        ({"activities": ["CPU"]}, TypeError, ["activities", "torch.profiler.ProfilerActivity", "CPU"]),
        ({"activities": [{OwnActivity.CPU: ["CPU_OPS"]}]}, ValueError, ["'CPU_OPS'", "CPU", "'CPU_OP'"]),
        ({"activities": [{OwnActivity.CPU: ["NONE"]}]}, RuntimeError, ["'NONE'", "CPU"]),  # as torch's is
        ({"activities": [{OwnActivity.CPU: "CPU_OP"}]}, TypeError, ["kinds of events of CPU", "a list", "'CPU_OP'"]),
        ({"activities": [{OwnActivity.CPU: [3]}]}, TypeError, ["kinds of events of CPU", "str", "3"]),
        ({"schedule": 3}, TypeError, ["schedule", "3"]),
        ({"on_trace_ready": "x"}, TypeError, ["on_trace_ready", "'x'"]),
        ({"post_processing_timeout_s": -1}, ValueError, ["post_processing_timeout_s must be non-negative", "-1"]),
        ({"post_processing_timeout_s": "1"}, TypeError, ["post_processing_timeout_s", "a number", "'1'"]),
        ({"mode": "stream", "record_shapes": True}, ValueError, ["record_shapes", "mode='stream'"]),
        ({"mode": "live"}, ValueError, ["mode", "auto", "stream", "kineto", "live"]),
    ],
    ids=str,
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], facts: list[str]) -> None:
    """They are refused by the call that gets them, with the name and the value."""
    if arguments.get("activities") == ["CPU twice"]:
        arguments = {"activities": cpu() * 2}
    with refused(error, *facts):
        ours.profile(**arguments)


def test_devices_that_are_not_there() -> None:
    """They are warned of, never left out in silence; alone they are an error. torch's deprecated switch still works."""
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    cuda = torch.profiler.ProfilerActivity.CUDA
    with pytest.warns(UserWarning) as caught:
        prof = ours.profile(activities=[*cpu(), cuda])
    check_messages(caught, "activities", "CUDA")
    assert [warning.filename for warning in caught] == [__file__]
    assert prof.activities == set(cpu()) and prof.use_device is None
    with refused(ValueError, "CUDA"):
        ours.profile(activities=[cuda])
    with pytest.warns(UserWarning) as caught, pytest.warns(FutureWarning) as deprecated:
        ours.profile(use_cuda=True)
    check_messages(caught, "CUDA")
    check_messages(deprecated, "use_cuda")
    with pytest.warns(FutureWarning) as deprecated:
        assert ours.profile(use_cuda=False).activities == set(cpu())
    check_messages(deprecated, "use_cuda")
    with pytest.warns(FutureWarning), refused(ValueError, "use_cuda=False", "ProfilerActivity.CPU"):
        ours.profile(activities=[cuda], use_cuda=False)
    # Our own members are as good, and so is a choice of kinds.
    with ours.profile(activities=[{OwnActivity.CPU: ["CPU_OP"]}]) as prof:
        torch.ones(2).tanh()
    assert tanh(prof) == 1 and prof.activities == set(cpu())


@MODES
def test_toggling(mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Operators while they are switched off are missing, all others are there; elsewhere it is reported to have no effect."""
    with ours.profile(activities=cpu(), mode=mode) as prof:
        torch.ones(2).tanh()
        prof.toggle_collection_dynamic(False, cpu())
        torch.ones(2).tanh()
        torch.ones(2).sigmoid()
        prof.toggle_collection_dynamic(True, cpu())
        torch.ones(2).tanh()
        thread = threading.Thread(target=prof.toggle_collection_dynamic, args=(False, cpu()))
        thread.start()
        thread.join()
        torch.ones(2).tanh()
    check_messages(caplog.records)
    assert tanh(prof) == 3 and "aten::sigmoid" not in {row.key for row in prof.key_averages()}


class Observer:
    """An execution trace observer that notes its calls, and fails in chosen calls."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self.threads: set[threading.Thread] = set()
        self._failing = failing

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread())
        if call == self._failing:
            raise RuntimeError(f"cannot {call}")

    def start(self) -> None:
        self._note("start")

    def stop(self) -> None:
        self._note("stop")

    def cleanup(self) -> None:
        self._note("cleanup")


def observed(p: Any, observer: Observer) -> tuple[list[tuple[Any, ...]], Any]:
    """Two windows with an observer and names of the user's."""
    seen: list[tuple[Any, ...]] = []
    names = iter("abcdef")

    def ready(view: Any) -> None:
        seen.append((view.get_trace_id(), view.step_num, view.current_action.name))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with p.profile(
            activities=cpu(),
            schedule=p.schedule(wait=1, warmup=1, active=1, repeat=2),
            execution_trace_observer=observer,
            custom_trace_id_callback=lambda: next(names),
            on_trace_ready=ready,
        ) as prof:
            for _ in range(7):
                torch.ones(2).tanh()
                prof.step()
    return seen, prof


def test_observers_and_names_of_windows() -> None:
    """Both are asked as often, and where, torch asks them."""
    mine, other = Observer(), Observer()
    seen, prof = observed(ours, mine)
    assert seen == observed(torch.profiler, other)[0] == [("a", 3, "NONE"), ("b", 6, "NONE")]
    assert mine.calls == other.calls == ["start", "stop", "start", "stop", "cleanup"]
    assert mine.threads == {threading.main_thread()}
    prof.raise_errors()


@pytest.mark.parametrize("failing", ["start", "stop", "cleanup"])
def test_observers_that_fail(failing: str) -> None:
    """Training and operators go on; the exception is reported."""
    seen, prof = observed(ours, Observer(failing))
    assert [step for _, step, _ in seen] == [3, 6] and tanh(prof) == 1
    with pytest.raises(ExceptionGroup) as raised:
        prof.raise_errors()
    assert f"cannot {failing}" in " ".join(f"{error} {error.__cause__}" for error in raised.value.exceptions)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("execution_trace_observer", 5),
        ("execution_trace_observer", 0),
        ("execution_trace_observer", Observer),
        ("execution_trace_observer", sc.exporters.MemoryExporter()),
        ("experimental_config", 3),
        ("experimental_config", {}),
    ],
)
def test_observers_and_configurations_that_are_none(argument: str, value: Any) -> None:
    """They are refused where the profile is made: at its start nothing would raise, and operators would be missing."""
    with refused(TypeError, argument, "got", type(value).__name__, snapshot=False):
        ours.profile(activities=cpu(), **{argument: value})


@pytest.mark.needs("torch")
def test_an_observer_that_the_environment_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own variable makes an `ExecutionTraceObserver`, where the program gives none."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE", "1")
    with ours.profile(activities=cpu()) as prof:
        torch.ones(2).tanh()
    assert isinstance(prof.execution_trace_observer, ours.ExecutionTraceObserver)
    (file,) = tmp_path.glob("*.et.json")
    assert "aten::tanh" in {node["name"] for node in json.loads(file.read_text())["nodes"]}
    given = Observer()
    assert ours.profile(activities=cpu(), execution_trace_observer=given).execution_trace_observer is given


def test_exporters_and_runs_of_ours(tmp_path: Path) -> None:
    """Everything of stepscope goes with it: exporters, the report, spans, a place for the run; also as `on_trace_ready`."""
    memory = sc.exporters.MemoryExporter()
    with ours.profile(
        activities=cpu(),
        exporters=[memory],
        on_trace_ready=sc.tensorboard_trace_handler(tmp_path / "log"),
        output_dir=tmp_path / "run",
        name="mine",
    ) as prof:
        with sc.span("around"):
            torch.ones(2).tanh()
    assert "aten::tanh" in memory.names() and (tmp_path / "run" / "journal").exists()
    assert {row.key for row in prof.key_averages()} >= {"around", "aten::tanh"}
    assert "mine" in str(prof.run.report()) and "aten::tanh" in prof.run.summary()
    assert len(list((tmp_path / "log").glob("*.pt.trace.json"))) == 1
    prof.raise_errors()


def test_torchs_handler_and_schedule() -> None:
    """Callbacks and schedules of torch's own module do as well."""
    handler = torch.profiler.tensorboard_trace_handler("log", use_gzip=True)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    with ours.profile(activities=cpu(), schedule=schedule, on_trace_ready=handler) as prof:
        for _ in range(4):
            torch.ones(2).tanh()
            prof.step()
    prof.raise_errors()
    assert len(list(Path("log").glob("*.pt.trace.json.gz"))) == 1 and tanh(prof) == 1


def test_a_forked_child_is_left_alone() -> None:
    """In the child the profile does nothing and waits for nothing; the parent's window is whole."""
    with ours.profile(activities=cpu(), on_trace_ready=tanh) as prof:
        torch.ones(2).tanh()
        child = os.fork()
        if child == 0:
            try:
                prof.step()
                prof.stop()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        torch.ones(2).tanh()
    assert tanh(prof) == 2


@MODES
def test_regions_of_torchs_own(mode: Any) -> None:
    """torch's `record_function`, which libraries use, is recorded as ours are, each once and with its operators inside."""
    with ours.profile(activities=cpu(), mode=mode) as prof:
        with torch.profiler.record_function("theirs"), ours.record_function("ours"):
            torch.ones(2).tanh()
    found = {event.name: event for event in prof.events()}
    assert found["aten::tanh"].cpu_parent is found["ours"] and found["ours"].cpu_parent is found["theirs"]
    assert all(found[name].is_user_annotation and found[name].scope == 7 for name in ("ours", "theirs"))
    assert {row.key: row.count for row in prof.key_averages()} == dict.fromkeys(found, 1)
    with refused(TypeError, "name", "3"):
        ours.record_function(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "args", "5"):
        ours.record_function("x", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_parameters_and_methods_are_torchs() -> None:
    """Each parameter and member of torch's `profile` is here; all but the steps of its own state machine."""
    signature = inspect.signature
    wanted = set(signature(torch.profiler.profile).parameters)
    assert wanted <= set(signature(ours.profile).parameters)
    theirs, mine = torch.profiler.profile(activities=cpu()), ours.profile(activities=cpu())
    inner = {"prepare_trace", "start_trace", "stop_trace", "action_map", "step_rec_fn", "has_cudagraphs", "mem_tl"}
    names = {name for name in dir(theirs) if not name.startswith("_")} - inner - {"activity_filters"}
    assert {name for name in names if not hasattr(type(mine), name) and name not in vars(mine)} == set()
    for name in names:
        method = getattr(torch.profiler.profile, name, None)
        if inspect.isfunction(method):
            arguments = list(signature(method).parameters)
            assert list(signature(getattr(ours.profile, name)).parameters)[: len(arguments)] == arguments, name
    assert set(torch.profiler.__all__) <= set(ours.__all__)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.sampled_from([0, 1, 2, WORK]), max_size=12))
def test_any_overlap_of_profiles_that_share_kineto(calls: list[int]) -> None:
    """Whenever each of three begins and ends, it has exactly the operators that ran meanwhile."""
    profiles = [ours.profile(activities=cpu(), mode="kineto", record_shapes=number == 1) for number in range(3)]
    running, wanted, started = set[int](), [0, 0, 0], set[int]()
    for call in [*calls, WORK]:
        if call == WORK:
            torch.ones(2).tanh()
            for number in running:
                wanted[number] += 1
        elif call in running:
            profiles[call].stop()
            running.remove(call)
        else:
            profiles[call].start()
            running.add(call)
            started.add(call)
            wanted[call] = 0
    for number in sorted(running):
        profiles[number].stop()
    assert [tanh(profiles[number]) for number in started] == [wanted[number] for number in started]
    assert not torch.autograd._profiler_enabled()
    for number in started:
        profiles[number].raise_errors()
        assert profiles[number].run.report().backends["torch"].notes == ()


@MODES
def test_an_operator_has_steps_recorded(mode: Any) -> None:
    """Those that were asked for, and without a schedule no others; views know their steps."""
    seen: list[tuple[int, int, Any]] = []

    def ready(view: Any) -> None:
        seen.append((view.step_num, tanh(view), view.window.metadata["armed"]["trigger"]))

    with ours.profile(activities=cpu(), mode=mode, control=SOCKET, on_trace_ready=ready) as prof:
        for step in range(9):
            if step == 3:
                assert arm_here(2)
            for _ in range(step):
                torch.ones(2).tanh()
            prof.step()
    prof.raise_errors()
    assert seen == [(6, 9, "socket")] and tanh(prof) == 9
    assert [event.name for event in prof.events() if event.name.startswith("ProfilerStep")] == ["ProfilerStep*"] * 2
    with refused(TypeError, "control", "stepscope.Control", "3"):
        ours.profile(control=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.checklist("B6")
def test_the_environment_has_steps_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the program's schedule; each run of the process has a directory of its own where it says."""
    set_options_in_environment(
        monkeypatch,
        schedule={"wait": 2, "active": 2, "repeat": 1},
        output_dir=str(tmp_path / "said"),
        options={"journal": False},
    )
    views: list[tuple[int, Any]] = []

    def ready(view: Any) -> None:
        views.append((view.step_num, view.current_action))

    outer = ours.profile(activities=cpu(), on_trace_ready=ready, output_dir=tmp_path / "programs")
    inner = ours.profile(activities=cpu(), schedule=ours.schedule(wait=0, warmup=0, active=1, repeat=1))
    with outer, inner:
        for step in range(6):
            for _ in range(step):
                torch.ones(2).tanh()
            outer.step()
            inner.step()
    for prof in (outer, inner):
        prof.raise_errors()
        assert tanh(prof) == 5
    assert views == [(4, ours.ProfilerAction.NONE)]
    assert outer.run.output.path == tmp_path / "said" and inner.run.output.path == tmp_path / "said" / "torch-2"
    assert (tmp_path / "said" / "journal").is_file() and (tmp_path / "said" / "torch-2" / "journal").is_file()
    monkeypatch.setenv("STEPSCOPE_OPTIONS", "{")
    with refused(ControlError, "STEPSCOPE_OPTIONS", "line 1, column 2"):
        outer.start()
