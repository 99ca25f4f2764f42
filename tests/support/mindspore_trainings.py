"""Trainings with MindSpore itself, run as programs by `tests/system/compat/mindspore/test_mindspore_training.py` in an environment that has it.

The arguments are the name of a training and a directory. The facts are printed as JSON, on the last line.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import stepscope
import stepscope.mindspore as front
from stepscope.backends.mindspore.backend import MindSporeBackend
from stepscope.compat.mindspore.environment import VARIABLE

numpy: Any = import_module("numpy")
mindspore: Any = import_module("mindspore")
dataset: Any = import_module("mindspore.dataset")
nn: Any = mindspore.nn

STEPS = 8


Callback: Any = mindspore.train.Callback


def network() -> Any:
    """Two layers: three products of matrices in each step, forward and backward."""
    mindspore.set_seed(1)
    return nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 4))


def batches() -> Any:
    """As many batches of 2 as a training has steps."""

    def samples() -> Iterator[tuple[Any, Any]]:
        for number in range(2 * STEPS):
            yield numpy.full([16], number / 16, numpy.float32), numpy.int32(number % 4)

    return dataset.GeneratorDataset(samples, ["data", "label"]).batch(2)


def train(callbacks: list[Any]) -> None:
    """`Model.train` over one epoch."""
    net = network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    model = mindspore.train.Model(net, loss, optimizer)
    model.train(1, batches(), callbacks=callbacks, dataset_sink_mode=False)


def functional(step_done: Callable[[], object]) -> None:
    """A loop of one's own, with the gradient function of MindSpore."""
    net = network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)

    def forward(data: Any, label: Any) -> Any:
        return loss(net(data), label)

    gradients = mindspore.value_and_grad(forward, None, optimizer.parameters)
    for data, label in batches().create_tuple_iterator():
        with stepscope.span("gradients"):
            value, found = gradients(data, label)
        with stepscope.span("optimizer"):
            optimizer(found)
        del value
        step_done()


def compiled(step_done: Callable[[], object]) -> None:
    """The same as one graph, whose call returns when the loss is there: gradients and optimizer go on behind it."""
    net = network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)

    def forward(data: Any, label: Any) -> Any:
        return loss(net(data), label)

    gradients = mindspore.value_and_grad(forward, None, optimizer.parameters)

    @mindspore.jit(backend="ms_backend")  # type: ignore[untyped-decorator]
    def step(data: Any, label: Any) -> Any:
        value, found = gradients(data, label)
        return mindspore.ops.depend(value, optimizer(found))

    data, label = next(iter(batches().create_tuple_iterator()))
    for _ in range(STEPS + 2):
        step(data, label)
        step_done()


def recorded_facts(profiler: Any) -> dict[str, Any]:
    """Facts of a recording, for the test to compare."""
    profiler.raise_errors()
    windows = profiler.windows
    return {
        "directories": [str(window.directory) for window in windows],
        "steps": [[step.number for step in window.window.steps] for window in windows],
        "matmul": json.loads(profiler.op_analyse("MatMul"))["MatMul"] if hasattr(profiler, "op_analyse") else None,
        "report": str(profiler.trust_report()),
        "limitations": profiler.limitations,
        "target": [profiler.target.device, profiler.target.mode, profiler.target.version],
    }


def callback(directory: Path, mode: int) -> dict[str, Any]:
    """`Model.train` with the monitor as a callback; steps 3 to 5 are asked for by the file."""
    mindspore.set_context(mode=mode, device_target="CPU")
    (directory / "cfg").mkdir()
    config = {"start_step": 3, "stop_step": 5, "analyse_mode": 0, "profiler_level": "Level1"}
    (directory / "cfg" / "profiler_config.json").write_text(json.dumps(config))
    monitor = front.DynamicProfilerMonitor(str(directory / "cfg"), str(directory / "out"), 1)
    assert isinstance(monitor, mindspore.train.Callback)
    assert isinstance(monitor, front.DynamicProfilerMonitor)
    train([monitor])
    return recorded_facts(monitor.profiler)


class StopAtStep(Callback):  # type: ignore[misc]
    """The callback of MindSpore's guide, but for its import."""

    def __init__(self, start_step: int, stop_step: int, output_path: Path) -> None:
        Callback.__init__(self)
        self.start_step, self.stop_step = start_step, stop_step
        self.profiler = front.Profiler(start_profile=False, output_path=output_path, record_shapes=True)

    def on_train_step_begin(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == self.start_step:
            self.profiler.start()

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == self.stop_step:
            self.profiler.stop()
            self.profiler.analyse()


def guide(directory: Path) -> dict[str, Any]:
    """The guide's own callback, which knows nothing of steps of ours."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    own = StopAtStep(2, 4, directory)
    train([own])
    return recorded_facts(own.profiler)


def loop(directory: Path) -> dict[str, Any]:
    """A functional loop in PyNative mode, two windows of two steps."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
    handler = front.tensorboard_trace_handler(directory)
    plan = front.schedule(wait=1, warmup=1, active=2, repeat=2)
    with front.profile(profile_memory=True, schedule=plan, on_trace_ready=handler) as profiler:
        functional(profiler.step)
    return recorded_facts(profiler)


def graph(directory: Path) -> dict[str, Any]:
    """A graph for each step, two windows of two steps; nothing that it returns is read."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    handler = front.tensorboard_trace_handler(directory)
    plan = front.schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=2)
    with front.profile(schedule=plan, on_trace_ready=handler) as profiler:
        compiled(profiler.step)
    return recorded_facts(profiler)


def data(directory: Path) -> dict[str, Any]:
    """A loop over a dataset, with `data_process` and without."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
    found: dict[str, Any] = {}
    for wanted in (True, False):
        profiler = front.Profiler(output_path=directory / str(wanted), start_profile=False, data_process=wanted)
        profiler.start()
        functional(profiler.step)
        profiler.analyse()
        found[str(wanted)] = recorded_facts(profiler)
    idle = front.Profiler(output_path=directory / "idle", start_profile=False, data_process=True)
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    logging.getLogger("stepscope").addHandler(logging.handlers.QueueHandler(records))
    idle.start()
    idle.stop()
    found["idle"] = [records.get().getMessage() for _ in range(records.qsize())]
    return found


def doubled(column: Any) -> Any:
    """The function that `map` runs for each item; it takes 3 ms."""
    time.sleep(0.003)
    return column * 2


def pipeline(directory: Path) -> dict[str, Any]:
    """A data set whose items take long, in a loop of two windows; and what another recording says afterwards."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
    dataset.config.set_monitor_sampling_interval(20)

    def samples() -> Iterator[tuple[Any, ...]]:
        for number in range(160):
            yield (numpy.full([16], number, numpy.float32),)

    plan = front.schedule(wait=0, active=40, repeat=2)
    profiler = front.Profiler(
        output_path=directory, start_profile=False, data_process=True, schedule=plan, data_simplification=False
    )
    profiler.start()
    batches = dataset.GeneratorDataset(samples, ["data"]).map(doubled, ["data"], num_parallel_workers=1).batch(2)
    for _ in batches.create_tuple_iterator():
        profiler.step()
    profiler.analyse()
    again = front.Profiler(output_path=directory / "again", start_profile=False, data_process=True)
    again.start()
    for _ in batches.create_tuple_iterator():
        again.step()
    again.stop()
    journal = profiler.directories[0] / "FRAMEWORK" / "journal"
    finding = stepscope.explain(journal).findings[0]
    return {
        "directories": [str(each) for each in profiler.directories],
        "report": str(profiler.trust_report()),
        "again": str(again.trust_report()),
        "finding": [finding.id, *finding.evidence, finding.action],
    }


def collective(directory: Path) -> dict[str, Any]:
    """A rank of a job on the CPU that adds up a tensor over all ranks in each step."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    mindspore.communication.init()
    add = mindspore.ops.AllReduce()

    class Sum(nn.Cell):  # type: ignore[misc]
        def construct(self, data: Any) -> Any:
            return add(data * 2)

    network, data = Sum(), mindspore.Tensor(numpy.ones([4], numpy.float32))
    profiler = front.Profiler(output_path=directory, start_profile=False, profile_communication=True)
    for _ in range(2):
        network(data).asnumpy()
    profiler.start()
    for _ in range(3):
        network(data)
        profiler.step()
    profiler.stop()
    profiler.analyse()
    return {"limitations": profiler.limitations}


def two(directory: Path) -> dict[str, Any]:
    """Two profilers at once: MindSpore's own is one for the process, so the second one says what it lacks."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    outer = front.Profiler(output_path=directory / "outer", start_profile=False)
    inner = front.Profiler(output_path=directory / "inner", start_profile=False)
    net = network()
    data = mindspore.Tensor(numpy.ones([2, 16], numpy.float32))
    outer.start()
    net(data).asnumpy()
    inner.start()
    with stepscope.span("seen by both"):
        net(data).asnumpy()
    inner.stop()
    net(data).asnumpy()
    outer.stop()
    again = front.Profiler(output_path=directory / "again", start_profile=False)
    again.start()
    net(data).asnumpy()
    again.stop()
    return {
        "outer": outer.op_analyse("MatMul"),
        "again": again.op_analyse("MatMul"),
        "inner": [row.name for row in inner.operators()],
        "report": str(inner.trust_report()),
    }


def environment(directory: Path) -> dict[str, Any]:
    """MS_PROFILER_OPTIONS, and no word of profiling in the program."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    train([])
    profiler = front.EnvProfiler.profiler
    assert profiler is not None
    profiler.analyse()
    child = [sys.executable, "-c", f"import os; print(os.environ.get({VARIABLE!r}, ''), end='')"]
    seen = subprocess.run(child, capture_output=True, text=True, check=True).stdout
    return {**recorded_facts(profiler), "seen": [os.environ.get(VARIABLE), seen]}


def contract(_: Path) -> dict[str, Any]:
    """The suite that every backend must pass."""
    from stepscope.backends.conformance import CHECKS, Case

    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    net = network()
    data = mindspore.Tensor(numpy.ones([2, 16], numpy.float32))
    net(data).asnumpy()
    case = Case(MindSporeBackend, exercise=lambda: net(data).asnumpy(), deadline=60, tolerance=5_000_000)
    for check in CHECKS:
        check(case)
    return {"checks": [check.__name__ for check in CHECKS]}


TRAININGS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "callback-graph": lambda directory: callback(directory, mindspore.GRAPH_MODE),
    "callback-pynative": lambda directory: callback(directory, mindspore.PYNATIVE_MODE),
    "guide": guide,
    "loop": loop,
    "graph": graph,
    "data": data,
    "pipeline": pipeline,
    "collective": collective,
    "two": two,
    "environment": environment,
    "contract": contract,
}

if __name__ == "__main__":
    found = TRAININGS[sys.argv[1]](Path(sys.argv[2]))
    print("\n" + json.dumps(found))
