"""`stepscope demo`: trains a real network that has a fault, traces it, and says what is slow."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.backends.torch.backend import Mode, TorchBackend
from stepscope.build import trace
from stepscope.cli.common import opening
from stepscope.cli.common.messages import add_json, message, print_json
from stepscope.cli.common.progress import Progress
from stepscope.cli.programs.ending import Ending, width
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.tensorboard import tensorboard_trace_handler
from stepscope.runtime.errors import OutputError, StepscopeError
from stepscope.runtime.options import SIGNALS, Options
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule.schedule import schedule

if TYPE_CHECKING:
    from stepscope.demo.digits import Training

DESCRIPTION = """\
Trains a small network with torch on the CPU (scikit-learn's handwritten digits), traces some of its steps, and says what is
slow: its data loading is, on purpose. It takes some seconds.
"""

EPILOG = """\
examples:
  stepscope demo
  stepscope demo --mode both --report --out runs/look
  stepscope demo --json | jq '.answers[].verdict'

DIR then has tensorboard/, with a run for each mode, and a directory with journal and trace.json for each mode.

exit codes: 0 trained, 1 failed, or the network recognised fewer than nine tenths of the digits, 2 wrong usage
"""

MODES: dict[str, tuple[Mode, str]] = {
    "stream": ("stream", "operators arrive live, and a window's end does not stop training"),
    "kineto": ("kineto", "torch's own profiler, with shapes and memory"),
}
SCHEDULE = schedule(skip_first=5, wait=2, warmup=1, active=40, repeat=2)
EXPECTED = 0.9
"""Accuracy below which something is wrong."""


def add(commands: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="train a small network and trace it",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="DIR",
        type=Path,
        help="a new or empty directory (default: a new one in stepscope_runs/demo)",
    )
    parser.add_argument("--epochs", metavar="N", type=int, default=4, help="epochs in each mode (default: 4)")
    parser.add_argument(
        "--mode",
        choices=("both", *MODES),
        default="stream",
        help="how operators are recorded: both means in turn (default: stream)",
    )
    parser.add_argument("--report", action="store_true", help="print also the table of spans and the trust report")
    add_json(parser, "the accuracy, and the answer on each mode,")
    parser.set_defaults(function=demo, command="demo", parser=parser)


def demo(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        StepscopeError: if torch or scikit-learn is missing.
        OutputError: if the directory is not empty, or cannot be written.
    """
    if arguments.epochs < 1:
        arguments.parser.error(f"--epochs must be 1 or more, got {arguments.epochs}")
    missing = [name for name in ("torch", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        raise StepscopeError(f"{' and '.join(missing)} cannot be imported; install them: pip install 'stepscope[demo]'")
    directory = _directory(arguments.out)
    # Kineto reports each start and stop of itself on standard error otherwise.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    say = message if arguments.json else _say
    training: Training = _program("digits").Training()
    epochs: int = arguments.epochs
    say(f"A convolutional network learns {len(training.loader.dataset):,} handwritten digits.")  # type: ignore[arg-type]
    modes = list(MODES) if arguments.mode == "both" else [arguments.mode]
    profilers = [_train(training, mode, epochs, directory, say, report=arguments.report) for mode in modes]
    accuracy = training.accuracy()
    say(f"\nThe network recognises {accuracy:.1%} of {len(training.tested)} digits that it has not seen.\n")
    _tell_files(directory, profilers[0], say)
    if arguments.json:
        answers = [Ending(path=str(profiler.output.path)).answer()[0] for profiler in profilers]
        print_json({"accuracy": accuracy, "answers": answers})
    else:
        _tell_answer(profilers[0])
    for profiler in profilers:
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


def _say(text: str) -> None:
    """Prints at once: what goes to standard error at the same time keeps its place."""
    print(text, flush=True)


def _directory(chosen: Path | None) -> Path:
    """The directory of this demo, made; never one that holds something."""
    stamp = f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    directory = Path("stepscope_runs", "demo", stamp) if chosen is None else chosen
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise OutputError(f"--out {directory} is not empty; name another directory, or remove it")
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(
            error.errno, f"cannot make --out {directory}: {error.strerror}; name another directory"
        ) from error
    return directory


def _train(
    training: Training, name: str, epochs: int, directory: Path, say: Callable[[str], None], *, report: bool
) -> Profiler:
    """Trains some epochs under a profiler."""
    mode, what = MODES[name]
    details = mode == "kineto"
    total = epochs * training.steps
    say(f"\n{name} mode: {what}\n{SCHEDULE.plan(total)}")
    profiler = trace(
        schedule=SCHEDULE,
        backends=[TorchBackend(mode, record_shapes=details, profile_memory=details)],
        exporters=[
            tensorboard_trace_handler(directory / "tensorboard" / name),
            ChromeTraceExporter(directory / name / "trace.json"),
        ],
        name=f"demo, {name}",
        output_dir=directory / name,
        metadata={"network": str(training.network), "epochs": epochs},
        options=Options(signals=SIGNALS),
    )
    loss = 0.0
    with Progress("training") as progress, profiler:
        for done, iteration in enumerate(training.run(epochs, profiler.step), 1):
            loss = iteration.loss
            progress.show(f"epoch {iteration.epoch + 1}/{epochs}, step {done}/{total}, loss {loss:.3f}")
    message(f"{epochs} epochs, {total} steps, loss {loss:.3f}, accuracy {training.accuracy():.1%}")
    if report:
        say(f"\n{profiler.summary(top=12)}\n{profiler.report()}")
    return profiler


def _tell_files(directory: Path, profiler: Profiler, say: Callable[[str], None]) -> None:
    """Says what opens the result."""
    run = profiler.output.path
    say(f"The result is in {opening.shown(directory)}. To see it:")
    say(f"  TensorBoard  {opening.tensorboard(directory / 'tensorboard')}")
    say(f"  Perfetto     {opening.perfetto(run / 'trace.json')}")
    say(f"  other forms  {opening.convert(run, 'trace.json.gz')}")


def _tell_answer(profiler: Profiler) -> None:
    """Says what is slow, and which commands come next."""
    run = profiler.output.path
    _say("\nWhat is slow, as `stepscope run` ends, too:")
    _say(Ending(path=str(run), width=width(), colour=sys.stdout.isatty(), says_more=False).text())
    _say("\nThat fault was planted. Next: all there is as a page, and the same of a training of yours.")
    _say(f"  {opening.report(run)}")
    _say(f"  {opening.run('train.py')}")
