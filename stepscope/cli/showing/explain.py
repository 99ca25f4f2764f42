"""`stepscope explain`: says what is slow in a run, why, and what to try."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stepscope.cli.common import opening
from stepscope.cli.common.messages import Progress, add_json, exit_code, message, print_json
from stepscope.cli.common.values import above_zero

RUNS = Path("stepscope_runs")
PATH_HELP = (
    "a run's directory, its journal, a directory of several ranks' runs, a collector's, or a trace of torch.profiler "
    "(*.pt.trace.json, *.pt.trace.json.gz) or a directory of those"
)

HELP = "say what is slow in a run, why, and what to try"
DESCRIPTION = "Says what is slow in a run, why, and what to try. A run that still records is explained as far as it is."
EPILOG = """\
examples:
  stepscope explain                      the newest run in ./stepscope_runs
  stepscope explain runs/exp1            one screen
  stepscope explain runs/ddp             the directory that holds rank0, rank1, ...
  stepscope explain runs/exp1 --window 3 one window of a long run; `stepscope windows runs/exp1` lists them
  stepscope explain runs/exp1 --json     for programs
  stepscope explain host.pt.trace.json   what torch.profiler has saved

exit codes: 0 explained, 1 failed, 2 wrong usage, 3 explained, but without recordings, or parts of one, that
could not be read, which are named, 4 there is no such window
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        nargs="?",
        help=f"{PATH_HELP}; of several runs the newest is taken (default: {RUNS}, where `stepscope run` writes them)",
    )
    add_choice(parser)
    add_json(parser, "the answer")


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Declares `--window`, `--job` and `--peak-flops`."""
    parser.add_argument("--window", metavar="N", type=int, help="read and judge only this window; 0 is the first")
    parser.add_argument("--job", metavar="NAME", help="of a collector's directory, the job (default: the newest)")
    parser.add_argument(
        "--peak-flops",
        metavar="N",
        type=above_zero("number above 0, such as 989e12", 1e30),
        help="floating-point operations in a second that the device of a process can do at most, such as 989e12, to say which "
        "share of that the steps reach (default: peak_flops in the run's metadata)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from stepscope.analysis.explain import explain as answer_of
    from stepscope.analysis.reading.recording import load

    path: Path = arguments.path or RUNS
    if arguments.path is None and not path.is_dir():
        arguments.parser.error(f"there is no ./{RUNS}: name the directory of a run, or a trace")
    with Progress(f"reading {opening.shown(path)}"):
        recording = load(path, None if arguments.window is None else (arguments.window,), arguments.job)
    if recording.path != path:
        message(f"reading the newest run in {opening.shown(path)}: {opening.shown(recording.path)}")
    elif arguments.path is None:
        message(f"reading {opening.shown(path)}")
    with Progress("looking for what is slow"):
        answer = answer_of(recording, arguments.window, peak_flops=arguments.peak_flops)
    if arguments.json:
        print_json(answer)
    else:
        from rich.console import Console

        from stepscope.analysis.terminal import show

        show(answer, Console(file=sys.stdout, highlight=False))
    return exit_code(recording.unreadable, recording.damage)
