"""`stepscope demo`: trains a real network that has a fault, traces it, and says what is slow."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.backends.torch.backend import TorchBackend
from stepscope.build import trace
from stepscope.cli.common import opening
from stepscope.cli.common.messages import Progress, add_json, message, print_json
from stepscope.cli.programs.ending import Ending, width
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.files.scalars import StepScalarExporter
from stepscope.exporters.tensorboard import tensorboard_trace_handler
from stepscope.runtime.errors import OutputError, StepscopeError
from stepscope.runtime.lifecycle.output_directory import RUNS
from stepscope.runtime.options import SIGNALS, Options
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule.schedule import schedule

if TYPE_CHECKING:
    from stepscope.demo.digits import Training

HELP = "train a small network and trace it"
DESCRIPTION = """\
Trains a small network with torch on the CPU (scikit-learn's handwritten digits), traces some of its steps, and says what is
slow: its data loading is, on purpose. It takes some seconds.
"""

EPILOG = """\
examples:
  stepscope demo
  stepscope demo --out runs/look
  stepscope demo --json | jq .answer.verdict

DIR then has journal, trace.json and tensorboard/.

exit codes: 0 trained, 1 failed, or the network recognised fewer than nine tenths of the digits, 2 wrong usage
"""

SCHEDULE = schedule(skip_first=5, wait=2, warmup=1, active=40, repeat=2)
EXPECTED = 0.9
"""Accuracy below which something is wrong."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "-o",
        "--out",
        metavar="DIR",
        type=Path,
        help="a new or empty directory (default: a new one in stepscope_runs/demo)",
    )
    parser.add_argument("--epochs", metavar="N", type=int, default=4, help="epochs (default: 4)")
    add_json(parser, "the accuracy, and the answer,")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        StepscopeError: if torch or scikit-learn is missing.
        OSError: if the directory is not empty (`OutputError`), or cannot be made.
    """
    if arguments.epochs < 1:
        arguments.parser.error(f"--epochs must be 1 or more, got {arguments.epochs}")
    missing = [name for name in ("torch", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        raise StepscopeError(f"{' and '.join(missing)} cannot be imported; install them: pip install 'stepscope[demo]'")
    directory = _directory(arguments.out)
    write = message if arguments.json else _print
    training: Training = _program("digits").Training()
    epochs: int = arguments.epochs
    write(f"A convolutional network learns {len(training.loader.dataset):,} handwritten digits.")  # type: ignore[arg-type]
    profiler = _train(training, epochs, directory, write)
    accuracy = training.accuracy()
    write(f"\nThe network recognises {accuracy:.1%} of {len(training.tested)} digits that it has not seen.\n")
    _print_files(profiler, write)
    if arguments.json:
        print_json({"accuracy": accuracy, "answer": Ending(path=str(profiler.output.path)).answer()[0]})
    else:
        _print_answer(profiler)
    profiler.raise_errors()
    return 0 if accuracy > EXPECTED else 1


def _program(name: str) -> Any:
    """A module of `stepscope.demo` as a program that is none of stepscope's modules: their frames are left out of stacks."""
    spec = importlib.util.find_spec(f"stepscope.demo.{name}")
    assert spec is not None and spec.origin is not None
    spec = importlib.util.spec_from_file_location(name, spec.origin)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _print(text: str) -> None:
    """Prints at once: what goes to standard error at the same time keeps its place."""
    print(text, flush=True)


def _directory(chosen: Path | None) -> Path:
    """The directory of this demo, made; never one that holds something."""
    stamp = f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    directory = RUNS / "demo" / stamp if chosen is None else chosen
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise OutputError(f"--out {directory} is not empty; name another directory, or remove it")
    return directory


def _train(training: Training, epochs: int, directory: Path, write: Callable[[str], None]) -> Profiler:
    """Trains some epochs under a profiler."""
    total = epochs * training.steps
    write(f"\n{SCHEDULE.plan(total)}")
    profiler = trace(
        schedule=SCHEDULE,
        backends=[TorchBackend("stream")],
        exporters=[
            ChromeTraceExporter(directory / "trace.json"),
            tensorboard_trace_handler(directory / "tensorboard"),
            StepScalarExporter(directory / "tensorboard"),
        ],
        name="demo",
        output_dir=directory,
        metadata={"network": str(training.network), "epochs": epochs},
        options=Options(signals=SIGNALS),
    )
    loss = 0.0
    with Progress("training") as progress, profiler:
        for done, iteration in enumerate(training.run(epochs, profiler.step), 1):
            loss = iteration.loss
            progress.show(f"epoch {iteration.epoch + 1}/{epochs}, step {done}/{total}, loss {loss:.3f}")
    message(f"{epochs} epochs, {total} steps, loss {loss:.3f}, accuracy {training.accuracy():.1%}")
    return profiler


def _print_files(profiler: Profiler, write: Callable[[str], None]) -> None:
    """Prints what opens the result."""
    run = profiler.output.path
    write(f"The result is in {opening.shown(run)}. To see it:")
    write(f"  TensorBoard  {opening.tensorboard(run / 'tensorboard')}")
    write(f"  Perfetto     {opening.perfetto(run / 'trace.json')}")
    write(f"  other forms  {opening.command('convert', run, 'trace.json.gz')}")


def _print_answer(profiler: Profiler) -> None:
    """Prints what is slow, and which commands come next."""
    run = profiler.output.path
    _print("\nWhat is slow, as `stepscope run` ends, too:")
    _print(Ending(path=str(run), width=width(), colour=sys.stdout.isatty(), says_more=False).text())
    _print("\nThat fault was planted. Next: all there is as a page, and the same of a training of yours.")
    _print(f"  {opening.command('report', run)}")
    _print(f"  {opening.command('run', 'train.py')}")
