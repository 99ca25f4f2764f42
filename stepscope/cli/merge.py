"""`stepscope merge`: the streams of all ranks as one trace."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

import anyio
import msgspec

from stepscope.cli import formats
from stepscope.cli.made_directory import made_directory
from stepscope.cli.messages import message
from stepscope.cli.progress import Progress
from stepscope.runtime.errors import StepscopeError
from stepscope.runtime.formats import staged
from stepscope.runtime.paths import absolute
from stepscope.runtime.table import human_count, printable

EPILOG = """\
examples:
  stepscope merge runs/job1 --window 2 --out window2.json.gz      for https://ui.perfetto.dev
  stepscope merge runs/job1 --steps 100-120 --out steps.parquet   for DuckDB, Polars, pandas
  stepscope merge runs/job1 --window 2 --format hta --out ranks/
  stepscope merge runs/job1 --format tensorboard --out tb/        for tensorboard --logdir tb

Times of all ranks are the collector's. What they may be off stands in the report and in the output.

exit codes: 0 written, 1 failed, 2 wrong usage, 4 there is no such window
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declares the command."""
    described = formats.described(
        hta="a directory with a file for each rank", tensorboard="with --format: a directory with one for each window"
    )
    parser: argparse.ArgumentParser = commands.add_parser(
        "merge",
        parents=[common],
        help="write the streams of all ranks as one trace",
        description="Merges the streams of a job that a collector took in, also while they grow, with times aligned.\n\n"
        f"{described}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sources",
        metavar="DIR",
        type=Path,
        nargs="*",
        help="a collector's directory, any with journals below, a journal",
    )
    parser.add_argument(
        "--sources",
        dest="listed",
        metavar="FILE",
        type=Path,
        help="a file of further ones, with a zero byte between two",
    )
    parser.add_argument("--out", metavar="OUT", type=Path, required=True, help="file or directory to write")
    formats.add_format(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--window", metavar="N", type=int, help="only this window; 0 is the first")
    parser.add_argument(
        "--of",
        metavar="STREAM",
        default="",
        help="with --window: N is the number that the window has in this stream (its id, 32 hexadecimal digits), which "
        "counts from 0 again when its rank is started again; default: the job's number",
    )
    what.add_argument("--steps", metavar="A-B", type=_steps, help="only the steps from A to B")
    parser.add_argument("--job", metavar="NAME", help="which job, if there are several")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the report as JSON, too")
    parser.set_defaults(function=merge, command="merge", parser=parser)


def merge(given: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        StepscopeError: if there is nothing to merge, or a package is missing.
        OSError: if a stream cannot be read, or the output not written.
    """
    try:
        from stepscope.collector.merge.outputs import DIRECTORIES, write_merged
        from stepscope.collector.merge.plan import Selection
        from stepscope.collector.merge.sources import NOT_MERGED
    except ImportError as error:
        raise StepscopeError(f"{error}; pip install 'stepscope[collector]'") from error
    if given.format not in DIRECTORIES:
        formats.check(given, "out")
    sources: list[Path] = [*given.sources]
    if given.listed is not None:
        sources += [Path(os.fsdecode(name)) for name in given.listed.read_bytes().split(b"\0") if name]
    if not sources:
        given.parser.error("name a collector's directory, any with journals below, or a journal")
    if given.of and given.window is None:
        given.parser.error("--of says whose number of a window it is: it wants --window")
    progress = Progress()
    into: Path = absolute(given.out)
    with made_directory(into if given.format in DIRECTORIES else into.parent):
        report = anyio.run(
            lambda: write_merged(
                sources,
                given.out,
                format=given.format,
                job=given.job,
                selection=Selection(window=given.window, stream=given.of, steps=given.steps),
                progress=lambda events: progress.show(f"{events:,} events"),
            )
        )
    progress.done(f"{report.events:,} events written to {report.written or given.out}")
    print(report.text())
    lacking = [note for note in report.notes if note.startswith(NOT_MERGED)]
    if lacking:
        message(f"the trace is not whole: {human_count(len(lacking), 'journal')} could not be read")
    for note in lacking:
        message(printable(note))
    if given.report is not None:
        with staged(given.report) as place:
            place.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 0


def _steps(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"steps are given as 100-120 or 100, not {text!r}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise argparse.ArgumentTypeError(f"the last step must not be before the first, got {text!r}")
    return first, last
