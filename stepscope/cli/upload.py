"""`stepscope upload`: copies a collector's streams to an object store, and back."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stepscope.cli.messages import message
from stepscope.runtime.errors import FormatError, StepscopeError

if TYPE_CHECKING:
    from stepscope.collector.archive.upload import Uploader

DESCRIPTION = """\
Copies a collector's directory to any store that fsspec knows, in parts. It does not copy again what is there: repeat it
after an interruption, or use --follow while ranks still send. The collector may run meanwhile.

With --restore it copies back: DIR is then as the collector had it, for `stepscope merge DIR` and all other commands.
"""

EPILOG = """\
examples:
  stepscope upload runs/job1 s3://bucket/job1
  stepscope upload runs/job1 file:///mnt/archive/job1 --follow 60
  stepscope upload --restore runs/job1-again s3://bucket/job1

exit codes: 0 copied, 1 failed (run it again: it goes on where it was), 2 wrong usage
"""

MOST_PAUSE = 600.0
"""Seconds between two attempts while nothing can be uploaded, unless --follow asks for longer ones."""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "upload",
        parents=[common],
        help="copy a collector's directory to an object store, or back",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="the collector's directory")
    parser.add_argument("url", metavar="URL", help="the store, such as s3://bucket/job1")
    parser.add_argument("--rest", action="store_true", help="include streams that are still being written")
    parser.add_argument(
        "--follow",
        metavar="SECONDS",
        type=float,
        help="go on, and look for more every SECONDS; failures are shown and tried again",
    )
    parser.add_argument("--restore", action="store_true", help="copy from URL to DIR, which is made if missing")
    parser.set_defaults(function=run, command="upload", parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        StepscopeError: if a package is missing, the store refuses, or another process uploads the same to there.
    """
    if arguments.restore and (arguments.rest or arguments.follow is not None):
        arguments.parser.error("--restore copies back what there is: it goes with neither --rest nor --follow")
    if arguments.follow is not None and not 0 < arguments.follow < float("inf"):
        arguments.parser.error(f"--follow wants seconds above 0, got {arguments.follow:g}")
    try:
        from stepscope.collector.archive.archive import Archive
        from stepscope.collector.archive.retrieval import retrieve
        from stepscope.collector.archive.upload import Uploader
        from stepscope.collector.files.store import Store
        from stepscope.collector.settings import CollectorSettings
    except ImportError as error:
        raise StepscopeError(f"{error}; pip install 'stepscope[upload]'") from error
    if arguments.restore:
        back = retrieve(Archive(arguments.url), arguments.directory)
        print(
            f"{back.streams} streams, {back.restored} restored, {back.incomplete} without their end: {back.nbytes:,} bytes"
        )
        return 0
    if not arguments.directory.is_dir():
        raise StepscopeError(f"{arguments.directory} is no directory")
    uploader = Uploader(Store(CollectorSettings(directory=arguments.directory)), arguments.url)
    uploader.lock.take()
    try:
        if arguments.follow is not None:
            _follow(uploader, arguments.rest, arguments.follow)
        _upload(uploader, arguments.rest)
    finally:
        uploader.lock.release()
    return 0


def _follow(uploader: Uploader, rest: bool, every: float) -> NoReturn:
    pause = every
    while True:
        before = uploader.nbytes
        try:
            _upload(uploader, rest)
        except (OSError, FormatError) as error:
            if uploader.nbytes > before:
                pause = every  # what fails for one stream need not fail for others
            message(f"stepscope upload: {error}; tried again in {pause:g} s")
            time.sleep(pause)
            pause = min(2 * pause, max(every, MOST_PAUSE))
        else:
            pause = every
            time.sleep(pause)


def _upload(uploader: Uploader, rest: bool) -> None:
    done = uploader.upload(rest=rest)
    print(
        f"{done.streams} streams, {done.complete} complete: {done.parts} parts, {done.nbytes:,} bytes uploaded",
        flush=True,
    )
