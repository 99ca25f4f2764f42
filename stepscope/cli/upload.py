"""`stepscope upload`: copies a collector's streams to an object store."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from stepscope.runtime.errors import StepscopeError

DESCRIPTION = """\
Copies the streams that a collector keeps to any store that fsspec knows, in parts. What is there already is not copied
again, so an upload that was interrupted goes on; run it again, or let it follow, for streams that still grow.
"""

EPILOG = """\
examples:
  stepscope upload runs/job1 s3://bucket/job1
  stepscope upload runs/job1 file:///mnt/archive/job1 --follow 60

exit codes: 0 copied, 1 failed; run it again, which goes on where it was, 2 wrong usage
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "upload",
        parents=[common],
        help="copy a collector's streams to an object store",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="the collector's directory")
    parser.add_argument("url", metavar="URL", help="where to, as fsspec has it")
    parser.add_argument("--rest", action="store_true", help="also what there is of streams that have not ended")
    parser.add_argument("--follow", metavar="SECONDS", type=float, help="go on, with a look every so many seconds")
    parser.set_defaults(function=run, command="upload", parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        StepscopeError: if a package is missing, or the store refuses.
    """
    try:
        from stepscope.collector.settings import CollectorSettings
        from stepscope.collector.store import Store
        from stepscope.collector.upload import Uploader
    except ImportError as error:
        raise StepscopeError(f"{error}; pip install 'stepscope[upload]'") from error
    if not arguments.directory.is_dir():
        raise StepscopeError(f"{arguments.directory} is no directory")
    uploader = Uploader(Store(CollectorSettings(directory=arguments.directory)), arguments.url)
    while True:
        done = uploader.upload(rest=arguments.rest)
        print(f"{done.streams} streams, {done.complete} complete: {done.parts} parts, {done.nbytes:,} bytes uploaded")
        if not arguments.follow:
            return 0
        time.sleep(arguments.follow)
