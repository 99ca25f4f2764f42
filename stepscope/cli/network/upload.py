"""`stepscope upload`: copies a collector's streams to an object store, and back."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from stepscope.cli.common.messages import add_json, message, print_json
from stepscope.cli.common.values import seconds
from stepscope.runtime.errors import FormatError, StepscopeError

if TYPE_CHECKING:
    from stepscope.collector.upload.uploader import Uploader

HELP = "copy a collector's directory to an object store, or back"
DESCRIPTION = """\
Copies the closed segments of a collector's streams to any object store that fsspec knows. Segments that are there are not
copied again: repeat the command after an interruption, or use --follow while ranks still send. The collector may
run meanwhile.

With --restore it copies back: DIR is then as the collector had it, for `stepscope merge DIR` and all other commands.
"""

EPILOG = """\
examples:
  stepscope upload runs/job1 s3://bucket/job1
  stepscope upload runs/job1 file:///mnt/archive/job1 --follow 60
  stepscope upload --restore runs/job1-again s3://bucket/job1

exit codes: 0 copied, 1 failed or damaged (after a failure run it again: it copies what is missing), 2 wrong usage
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="the collector's directory")
    parser.add_argument("url", metavar="URL", help="the store, such as s3://bucket/job1")
    parser.add_argument(
        "--unfinished", action="store_true", help="include the last segments of streams that are still being written"
    )
    parser.add_argument(
        "--follow",
        metavar="SECONDS",
        type=seconds,
        help="go on, and look for more every SECONDS; failures are shown and tried again",
    )
    parser.add_argument("--restore", action="store_true", help="copy from URL to DIR, which is made if missing")
    add_json(parser, "what was copied")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        StepscopeError: if a package is missing, or the store refuses.
        OSError: if a file cannot be read or written.
    """
    if arguments.restore and (arguments.unfinished or arguments.follow is not None):
        arguments.parser.error("--restore copies back what there is: it goes with neither --unfinished nor --follow")
    try:
        from stepscope.collector.upload.object_store import ObjectStore
        from stepscope.collector.upload.restore import restore
        from stepscope.collector.upload.uploader import Uploader
    except ImportError as error:
        raise StepscopeError(f"{error}; pip install 'stepscope[upload]'") from error
    directory: Path = arguments.directory
    if arguments.restore:
        back = restore(ObjectStore(arguments.url), directory)
        for text in back.errors:
            message(f"stepscope upload: {text}")
        if arguments.json:
            print_json(back)
        else:
            print(f"{back.streams} streams: {back.segments} segments, {back.nbytes:,} bytes restored")
        return 1 if back.errors else 0
    if not (directory / "streams").is_dir():
        raise StepscopeError(f"{directory} is not a collector's directory: it has no directory streams")
    every: float | None = arguments.follow
    uploader = Uploader(directory, arguments.url, every=every or 0.0)
    if every is not None:
        _follow(uploader, arguments)
    _upload(uploader, arguments)
    return 0


def _follow(uploader: Uploader, arguments: argparse.Namespace) -> NoReturn:
    while True:
        try:
            _upload(uploader, arguments)
        except (OSError, FormatError) as error:
            message(f"stepscope upload: {error}; tried again in {uploader.pause:.3g} s")
        time.sleep(uploader.pause)


def _upload(uploader: Uploader, arguments: argparse.Namespace) -> None:
    objects, nbytes = uploader.objects, uploader.nbytes
    uploader.upload(rest=arguments.unfinished)
    objects, nbytes = uploader.objects - objects, uploader.nbytes - nbytes
    if arguments.json:
        counts = {"streams": uploader.streams, "complete": uploader.complete}
        print_json({**counts, "objects": objects, "nbytes": nbytes})
    else:
        print(
            f"{uploader.streams} streams, {uploader.complete} complete: {objects} objects, {nbytes:,} bytes uploaded",
            flush=True,
        )
