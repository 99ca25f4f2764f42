"""`stepscope report`: writes the report of a run as a page."""

from __future__ import annotations

import argparse
from pathlib import Path

from stepscope.cli.common import opening
from stepscope.cli.common.messages import Progress, add_json, exit_code, print_json
from stepscope.cli.showing.explain import PATH_HELP, add_choice

HELP = "write what is slow in a run, with charts and tables, as a page"
USAGE = "stepscope report PATH [options]"
DESCRIPTION = "Writes what `stepscope explain` says of a run, with charts and tables, as one HTML file."
EPILOG = """\
examples:
  stepscope report runs/exp1                    report.html, here
  stepscope report runs/ddp -o reports/ddp.html
  stepscope report runs/exp1 --json             for programs: the page's answer, too

The page is one file that loads nothing: open it in a browser, or send it to somebody.

exit codes: 0 written, 1 failed, 2 wrong usage, 3 written, but without recordings, or parts of one, that
could not be read, which are named, 4 there is no such window
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("path", metavar="PATH", type=Path, help=PATH_HELP)
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=Path,
        default=Path("report.html"),
        help="file to write (default: report.html)",
    )
    add_choice(parser)
    add_json(parser, "the file's name, and the answer that is on the page,")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        OSError: if the run cannot be read, or the page not written.
        FormatError: if there is no recording, or no such window (`NoWindowError`).
    """
    from stepscope.analysis.page.render import page_of
    from stepscope.analysis.reading.recording import load

    target: Path = arguments.out
    if target.is_dir():
        arguments.parser.error(f"{opening.shown(target)} is a directory: give -o the name of a file")
    if target.is_file() and not target.read_bytes()[:64].lstrip().lower().startswith(b"<!doctype html"):
        arguments.parser.error(f"{opening.shown(target)} is there already, and is no page: give -o another name")
    window: int | None = arguments.window
    with Progress(f"reading {opening.shown(arguments.path)}"):
        recording = load(arguments.path, None if window is None else (window,), arguments.job)
        page, answer = page_of(recording, window, arguments.peak_flops)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    if arguments.json:
        print_json({"written": target, "answer": answer})
    else:
        print(f"{opening.shown(target)} written ({len(page.encode()) >> 10:,} KiB): open it in a browser")
    return exit_code(recording.unreadable, recording.damage)
