"""`stepscope run`: traces a program that knows nothing of it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from stepscope.backends.torch import TorchBackend
from stepscope.backends.torch_arm import arm
from stepscope.cli import opening, script
from stepscope.cli.late_torch import LateTorch
from stepscope.cli.optimizer_steps import OptimizerSteps
from stepscope.cli.torch_import import TorchImport
from stepscope.exporters.base import Exporter
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.console import ConsoleExporter
from stepscope.exporters.tensorboard import tensorboard_trace_handler
from stepscope.runtime.errors import ScheduleError
from stepscope.runtime.options import Options
from stepscope.runtime.output import Output
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.run import rank_from_environment
from stepscope.runtime.schedule import Schedule, schedule
from stepscope.trace import trace

DESCRIPTION = """\
Runs a Python program, unchanged, and traces it: torch's operators if it uses torch, and what it records itself with
stepscope.span() and its like. Each step of the optimizer ends a step.

Without --active everything is recorded, in one window: right for a short program. For a long one choose steps, as for
torch.profiler.schedule: --skip-first, then --repeat times --wait, --warmup and --active.
"""

EPILOG = """\
examples:
  stepscope run train.py --epochs 3
  stepscope run --skip-first 10 --wait 5 --warmup 1 --active 3 --repeat 2 train.py
  stepscope run --exporter tensorboard --mode kineto --profile-memory --out runs/exp1 train.py
  stepscope run -m package.train --epochs 3
  torchrun --no-python --nproc-per-node 2 stepscope run --out runs/exp2 train.py

Options come before the program; what follows it is the program's.
A journal is always kept in the output directory. If the program is killed, `stepscope recover DIR` brings back what was
recorded up to then.

exit codes: the program's own; 1 if tracing could not begin, 2 for wrong usage
"""

EXPORTERS = ("chrome", "tensorboard", "console", "journal")
PATIENT = Options(linger=60, close_timeout=120)
"""The program has ended, nobody waits for the terminal: what torch's profiler still converts is worth waiting for."""
_STEPS = ("wait", "warmup", "active", "repeat", "skip_first")


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        parents=[common],
        help="trace an unchanged program",
        usage="stepscope run [options] script.py [args ...]\n       stepscope run [options] -m module [args ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    which = parser.add_argument_group("which steps")
    for name, what in (
        ("wait", "steps at the beginning of each cycle that are not recorded"),
        ("warmup", "steps after these that are recorded and thrown away"),
        ("active", "steps after these that are recorded: one window"),
        ("repeat", "number of cycles; 0, the default, for no limit"),
        ("skip-first", "steps before the first cycle"),
    ):
        which.add_argument(f"--{name}", metavar="N", type=int, help=what)
    which.add_argument("--skip-first-wait", action="store_true", help="leave out the wait of the first cycle")
    which.add_argument(
        "--step-on", choices=("optimizer", "none"), default="optimizer", help="what ends a step (default: optimizer)"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out", metavar="DIR", type=Path, help="directory of the run (default: a new one in stepscope_runs)"
    )
    output.add_argument("--name", help="name of the run (default: the program's)")
    output.add_argument(
        "--exporter", action="append", choices=EXPORTERS, help="what to write; may be repeated (default: chrome)"
    )
    output.add_argument("--quiet", action="store_true", help="print neither table nor report at the end")
    torch = parser.add_argument_group("torch")
    torch.add_argument(
        "--mode",
        choices=("auto", "stream", "kineto"),
        default="auto",
        help="how operators are recorded (default: auto)",
    )
    torch.add_argument("--record-shapes", action="store_true", help="keep the shapes of inputs (kineto)")
    torch.add_argument("--profile-memory", action="store_true", help="record allocations (kineto)")
    torch.add_argument("--with-stack", action="store_true", help="record Python functions (kineto)")
    torch.add_argument("--no-torch", action="store_true", help="record no operators")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program", metavar="script.py", help="the program")
    parser.add_argument("arguments", metavar="args", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(function=run, command="run", parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        OutputError: if the run's directory cannot be written; the program has not begun then.
    """
    if not arguments.module and not Path(arguments.program).exists():
        parser: argparse.ArgumentParser = arguments.parser
        parser.error(f"there is no file {arguments.program}")
    arm()
    traced = _Traced.of(arguments)
    owner = os.getpid()
    traced.profiler.start()
    try:
        outcome = script.run(arguments.program, arguments.arguments, module=arguments.module)
    finally:
        # A child that the program forked and that comes back here has nothing of this to end.
        if os.getpid() == owner:
            traced.end()
    outcome.tell()
    if os.getpid() == owner and not arguments.quiet:
        sys.stdout.flush()
        traced.tell()
    return outcome.code


class _Traced(msgspec.Struct, frozen=True):
    """A profiler around a program."""

    profiler: Profiler
    steps: OptimizerSteps
    watch: TorchImport
    files: dict[str, Path]
    """What is written, by exporter."""

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> _Traced:
        program: str = arguments.program
        name: str = arguments.name or (program if arguments.module else Path(program).stem) or "run"
        chosen = _schedule(arguments)
        backend = None if arguments.no_torch else _backend(arguments)
        rank = rank_from_environment()[0]
        # Chosen here, so that what the exporters write is in the run's directory.
        directory = Output.choose(arguments.out, name, None).path
        files, exporters = _exporters(arguments, directory if rank is None else directory / f"rank{rank}")
        steps = OptimizerSteps(lambda: profiler.step())
        profiler = trace(
            schedule=chosen,
            backends=[] if backend is None else [LateTorch(backend)],
            exporters=exporters,
            name=name,
            output_dir=directory,
            metadata={"command": [program, *arguments.arguments]},
            options=PATIENT,
        )
        watch = TorchImport(steps.attach)
        if arguments.step_on == "optimizer":
            watch.watch()
        return cls(profiler, steps, watch, files)

    def end(self) -> None:
        """Closes everything; what was recorded is on disk then."""
        self.watch.forget()
        self.steps.detach()
        self.profiler.close()

    def tell(self) -> None:
        """Prints the table, the report and what opens the result."""
        profiler = self.profiler
        say = [profiler.summary(top=15), str(profiler.report()), ""]
        for exporter, path in self.files.items():
            if exporter == "chrome" and path.exists():
                say.append(f"see it     {opening.perfetto(path)}")
            elif exporter == "tensorboard" and path.exists():
                say.append(f"see it     {opening.tensorboard(path)}")
        if self.watch.problem is not None:
            say.append(f"no steps   {type(self.watch.problem).__name__}: {self.watch.problem}")
        say.append(f"convert it {opening.convert(profiler.output.path, 'out.json')}")
        print("\n".join(say), file=sys.stderr)


def _schedule(arguments: argparse.Namespace) -> Schedule | None:
    parser: argparse.ArgumentParser = arguments.parser
    given = {name: getattr(arguments, name) for name in _STEPS if getattr(arguments, name) is not None}
    if not given and not arguments.skip_first_wait:
        return None
    if "active" not in given:
        parser.error("--active is missing: how many steps are to be recorded in each cycle?")
    try:
        return schedule(**{"wait": 0, "warmup": 0, **given, "skip_first_wait": arguments.skip_first_wait})
    except ScheduleError as error:
        parser.error(str(error))


def _backend(arguments: argparse.Namespace) -> TorchBackend:
    parser: argparse.ArgumentParser = arguments.parser
    try:
        return TorchBackend(
            arguments.mode,
            record_shapes=arguments.record_shapes,
            profile_memory=arguments.profile_memory,
            with_stack=arguments.with_stack,
        )
    except ValueError as error:
        parser.error(str(error))


def _exporters(arguments: argparse.Namespace, directory: Path) -> tuple[dict[str, Path], list[Exporter]]:
    files: dict[str, Path] = {}
    exporters: list[Exporter] = []
    for exporter in dict.fromkeys(arguments.exporter or ["chrome"]):
        if exporter == "chrome":
            files[exporter] = directory / "trace.json"
            exporters.append(ChromeTraceExporter(files[exporter]))
        elif exporter == "tensorboard":
            files[exporter] = directory / "tensorboard"
            exporters.append(tensorboard_trace_handler(files[exporter]))
        elif exporter == "console":
            exporters.append(ConsoleExporter())
    return files, exporters
