"""`stepscope analyse`: makes the products of MindSpore's profiler of what `stepscope.mindspore` recorded."""

from __future__ import annotations

import argparse
from pathlib import Path

from stepscope.cli.common import opening
from stepscope.cli.common.messages import Progress, add_json, exit_code, print_json
from stepscope.compat.mindspore.analysis.offline import analyse_below
from stepscope.compat.mindspore.options.options import ProfilerOptions

HELP = "make the tables and timelines of MindSpore's profiler"
USAGE = "stepscope analyse DIR [options]"
DESCRIPTION = """\
Makes the tables and timelines of MindSpore's profiler from what stepscope.mindspore recorded: from recordings that were not
analysed while training ran, also those of a killed process. It names each directory that it skips, with the reason. Any other
run of stepscope gets every product that it has data for, and keeps its journal. A killed run is recovered first, and what it left
in memory is freed.
"""

EPILOG = """\
examples:
  stepscope analyse ./data
  stepscope analyse runs/exp1              ASCEND_PROFILER_OUTPUT beside each journal; of later windows, in window_1, ...
  stepscope analyse ./dyn_profile_data/rank0_start10_stop20 --pretty
  stepscope analyse runs/exp1 --layout mindspore      <host>_<pid>_<UTC>_ascend_ms below runs/exp1, for MindSpore's tools
  stepscope analyse ./data --rank 3 --steps 10 12 14 --keep-raw

A recording that was analysed before is skipped, unless its raw data were kept: then a second result is put beside it.

exit codes: 0 everything was analysed, 1 something failed or there is nothing to analyse, 2 wrong usage, 3 analysed, but
without recordings, or parts of one, that could not be read, which are named
"""


LAYOUTS = ("stepscope", "mindspore")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "path", metavar="DIR", type=Path, help="output_path of the profiler, a directory in it, or a run"
    )
    parser.add_argument("--rank", metavar="N", type=int, help="only this rank (default: all)")
    parser.add_argument("--steps", metavar="N", type=int, nargs="+", help="only these steps (default: all)")
    parser.add_argument("--pretty", action="store_true", help="indent the JSON")
    parser.add_argument(
        "--layout",
        metavar="NAME",
        choices=LAYOUTS,
        default=LAYOUTS[0],
        help="names of directories: stepscope, or mindspore, which puts the products of each window into one that ends with "
        "_ascend_ms, where MindSpore's tools look for it (default: stepscope)",
    )
    parser.add_argument("--keep-raw", action="store_true", help="keep the raw data afterwards")
    add_json(parser, "what was made")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ProfilerDirNotFoundException: if there is no such directory.
        NothingToAnalyse: if nothing in it can be analysed; says why of every directory that was looked at.
    """
    parser: argparse.ArgumentParser = arguments.parser
    numbers: list[int] = [*(arguments.steps or ()), *(() if arguments.rank is None else (arguments.rank,))]
    if any(number < 0 for number in numbers):
        parser.error(f"steps and ranks are numbers from 0, got {min(numbers)}")
    options = ProfilerOptions(
        analyse_only=arguments.rank is not None,
        rank_id=arguments.rank or 0,
        data_simplification=not arguments.keep_raw,
        ascend_names=arguments.layout == "mindspore",
    )
    steps = None if arguments.steps is None else tuple(sorted(set(arguments.steps)))
    with Progress(f"analysing {opening.shown(arguments.path)}"):
        analysis = analyse_below(arguments.path, options, arguments.pretty, steps)
    if arguments.json:
        print_json(analysis)
    else:
        print(analysis)
    code = exit_code(
        analysis.unreadable,
        [f"{window.directory}: {window.lacking}" for window in analysis.windows if window.lacking],
    )
    return 1 if any(product.problem for window in analysis.windows for product in window.products) else code
