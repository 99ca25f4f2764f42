"""MindSpore itself, training on the CPU: its operators are in the trace, where and when they ran."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.compat.mindspore.environment import VARIABLE
from tests.support import mindspore_output as output
from tests.support.basics import ROOT, mindspore_python
from tests.support.collectors import free_port
from tests.support.launch import run_to_end
from tests.support.messages import check_messages


def run(training: str, directory: Path, **environment: str) -> dict[str, Any]:
    """Runs a training; returns what it found."""
    command = [str(mindspore_python()), "-m", "tests.support.mindspore_trainings", training, str(directory)]
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK_ID", "PYTHONPATH")}
    quiet = {"GLOG_v": "3", "PYTHONPATH": str(ROOT)}
    done = run_to_end(command, timeout=110, cwd=ROOT, environment={**inherited, **quiet, **environment})
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def spans(directory: Path) -> list[dict[str, Any]]:
    """The spans of the timeline, in order of time."""
    found = [event for event in output.events(directory) if event.get("ph") == "X"]
    return sorted(found, key=lambda event: float(event["ts"]))


def products(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Multiplications of matrices among operators of MindSpore."""
    return [event for event in events if event["cat"] == "cpu_op" and "MatMul" in event["name"].rpartition("/")[2]]


def within(event: dict[str, Any], step: dict[str, Any]) -> bool:
    """Whether the middle of an event lies in a step."""
    middle = float(event["ts"]) + float(event["dur"]) / 2
    return float(step["ts"]) <= middle < float(step["ts"]) + float(step["dur"])


@pytest.mark.checklist("B3", "B5", "C3", "A28", "B18")
@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_model_train_with_the_monitor(tmp_path: Path, mode: str) -> None:
    """The steps of the file, by `Model.train`: each has the same operators, within its time, on rows of their own."""
    found = run(f"callback-{mode}", tmp_path)
    assert found["steps"] == [[3, 4, 5]]
    assert found["target"][:2] == ["CPU", mode]
    directory = Path(found["directories"][0])
    assert directory.parent.name == "rank0_start3_stop5"
    assert output.steps_of(directory) == [3, 4, 5]
    events = spans(directory)
    steps = {event["name"]: event for event in events if event["name"].startswith("ProfilerStep#")}
    counts = [len([event for event in products(events) if within(event, step)]) for _, step in sorted(steps.items())]
    assert counts == [5, 5, 5]
    assert len(products(events)) == 15
    rows = {event["args"]["name"] for event in output.events(directory) if event["name"] == "thread_name"}
    assert "MindSpore operators" in rows
    table = {row["op_type"]: int(row["type_occurrences"]) for row in output.rows(directory, "cpu_op_type_info_0.csv")}
    assert table["MatMul"] == 15
    assert table["ApplyMomentum"] == 12
    assert "CLOCK_REALTIME, mapped by two readings per recording" in found["report"]
    memory = output.rows(directory, "memory_record.csv")
    assert {"MindSpore", "process"} <= {row["Component"] for row in memory}
    by_step = [(row["Component"], int(row["Step"])) for row in output.rows(directory, "memory_by_step.csv")]
    assert set(by_step) >= {(component, step) for component in ("MindSpore", "process") for step in (4, 5)}
    computing = [float(row["Computing"]) for row in output.rows(directory, "step_trace_time.csv")]
    assert len(computing) == 3
    assert all(time > 0 for time in computing)


@pytest.mark.checklist("B2", "B3", "C22")
def test_the_callback_of_the_guide(tmp_path: Path) -> None:
    """Its own start and stop, and the operators by the shapes of their inputs."""
    found = run("guide", tmp_path)
    (directory,) = map(Path, found["directories"])
    assert len(products(spans(directory))) == 15
    shapes = {row["input_shape"]: row["op_occurrences"] for row in found["matmul"]}
    assert shapes == {
        "[2, 16], [32, 16]": 3,
        "[2, 32], [4, 32]": 3,
        "[2, 4], [2, 32]": 3,
        "[2, 4], [4, 32]": 3,
        "[2, 32], [2, 16]": 3,
    }


@pytest.mark.checklist("B5", "F15")
def test_a_functional_loop(tmp_path: Path) -> None:
    """In PyNative mode, with a schedule: each window has its own operators and no others', within the spans of the
    program that launched them."""
    found = run("loop", tmp_path)
    assert found["steps"] == [[2, 3], [6, 7]]
    for directory in map(Path, found["directories"]):
        events = spans(directory)
        assert len(products(events)) == 10
        for name in ("gradients", "optimizer"):
            assert len([event for event in events if event["name"] == name]) == 2
        launched = [event for event in events if event["name"] == "gradients"]
        early = [event for event in products(events) if float(event["ts"]) < float(launched[0]["ts"])]
        assert early == []
        assert (directory / "ASCEND_PROFILER_OUTPUT" / "memory_record.csv").exists()


@pytest.mark.checklist("A39", "F15")
def test_a_graph_that_goes_on_when_its_call_has_returned(tmp_path: Path) -> None:
    """Each step and each window have what they launched, all of it, though nothing reads the loss."""
    found = run("graph", tmp_path)
    assert found["steps"] == [[4, 5], [8, 9]]
    for directory in map(Path, found["directories"]):
        events = spans(directory)
        steps = sorted(
            (event for event in events if event["name"].startswith("ProfilerStep#")), key=lambda e: e["name"]
        )
        updates = [event for event in events if "ApplyMomentum" in event["name"]]
        assert [len([event for event in products(events) if within(event, step)]) for step in steps] == [5, 5]
        assert [len([event for event in updates if within(event, step)]) for step in steps] == [4, 4]
        assert (len(products(events)), len(updates)) == (10, 8)


@pytest.mark.checklist("B14", "C11")
def test_waiting_for_a_dataset(tmp_path: Path) -> None:
    """With `data_process` each batch that the loop asks a dataset for is a span, in an unchanged loop; without none is."""
    found = run("data", tmp_path)
    names = {
        wanted: [
            event["name"] for event in spans(Path(found[wanted]["directories"][0])) if event["cat"] == "dataloader"
        ]
        for wanted in ("True", "False")
    }
    assert names == {"True": ["TupleIterator.__next__"] * 9, "False": []}  # eight batches, and the end
    assert found["idle"] == [
        "data_process recorded nothing: no iterator of a dataset of MindSpore was asked for a batch"
    ]


@pytest.mark.checklist("D12", "D13", "B14", "C11")
def test_a_slow_operator_of_a_pipeline(tmp_path: Path) -> None:
    """MindSpore's own samples of its pipeline are in each window, with the calls of the function that prepares data; the bottleneck is
    named, in the products and by `explain`. A second recording says why it has none."""
    found = run("pipeline", tmp_path)
    for directory in map(Path, found["directories"]):
        raw = output.rows(directory, "minddata_pipeline_raw_0.csv")
        assert [(row["op_type"], row["children_id"]) for row in raw] == [
            ("EpochCtrl", "[1]"), ("Batch", "[2]"), ("Map", "[3]"), ("Generator", ""),
        ]  # fmt: skip
        summary = json.loads((directory / PRODUCTS / "minddata_pipeline_summary_0.json").read_text())
        assert summary["bottleneck_warning"] == ["Map(id=2)"]
        assert summary["queue_utilization_pct"][3] > 40 and summary["queue_utilization_pct"][2] < 10
        assert summary["per_pipeline_time"][0] > 4
        use = json.loads((directory / PRODUCTS / "minddata_cpu_utilization_0.json").read_text())
        assert [each["op_id"] for each in use["op_info"]] == [0, 1, 2, 3]
        assert {len(values) for each in use["op_info"] for values in each["metrics"].values()} == {
            len(use["time_stamp"])
        }
        assert max(use["device_info"]["user_utilization"]) > 0
        stages = {row["Operation"]: row for row in output.rows(directory, "dataset.csv")}
        assert stages["TupleIterator.__next__"]["Stage"] == "wait"
        assert stages["__main__.doubled"]["Stage"] == "map"
        assert float(stages["__main__.doubled"]["Avg. time (us)"]) >= 3000
        assert any(event["name"] == "__main__.doubled" and event["cat"] == "preprocess" for event in spans(directory))
        (average,) = [row for row in output.rows(directory, "step_phases.csv") if row["step"] == "average"]
        assert float(average["data(us)"]) > 4000
    kind, *sentences, action = found["finding"]
    assert kind == "input-bound-pipeline"
    assert any("Map(id=2)" in text and "slower than Generator(id=3)" in text for text in sentences)
    busy = "more workers do not help while the processors are"  # other tests may use all of them
    assert action == "num_parallel_workers above 1 for Map" or busy in action
    assert "data pipelines of MindSpore are recorded once in a process" in found["again"]


@pytest.mark.checklist("B4", "B11", "C4")
def test_collectives_of_two_ranks(tmp_path: Path) -> None:
    """Each rank has its own collective in each step, with its time, in a directory of its own."""
    tools = mindspore_python().parent
    command = [str(tools / "msrun"), "--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}"]
    command += [
        f"--log_dir={tmp_path / 'log'}",
        "--join=True",
        str(ROOT / "tests" / "support" / "mindspore_trainings.py"),
    ]
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK_ID", "PYTHONPATH")}
    # msrun starts what `python` is.
    inherited |= {"GLOG_v": "3", "PYTHONPATH": str(ROOT), "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = run_to_end([*command, "collective", str(tmp_path / "out")], timeout=110, cwd=tmp_path, environment=inherited)
    assert done.returncode == 0, done.stderr + done.stdout
    windows = list(output.windows_below(tmp_path / "out"))
    assert sorted(output.info(window)["rank_id"] for window in windows) == ["0", "1"]
    for window in windows:
        found = json.loads((window / PRODUCTS / "communication.json").read_text())
        assert list(found) == ["step0", "step1", "step2"]
        for step in found.values():
            (name,) = [name for name in step["collective"] if name != "Total Op Info"]
            assert name.rpartition("/")[2].startswith("AllReduce")
            totals = step["collective"][name]["Communication Time Info"]
            assert totals == step["collective"]["Total Op Info"]["Communication Time Info"]
            assert totals["Occurrences"] == 1
            assert totals["Elapse Time(ms)"] > 0
            assert step["p2p"] == {}
        times = output.rows(window, "step_trace_time.csv")
        assert all(float(row["Communication"]) > 0 for row in times)


@pytest.mark.checklist("D1", "F20")
def test_two_at_once(tmp_path: Path) -> None:
    """MindSpore can be recorded by one at a time: the other says so, and both have all else. A later one has it again."""
    found = run("two", tmp_path)
    assert sum(row["op_occurrences"] for row in json.loads(found["outer"])["MatMul"]) == 6
    assert sum(row["op_occurrences"] for row in json.loads(found["again"])["MatMul"]) == 2
    assert "seen by both" in found["inner"]
    assert not [name for name in found["inner"] if "MatMul" in name]
    assert "a window has no operators: another profiler of this process records MindSpore" in found["report"]


THEIRS_FIRST = """
import sys
import mindspore
assert mindspore.profiler.envprofiler.EnvProfiler.profiler is not None
import stepscope.mindspore as front
assert mindspore.profiler.envprofiler.EnvProfiler.profiler is None
profiler = front.EnvProfiler.profiler
with front.mstx.range("mine") if hasattr(front.mstx, "range") else __import__("stepscope").span("mine"):
    print(mindspore.Tensor([1.0]) + 1)
profiler.analyse()
"""


def test_by_the_environment_where_mindspore_was_imported_first(tmp_path: Path) -> None:
    """MindSpore has begun to follow the variable: its profiler is ended, one records, and the log says how to avoid it."""
    options = json.dumps({"start": True, "output_path": str(tmp_path / "out")})
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK_ID", "PYTHONPATH")}
    command = [str(mindspore_python()), "-c", THEIRS_FIRST]
    done = run_to_end(
        command,
        timeout=110,
        cwd=tmp_path,
        environment={**inherited, "GLOG_v": "3", "PYTHONPATH": str(ROOT), VARIABLE: options},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    check_messages(done.stderr, "stepscope.mindspore")
    (ours,) = (tmp_path / "out").glob("*_cpu_ms")
    assert "mine" in [event["name"] for event in output.events(ours)]


@pytest.mark.checklist("B6", "E17")
def test_by_the_environment(tmp_path: Path) -> None:
    """Without a word of profiling in the program, and without MindSpore starting its own profiler as well."""
    options = json.dumps({"start": True, "output_path": str(tmp_path / "out")})
    found = run("environment", tmp_path, **{VARIABLE: options})
    assert sum(row["op_occurrences"] for row in found["matmul"]) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert found["seen"] == [options, options]  # also by what the program starts


UNCHANGED = """
import numpy, mindspore
from mindspore import nn
mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
net = nn.Dense(4, 4)
for _ in range(3):
    net(mindspore.Tensor(numpy.ones([2, 4], numpy.float32))).asnumpy()
print("trained")
"""


@pytest.mark.checklist("B6", "E17")
def test_a_script_that_knows_only_mindspore(tmp_path: Path) -> None:
    """`stepscope run` follows the variable, so nothing of the script is changed: its operators are in the products."""
    script = tmp_path / "train.py"
    script.write_text(UNCHANGED)
    options = json.dumps({"start": True, "output_path": str(tmp_path / "out")})
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK_ID", "PYTHONPATH")}
    environment |= {"GLOG_v": "3", "PYTHONPATH": str(ROOT), VARIABLE: options}
    command = [
        str(mindspore_python()),
        "-m",
        "stepscope",
        "run",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
        str(script),
    ]
    done = run_to_end(command, timeout=110, cwd=tmp_path, environment=environment)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["trained"]), done.stderr
    (directory,) = output.windows_below(tmp_path / "out")
    table = {row["op_type"]: row["type_occurrences"] for row in output.rows(directory, "cpu_op_type_info_0.csv")}
    assert table["MatMul"] == "3"
    assert (tmp_path / "run" / "journal").exists()


def test_contract(tmp_path: Path) -> None:
    """The backend keeps every promise of the contract."""
    assert len(run("contract", tmp_path)["checks"]) > 5
