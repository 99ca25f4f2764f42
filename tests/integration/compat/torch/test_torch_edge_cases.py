"""Programs that break torch.profiler and work here, each next to torch's own."""

from __future__ import annotations

import gzip
import json
import logging
import threading
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
import stepscope.torch as ours
from stepscope.runtime.errors import BackendError, ProfilerStateError
from tests.support.messages import check_messages, refused
from tests.support.operators import cpu, network, torch

ONCE = {"wait": 1, "warmup": 1, "active": 1, "repeat": 2}
MODES = pytest.mark.parametrize("mode", ["stream", "kineto"])


def counts(results: Any) -> dict[str, int]:
    """Calls by name."""
    return {row.key: row.count for row in results.key_averages()}


def trace_of(results: Any, path: Path) -> dict[str, Any]:
    """The trace that is exported now."""
    results.export_chrome_trace(str(path))
    text = path.read_bytes()
    trace: dict[str, Any] = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)
    return trace


def theirs(**arguments: Any) -> Any:
    """torch's own profile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.profiler.profile(activities=cpu(), **arguments)


@MODES
def test_exporting_twice(mode: Any, tmp_path: Path) -> None:
    """The second file equals the first, compressed or not; torch raises."""
    with ours.profile(activities=cpu(), mode=mode) as prof:
        torch.ones(2).tanh()
    first = trace_of(prof, tmp_path / "first.json")
    assert trace_of(prof, tmp_path / "second.json") == first == trace_of(prof, tmp_path / "third.json.gz")
    assert counts(prof) == counts(prof)
    with theirs() as other:
        torch.ones(2).tanh()
    other.export_chrome_trace(str(tmp_path / "theirs.json"))
    with pytest.raises(RuntimeError, match="already saved"):
        other.export_chrome_trace(str(tmp_path / "again.json"))


@MODES
@pytest.mark.checklist("F17")
def test_metadata_before_the_window_and_in_each_cycle(mode: Any, tmp_path: Path) -> None:
    """Metadata from before the first window is in every window's trace, metadata from a callback in that window's only."""
    traces: list[Path] = []

    def ready(view: Any) -> None:
        view.add_metadata("window", len(traces))
        traces.append(tmp_path / f"{len(traces)}.json")
        view.export_chrome_trace(traces[-1])

    with ours.profile(
        activities=cpu(),
        schedule=ours.schedule(**ONCE),
        on_trace_ready=ready,
        mode=mode,
        record_shapes=mode == "kineto",
    ) as prof:
        prof.add_metadata("before", 'a "quoted" word')
        prof.add_metadata("number", 3)
        prof.add_metadata_json("structure", '{"layers": [1, 2]}')
        prof.preset_metadata_json("preset", "[7]")
        for _ in range(7):
            torch.ones(2).tanh()
            prof.step()
    prof.raise_errors()
    loaded = [json.loads(path.read_text()) for path in traces]
    assert [trace["window"] for trace in loaded] == [0, 1]
    for trace in loaded:
        assert trace["before"] == 'a "quoted" word' and trace["number"] == 3
        assert trace["structure"] == {"layers": [1, 2]} and trace["preset"] == [7]
        assert trace.get("record_shapes") == (1 if mode == "kineto" else None)
    prof.add_metadata("after", "the end")
    assert trace_of(prof, tmp_path / "late.json")["after"] == "the end"
    assert "window" not in trace_of(prof, tmp_path / "late.json")
    assert prof.preset_metadata == {"preset": "[7]"}

    with theirs(schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)) as other:
        other.add_metadata("before", "a word")
        for _ in range(4):
            other.step()
        other.export_chrome_trace(str(tmp_path / "theirs.json"))
    assert "before" not in json.loads((tmp_path / "theirs.json").read_text())
    with pytest.raises(AttributeError):
        other.add_metadata("number", 3)


def test_a_profiler_of_the_programs_own_inside(caplog: pytest.LogCaptureFixture) -> None:
    """It has torch's slot meanwhile, so the log says for how long the outer profile has no operators."""
    with ours.profile(activities=cpu()) as outer:
        torch.ones(2).exp()
        with torch.profiler.profile(activities=cpu()):
            torch.ones(2).exp()
    (row,) = [row for row in outer.key_averages() if row.key == "aten::exp"]
    assert row.count == 1
    assert "the profile lacks operators of" in caplog.text and "own torch profiler" in caplog.text


def test_metadata_that_is_no_json(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is stored as text and reported; the trace stays one that can be read."""
    with ours.profile(activities=cpu()) as prof:
        prof.add_metadata_json("broken", "{not json")
        torch.ones(2).tanh()
    assert "not JSON" in caplog.text
    assert trace_of(prof, tmp_path / "trace.json")["broken"] == "{not json"
    with refused(TypeError, "metadata", "3"):
        prof.add_metadata(3, "x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@MODES
@pytest.mark.checklist("F20")
def test_nested_profiles(mode: Any) -> None:
    """The inner one has what ran in it, the outer one everything, regions across included; torch's outer one has nothing."""
    with ours.profile(activities=cpu(), mode=mode) as outer, ours.record_function("across"):
        torch.ones(2).tanh()
        with ours.profile(activities=cpu(), mode=mode) as inner, ours.record_function("inside"):
            torch.ones(2).sigmoid()
        assert counts(inner)["aten::sigmoid"] == 1
        torch.ones(2).tanh()
    for prof in (outer, inner):
        prof.raise_errors()
        assert prof.run.report().backends["torch"].notes == ()
    wanted = {"aten::tanh": 2, "aten::sigmoid": 1, "across": 1, "inside": 1}
    assert {name: counts(outer).get(name) for name in wanted} == wanted
    assert {name for name in wanted if name in counts(inner)} >= {"aten::sigmoid", "inside"}
    assert "aten::tanh" not in counts(inner)
    assert not torch.autograd._profiler_enabled()

    with theirs() as other:
        torch.ones(2).tanh()
        with theirs() as another:
            torch.ones(2).sigmoid()
        torch.ones(2).tanh()
    assert "aten::tanh" not in counts(other) and counts(another)["aten::sigmoid"] == 1


@pytest.mark.checklist("F20")
def test_profiles_that_overlap() -> None:
    """Profiles that ask for different things and end in the order in which they began each have all of theirs."""
    asked: list[dict[str, Any]] = [{"record_shapes": True}, {"profile_memory": True}, {"with_flops": True}]
    profiles = [ours.profile(activities=cpu(), mode="kineto", **arguments) for arguments in asked]
    for number, prof in enumerate(profiles):
        prof.start()
        torch.ones(2 + number).tanh()
    torch.ones(9, 9).mm(torch.ones(9, 9))
    for prof in profiles:
        prof.stop()
        torch.ones(1).sigmoid()
    assert [counts(prof)["aten::tanh"] for prof in profiles] == [3, 2, 1]
    assert [counts(prof).get("aten::sigmoid", 0) for prof in profiles] == [0, 1, 2]
    for prof in profiles:
        prof.raise_errors()
        assert counts(prof)["aten::mm"] == 1
    (product,) = (event for event in profiles[0].events() if event.name == "aten::mm")
    assert product.input_shapes == [[9, 9], [9, 9]]
    (product,) = (row for row in profiles[1].key_averages() if row.key == "aten::mm")
    assert product.self_cpu_memory_usage == 4 * 81
    assert {row.key: row.flops for row in profiles[2].key_averages()}["aten::mm"] == 2 * 9**3
    assert not torch.autograd._profiler_enabled()


def test_shapes_inside_of_a_live_profile_are_refused_aloud() -> None:
    """The outer profile has torch's only slot; the inner one has operators without shapes, and says what to do."""
    with ours.profile(activities=cpu(), mode="stream"):
        inner = ours.profile(activities=cpu(), record_shapes=True)
        with pytest.warns(UserWarning) as caught:
            inner.start()
        check_messages(caught, "record_shapes", "mode='kineto'")
        assert [warning.filename for warning in caught] == [__file__]
        torch.ones(2).tanh()
        inner.stop()
    assert counts(inner)["aten::tanh"] == 1


@MODES
@pytest.mark.checklist("F14")
def test_a_raising_callback(mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on, later windows come, the exception is logged, stored and reported; torch raises in the loop."""
    seen: list[int] = []

    def ready(view: Any) -> None:
        seen.append(view.step_num)
        if len(seen) == 1:
            raise ValueError("no space for this window")

    with caplog.at_level(logging.WARNING, logger="stepscope"):
        with ours.profile(activities=cpu(), schedule=ours.schedule(**ONCE), on_trace_ready=ready, mode=mode) as prof:
            for _ in range(7):
                torch.ones(2).tanh()
                prof.step()
    assert seen == [3, 6] and prof.step_num == 7
    assert "no space for this window" in caplog.text
    with pytest.raises(ExceptionGroup) as raised:
        prof.raise_errors()
    (error,) = raised.value.exceptions
    assert isinstance(error, sc.errors.ExporterError) and isinstance(error.__cause__, ValueError)
    assert counts(prof)["aten::tanh"] == 1

    seen.clear()
    with (
        pytest.raises(ValueError, match="no space"),
        theirs(schedule=torch.profiler.schedule(**ONCE), on_trace_ready=ready) as other,
    ):
        for _ in range(7):
            torch.ones(2).tanh()
            other.step()


@MODES
def test_a_view_is_frozen(mode: Any) -> None:
    """Views that are stored show their own window, however many have followed; they come off the training thread."""
    views: list[Any] = []
    threads: set[threading.Thread] = set()

    def ready(view: Any) -> None:
        views.append(view)
        threads.add(threading.current_thread())

    with ours.profile(
        activities=cpu(), schedule=ours.schedule(wait=0, warmup=0, active=1), on_trace_ready=ready, mode=mode
    ) as prof:
        for step in range(4):
            for _ in range(step + 1):
                torch.ones(2).tanh()
            prof.step()
    assert [counts(view)["aten::tanh"] for view in views] == [1, 2, 3, 4]
    assert [view.step_num for view in views] == [1, 2, 3, 4]
    assert [view.window.index for view in views] == [0, 1, 2, 3]
    assert {view.current_action for view in views} == {ours.ProfilerAction.RECORD_AND_SAVE}
    assert views[0].record_shapes is prof.record_shapes
    with pytest.warns(UserWarning, match=r"the last step\(\) began a window in which nothing was recorded"):
        assert not counts(prof)
    assert counts(views[-1])["aten::tanh"] == 4
    assert threading.main_thread() not in threads
    assert len({view.get_trace_id() for view in views}) == 4


def test_memory_timelines(tmp_path: Path) -> None:
    """Files of all formats, the same twice, after a trace was exported; sizes are torch's own for the same work."""

    def work(p: Any) -> Any:
        torch.manual_seed(0)
        model = network()
        with p.profile(activities=cpu(), record_shapes=True, profile_memory=True, with_stack=True) as prof:
            model(torch.ones(4, 1, 8, 8)).sum().backward()
        return prof

    prof, other = work(ours), work(torch.profiler)
    prof.export_chrome_trace(tmp_path / "trace.json")
    for name in ("one.json", "two.json", "three.json.gz"):
        prof.export_memory_timeline(tmp_path / name, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.export_memory_timeline(str(tmp_path / "theirs.json"), device="cpu")
    one = json.loads((tmp_path / "one.json").read_text())
    assert one == json.loads((tmp_path / "two.json").read_text())
    assert one == json.loads(gzip.decompress((tmp_path / "three.json.gz").read_bytes()))
    wanted = json.loads((tmp_path / "theirs.json").read_text())
    assert max(map(max, one[1])) == max(map(max, wanted[1])) > 0
    prof.export_memory_timeline(tmp_path / "points.raw.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "points.raw.json.gz").read_bytes()))
    with ours.profile(activities=cpu(), profile_memory=True) as less:
        torch.ones(2)
    if find_spec("matplotlib") is None:
        with refused(BackendError, "matplotlib", ".json"):
            prof.export_memory_timeline(tmp_path / "points.html")
        assert not (tmp_path / "points.html").exists()
    with refused(ProfilerStateError, "export_memory_timeline()", "record_shapes=True", "with_stack=True"):
        less.export_memory_timeline(tmp_path / "none.json")


@pytest.mark.checklist("F15")
def test_the_end_of_a_window_waits_for_its_operators() -> None:
    """Operators that kineto delivers after the window's last step are in that window, and in no other."""
    windows: list[dict[str, int]] = []

    def ready(view: Any) -> None:
        windows.append(counts(view))

    with ours.profile(
        activities=cpu(),
        schedule=ours.schedule(wait=0, warmup=0, active=1),
        on_trace_ready=ready,
        mode="kineto",
    ) as prof:
        for step in range(6):
            for _ in range(50 * (step % 2)):
                torch.ones(2).tanh()
            torch.ones(2).sigmoid()
            prof.step()
    assert [found.get("aten::tanh", 0) for found in windows] == [0, 50] * 3
    assert [found["aten::sigmoid"] for found in windows] == [1] * 6
    assert prof.run.audit() == ()


def test_a_profile_without_steps_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """One whose schedule records the first step is as it shall be."""
    for wait in (1, 0):
        caplog.clear()
        with ours.profile(activities=cpu(), schedule=ours.schedule(wait=wait, warmup=0, active=1)):
            torch.ones(2)
        if wait:
            check_messages(caplog.records, "step()", "step 0", "each iteration")
        else:
            assert not caplog.records


def test_programs_that_ask_for_torchs_class() -> None:
    """A profile and its views are instances of both; a subclass is one of itself."""
    views: list[Any] = []

    class Mine(ours.profile):
        pass

    with Mine(activities=cpu(), on_trace_ready=views.append) as prof:
        torch.ones(2)
    (view,) = views
    assert all(isinstance(one, torch.profiler.profile) for one in (prof, view))
    assert isinstance(prof, Mine) and isinstance(prof, ours.profile) and isinstance(view, ours.View)
    assert not isinstance(prof, ours.View) and not isinstance(view, ours.profile) and type(prof) is Mine
