"""`stepscope merge`: the streams of all ranks as one trace."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from stepscope.cli.common.messages import Progress, add_json, exit_code, message, print_json, print_result
from stepscope.cli.writing.convert import add_format, check_format, described_formats
from stepscope.runtime.errors import StepscopeError
from stepscope.runtime.export.formats import staged
from stepscope.runtime.files.encoding import json_bytes

if TYPE_CHECKING:
    from stepscope.collector.merge.plan import Selection
    from stepscope.collector.merge.report import MergeReport

HELP = "write the traces of all ranks as one trace"
USAGE = "stepscope merge DIR ... --out OUT [options]"
_FORMATS = described_formats(
    hta="a directory with a file for each rank", tensorboard="with --format: a directory with one for each window"
)
DESCRIPTION = f"""\
Merges what a collector received from the ranks of a job into one trace, with times on one clock. Ranks may still be
sending.

{_FORMATS}"""
EPILOG = """\
examples:
  stepscope merge runs/job1 --window 2 --out window2.json.gz      for https://ui.perfetto.dev
  stepscope merge runs/job1 --steps 100-120 --out steps.parquet   for DuckDB, Polars, pandas
  stepscope merge runs/job1 --window 2 --format hta --out ranks/
  stepscope merge runs/job1 --format tensorboard --out tb/        for tensorboard --logdir tb

All times are by the collector's clock. The report and the output state the possible error.

exit codes: 0 written, 1 failed, 2 wrong usage, 3 written, but without recordings, or parts of one, that
could not be read, which are named, 4 there is no such window
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "sources",
        metavar="DIR",
        type=Path,
        nargs="*",
        help="collector directory, any directory containing journals, or one journal",
    )
    parser.add_argument(
        "--sources",
        dest="listed",
        metavar="FILE",
        type=Path,
        help="file with more DIRs, separated by NUL",
    )
    parser.add_argument("-o", "--out", metavar="OUT", type=Path, required=True, help="file or directory to write")
    add_format(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--window", metavar="N", type=int, help="only this window; 0 is the first")
    parser.add_argument(
        "--windows-of",
        dest="stream",
        metavar="STREAM",
        default="",
        help="with --window: count windows as this stream (32 hexadecimal digits) does, which begins at 0 again when its rank "
        "is restarted; default: as the job does",
    )
    what.add_argument("--steps", metavar="A-B", type=_steps, help="only steps A to B")
    parser.add_argument("--job", metavar="NAME", help="the job, if there are several")
    parser.add_argument("--report", metavar="FILE", type=Path, help="also write the report to FILE as JSON")
    add_json(parser, "the report")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        StepscopeError: if there is nothing to merge, or a package is missing.
        OSError: if a stream cannot be read, or the output not written.
    """
    outputs = _outputs()
    if arguments.format not in outputs.DIRECTORIES:
        check_format(arguments, arguments.out, outputs.DIRECTORIES)
    sources: list[Path] = [*arguments.sources]
    if arguments.listed is not None:
        sources += [Path(os.fsdecode(name)) for name in arguments.listed.read_bytes().split(b"\0") if name]
    if not sources:
        arguments.parser.error("name a collector directory, any directory containing journals, or one journal")
    if arguments.stream and arguments.window is None:
        arguments.parser.error("--windows-of goes with --window: it says whose count of windows N is")
    report, code = write(
        sources,
        arguments.out,
        format=arguments.format,
        job=arguments.job,
        selection=outputs.Selection(window=arguments.window, stream=arguments.stream, steps=arguments.steps),
    )
    if arguments.json:
        print_json(report)
    else:
        print_result(report.text())
    if arguments.report is not None:
        with staged(arguments.report) as place:
            place.write_bytes(msgspec.json.format(json_bytes(report)))
    return code


def write(
    sources: Sequence[Path],
    target: Path,
    *,
    format: str | None = None,
    job: str | None = None,
    selection: Selection | None = None,
) -> tuple[MergeReport, int]:
    """Merges journals into a file or a directory, and says on standard error how much that was, and what is missing.

    Returns:
        The report, and the exit code.

    Raises:
        StepscopeError: if there is nothing to merge, or a package is missing.
        OSError: if a stream cannot be read, or the output not written.
    """
    outputs = _outputs()
    from stepscope.analysis.live import judge_steps

    with Progress("merging") as progress:

        def show(events: int) -> None:
            progress.show(f"merging: {events:,} events")

        merge = partial(
            outputs.write_merged,
            sources,
            target,
            format=format,
            job=job,
            selection=selection,
            progress=show,
            judge=partial(judge_steps, newest=()),
        )
        report: MergeReport = anyio.run(merge)
    message(f"{report.events:,} events written to {report.written or target}")
    damaged = [f"the recording of {one.member} is damaged ({one.damage})" for one in report.members if one.damage]
    return report, exit_code(report.unreadable, damaged)


def _outputs() -> Any:
    try:
        return import_module("stepscope.collector.merge.outputs")
    except ImportError as error:
        raise StepscopeError(f"{error}; pip install 'stepscope[collector]'") from error


def _steps(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"steps are given as 100-120 or 100, not {text!r}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise argparse.ArgumentTypeError(f"the last step must not be before the first, got {text!r}")
    return first, last
