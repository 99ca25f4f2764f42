"""Options of `stepscope run`, and what they name: schedule, backends, exporters, control."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from stepscope.backends.base import Backend
from stepscope.backends.counters.host import HostBackend
from stepscope.backends.counters.nvml import NvmlBackend
from stepscope.backends.counters.perf import PerfBackend
from stepscope.backends.counters.process_memory import ProcessMemoryBackend
from stepscope.backends.python_stacks import PythonStacksBackend
from stepscope.backends.torch.backend import TorchBackend
from stepscope.cli.common.messages import add_json
from stepscope.cli.common.values import seconds
from stepscope.cli.programs.torch_program import LateTorch
from stepscope.exporters.base import Exporter
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.console import ConsoleExporter
from stepscope.exporters.files.scalars import StepScalarExporter
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.exporters.tensorboard import tensorboard_trace_handler
from stepscope.runtime.errors import ScheduleError, StepscopeError
from stepscope.runtime.schedule.schedule import Schedule, schedule

TORCH = "torch"
BACKENDS: Mapping[str, Callable[[], Backend]] = {
    "host": HostBackend,
    "memory": ProcessMemoryBackend,
    "nvml": NvmlBackend,
    "perf": PerfBackend,
    "python": PythonStacksBackend,
}
"""Backends by the names of `--backend`, besides torch's, which has options."""
TRACES: Mapping[str, tuple[str, Callable[[Path], Exporter]]] = {
    "chrome": (".json", ChromeTraceExporter),
    "perfetto": (".pftrace", PerfettoExporter),
}
EXPORTERS = (*TRACES, "tensorboard", "console", "journal")
_STEPS = ("wait", "warmup", "active", "repeat", "skip_first")
_OF_TORCH = ("record_shapes", "profile_memory", "with_stack")


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    which = parser.add_argument_group("which steps")
    for name, what in (
        ("wait", "steps that each cycle begins with and does not record"),
        ("warmup", "steps after these, recorded and thrown away"),
        ("active", "steps after these, recorded as one window"),
        ("repeat", "number of cycles (default: 0, no limit)"),
        ("skip-first", "steps before the first cycle"),
    ):
        which.add_argument(f"--{name}", metavar="N", type=int, help=what)
    which.add_argument("--skip-first-wait", action="store_true", help="leave out the wait of the first cycle")
    which.add_argument(
        "--keep-last",
        metavar="N",
        type=int,
        help="record all steps, and save the last N when a step is slow or hangs, a counter is not finite, memory runs "
        "short, or the program fails",
    )
    which.add_argument(
        "--control",
        action="store_true",
        help="let `stepscope arm` ask for windows; without --active nothing else is recorded",
    )
    which.add_argument(
        "--duration",
        metavar="SECONDS",
        type=seconds,
        help="end recording with the first step that ends after that time, or at that time if no step has ended before; the "
        "program goes on. With --control, windows can be asked for until then",
    )
    which.add_argument(
        "--step-on", choices=("optimizer", "none"), default="optimizer", help="what ends a step (default: optimizer)"
    )
    recorded = parser.add_argument_group("what is recorded besides the program's own spans")
    recorded.add_argument(
        "--backend",
        metavar="NAME",
        action="append",
        choices=(TORCH, *BACKENDS),
        help=f"{TORCH}, {', '.join(BACKENDS)}; may be repeated (default: {TORCH})",
    )
    recorded.add_argument("--no-torch", action="store_true", help="no operators of torch")
    recorded.add_argument(
        "--mode",
        choices=("auto", "stream", "kineto"),
        default="auto",
        help="how torch's operators are recorded (default: auto)",
    )
    recorded.add_argument("--record-shapes", action="store_true", help="keep the shapes of inputs (kineto)")
    recorded.add_argument("--profile-memory", action="store_true", help="record allocations (kineto)")
    recorded.add_argument("--with-stack", action="store_true", help="record Python functions (kineto)")
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o",
        "--out",
        metavar="DIR",
        type=Path,
        help="directory of the run (default: a new one in stepscope_runs); a run that is there keeps its journal, and its traces are replaced",
    )
    output.add_argument("--name", help="name of the run (default: the program's)")
    output.add_argument(
        "--exporter",
        metavar="NAME",
        action="append",
        choices=EXPORTERS,
        help=f"what to write: {', '.join(EXPORTERS)}; may be repeated (default: chrome)",
    )
    output.add_argument(
        "--collector", metavar="URL", help="also send it to `stepscope collect`, such as ws://127.0.0.1:7788"
    )
    ending = output.add_mutually_exclusive_group()
    ending.add_argument("--quiet", action="store_true", help="at the end print where the trace is, and nothing else")
    add_json(ending, "the answer at the end, to standard output,")
    output.add_argument(
        "--report", action="store_true", help="at the end print also the table of spans and the trust report"
    )


def schedule_of(arguments: argparse.Namespace) -> Schedule | None:
    """The schedule; wrong arguments end the process, as argparse does it."""
    parser: argparse.ArgumentParser = arguments.parser
    if arguments.keep_last is not None and arguments.keep_last < 1:
        parser.error(f"--keep-last must be 1 or more, got {arguments.keep_last}")
    if arguments.keep_last is not None and arguments.control:
        parser.error("--keep-last records all steps, so --control has no window to add: give one of them")
    numbers = {name: getattr(arguments, name) for name in _STEPS if getattr(arguments, name) is not None}
    if not numbers and not arguments.skip_first_wait:
        return None
    if arguments.keep_last is not None:
        wrong = "--skip-first-wait" if not numbers else f"--{next(iter(numbers)).replace('_', '-')}"
        parser.error(f"--keep-last records all steps, so {wrong} has no step to choose: give one of them")
    if "active" not in numbers:
        parser.error("--active is missing: how many steps are to be recorded in each cycle?")
    try:
        return schedule(**{"wait": 0, "warmup": 0, **numbers, "skip_first_wait": arguments.skip_first_wait})
    except ScheduleError as error:
        name, _, rest = str(error).partition(" ")
        parser.error(f"--{name.replace('_', '-')} {rest}")


def backends_of(arguments: argparse.Namespace) -> list[Backend]:
    """The backends, not opened; wrong arguments end the process, as argparse does it."""
    parser: argparse.ArgumentParser = arguments.parser
    if arguments.no_torch and TORCH in (arguments.backend or ()):
        parser.error("--no-torch leaves out what --backend torch records: give one of them")
    names = [name for name in dict.fromkeys(arguments.backend or [TORCH]) if name != TORCH or not arguments.no_torch]
    flags = {name: getattr(arguments, name) for name in _OF_TORCH}
    named = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value]
    if arguments.mode == "stream" and named:
        parser.error(f"{' and '.join(named)} cannot be had with --mode stream: use --mode kineto")
    named += ["--mode"] if arguments.mode != "auto" else []
    if TORCH not in names:
        if named:
            what = "leave out --no-torch" if arguments.no_torch else "add --backend torch"
            parser.error(f"{named[0]} is of torch's operators, which are left out: {what}")
        return [BACKENDS[name]() for name in names]
    torch = TorchBackend(arguments.mode, **flags)
    return [LateTorch(torch) if name == TORCH else BACKENDS[name]() for name in names]


def exporters_of(arguments: argparse.Namespace, directory: Path) -> tuple[dict[str, Path], list[Exporter]]:
    """The exporters, and the files of those that write some, by their names.

    Args:
        arguments: of the command; a wrong address ends the process, as argparse does it.
        directory: of the run.

    Raises:
        StepscopeError: if a package is missing; says how to get it.
    """
    files: dict[str, Path] = {}
    exporters: list[Exporter] = []
    for exporter in dict.fromkeys(arguments.exporter or ["chrome"]):
        if exporter in TRACES:
            ending, make = TRACES[exporter]
            # Windows that are not kept are deleted, which a file of its own makes possible.
            name = "trace" if arguments.keep_last is None else "trace-{window}"
            files[exporter] = directory / f"{name}{ending}"
            exporters.append(make(files[exporter]))
        elif exporter == "tensorboard":
            files[exporter] = directory / "tensorboard"
            exporters += [tensorboard_trace_handler(files[exporter]), StepScalarExporter(files[exporter])]
        elif exporter == "console":
            exporters.append(ConsoleExporter())
    if arguments.collector is not None:
        exporters.append(_to_collector(arguments))
    return files, exporters


def _to_collector(arguments: argparse.Namespace) -> Exporter:
    from stepscope.exporters.stream.exporter import CollectorExporter

    parser: argparse.ArgumentParser = arguments.parser
    try:
        return CollectorExporter(arguments.collector)
    except ImportError as error:
        raise StepscopeError(str(error)) from error
    except ValueError as error:
        parser.error(f"--collector: {error}")
