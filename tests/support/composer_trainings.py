"""Trainings with Composer itself, run as a program by `tests/system/compat/test_composer_training.py` in an environment that has it.

The argument is a directory. What was found in each training is printed as JSON, on the last line.
"""

# Composer is not among what the types are checked with.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import stepscope as sc
from stepscope.compat.frameworks.composer_schedule import our_action
from stepscope.runtime.events.record import Kind
from tests.support.arming import SOCKET, arm_here
from tests.support.frameworks import Runs

torch: Any = import_module("torch")
# Of torchvision there are no wheels from PyPI for torch without CUDA: its operators are missing, of which Composer needs
# none. It is imported when two of them have a name.
_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")

composer: Any = import_module("composer")
front: Any = import_module("stepscope.composer")
profiling: Any = import_module("composer.profiler")

Model: Any = composer.ComposerModel

BATCHES = 8


class Line(Model):  # type: ignore[misc]
    """A line through random points; something may happen in a batch of the training, by its number."""

    def __init__(self, happens: dict[int, Callable[[], object]]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.happens = happens
        self.batch = 0

    def forward(self, batch: Any) -> Any:
        return self.layer(batch[0])

    def loss(self, outputs: Any, batch: Any, *rest: Any, **more: Any) -> Any:
        self.happens.pop(self.batch, lambda: None)()
        with sc.span("loss"):
            return (outputs - batch[1]).square().mean()

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        return self.forward(batch)

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        return {}


class Count(composer.Callback):  # type: ignore[misc]
    """Tells the model which batch it is in."""

    def batch_start(self, state: Any, logger: Any) -> None:
        state.model.batch = int(state.timestamp.batch)


def data(batches: int = BATCHES) -> Any:
    """So many batches of four points."""
    points = torch.utils.data.TensorDataset(torch.rand(4 * batches, 4), torch.rand(4 * batches, 1))
    return torch.utils.data.DataLoader(points, batch_size=4)


def trainer(traced: Any = None, happens: dict[int, Callable[[], object]] | None = None, **given: Any) -> Any:
    """A trainer on the CPU, two microbatches to a batch, with the handler as a callback if it is given."""
    model = Line(happens or {})
    settings: dict[str, Any] = {
        "max_duration": "2ep",
        "device": "cpu",
        "run_name": "small",
        "progress_bar": False,
        "device_train_microbatch_size": 2,
        "train_dataloader": data(),
    }
    return composer.Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        callbacks=[Count(), *([] if traced is None else [traced])],
        **{**settings, **given},
    )


def handler(directory: Path, **given: Any) -> tuple[Any, Runs]:
    """A handler that writes into the directory, and what will have its runs."""
    runs = Runs()
    return front.StepscopeTraceHandler(output_dir=str(directory / "{run_name}"), exporters=[runs], **given), runs


def told(traced: Any, runs: Runs) -> dict[str, Any]:
    """What was recorded of the training."""
    return {
        "errors": [repr(error) for error in traced.errors],
        "audit": list(traced.profiler.audit()),
        "stages": runs.stages,
        "steps": runs.steps("fit"),
        "complete": [window.complete for window in runs.windows("fit")],
        "spans": {name: runs.spans("fit").count(name) for name in set(runs.spans("fit"))},
        "counters": runs["fit"].names(kind=Kind.COUNTER),
        "instants": runs["fit"].names(kind=Kind.INSTANT),
        "armed": [window.metadata.get("armed", {}).get("trigger") for window in runs.windows("fit")],
        "loss": [int(event["step"]) for event in _named(runs["fit"], "loss")],
        "linear": sorted({int(event["step"]) for event in _named(runs["fit"], "aten::linear")}),
    }


def _named(memory: sc.exporters.MemoryExporter, name: str) -> list[Any]:
    events = memory.events(kind=Kind.SPAN)
    return [event for event, found in zip(events, memory.names(kind=Kind.SPAN), strict=True) if found == name]


def profiler_of(directory: Path, traced: Any, **cycle: int) -> Any:
    """Composer's profiler with its schedule, its markers, and torch's profiler, whose files it hands over."""
    return profiling.Profiler(
        schedule=profiling.cyclic_schedule(**cycle),
        trace_handlers=[traced],
        sys_prof_cpu=False,
        torch_prof_folder=str(directory / "torch"),
        torch_prof_remote_file_name=None,
        torch_prof_memory_filename=None,
    )


def with_profiler(directory: Path) -> dict[str, Any]:
    """Composer's profiler in two epochs; the system's load is told of by the program, which knows when."""
    traced, runs = handler(directory)
    profiler = profiler_of(directory, traced, skip_first=1, wait=1, warmup=1, active=3, repeat=1)

    def tell() -> None:
        profiler.marker("load").counter({"cpu": 0.5})
        profiler.marker("noted").instant()

    training = trainer(happens={4: tell}, profiler=profiler)
    training.fit()
    training.close()
    return {**told(traced, runs), "journal": (directory / "small" / "fit" / "journal").is_file()}


def as_callback(directory: Path) -> dict[str, Any]:
    """Without Composer's profiler: a schedule of ours for each epoch, torch's operators, an evaluation."""
    traced, runs = handler(directory, batch_schedule=front.cyclic_schedule(wait=5, warmup=1, active=2))
    training = trainer(traced, eval_dataloader=data(2), eval_interval="7ba")
    training.fit()
    training.close()
    return told(traced, runs)


def resumed(directory: Path) -> dict[str, Any]:
    """A training that goes on in the middle of an epoch; with its own profiler Composer cannot do that."""
    first = trainer(max_duration="11ba", save_folder=str(directory / "saved"), save_interval="11ba")
    first.fit()
    first.close()
    (checkpoint,) = (directory / "saved").glob("ep*.pt")
    traced, runs = handler(directory, batch_schedule=front.cyclic_schedule(wait=0, warmup=1, active=2, repeat=1))
    training = trainer(traced, load_path=str(checkpoint))
    training.fit()
    training.close()
    return told(traced, runs)


def failing(directory: Path) -> dict[str, Any]:
    """An exception in a batch goes on to the program, and the trainer closes its callbacks."""
    traced, runs = handler(directory, schedule=sc.schedule(wait=1, warmup=0, active=99))

    def fail() -> None:
        raise ZeroDivisionError("the training fails")

    training = trainer(traced, {4: fail})
    raised = ""
    try:
        training.fit()
    except ZeroDivisionError as error:
        raised = str(error)
    finally:
        training.close()
    return {**told(traced, runs), "raised": raised}


def armed(directory: Path) -> dict[str, Any]:
    """An operator asks for two steps in the course of the training."""
    traced, runs = handler(directory, control=SOCKET)
    training = trainer(traced, {9: lambda: arm_here(2)})
    training.fit()
    training.close()
    return told(traced, runs)


def schedules(directory: Path) -> dict[str, Any]:
    """Composer's own schedule beside ours, batch by batch of an epoch: where they differ."""
    differ: list[Any] = []
    compared = 0
    for skip, wait, warmup, active, repeat, at, length in product(
        (0, 2), (0, 1), (0, 2), (1, 3), (0, 1, 2), (0, 3), (None, 7, 12)
    ):
        cycle = {"skip_first": skip, "wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
        ours, theirs = front.cyclic_schedule(**cycle), profiling.cyclic_schedule(**cycle)
        for batch in range(length or 20):
            state: Any = SimpleNamespace(
                timestamp=composer.Timestamp(batch_in_epoch=batch),
                dataloader_len=None if length is None else composer.Time.from_batch(length),
                profiler=SimpleNamespace(resumption_batch_idx=at),
            )
            compared += 1
            if our_action(ours(state)) is not our_action(theirs(state)):
                differ.append([cycle, at, length, batch, str(ours(state)), str(theirs(state))])
    return {"differ": differ, "compared": compared}


TRAININGS = (with_profiler, as_callback, resumed, failing, armed, schedules)

if __name__ == "__main__":
    # Of one process, since importing Composer takes longer than all of them.
    print(json.dumps({each.__name__: each(Path(sys.argv[1]) / each.__name__) for each in TRAININGS}))
