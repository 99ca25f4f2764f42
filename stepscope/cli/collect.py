"""`stepscope collect`: takes the streams of many ranks."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
from pathlib import Path
from typing import Any

from stepscope.cli import nats_options
from stepscope.runtime.errors import StepscopeError


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "collect",
        parents=[common],
        help="take the streams of many ranks",
        description="Takes what CollectorExporter sends, keeps each rank's stream as a journal, and shows them all.",
        epilog="example: stepscope collect --dir runs/job1 --disk 50000000000 --upload s3://bucket/job1",
    )
    parser.add_argument("--dir", type=Path, required=True, metavar="DIR", help="where streams are kept")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default 127.0.0.1")
    parser.add_argument("--port", type=int, default=7788, help="default 7788; 0 for any that is free")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="what exporters must show; else $STEPSCOPE_TOKEN"
    )
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="TLS certificate, PEM")
    parser.add_argument("--key", type=Path, metavar="FILE", help="its private key, PEM")
    parser.add_argument("--insecure", action="store_true", help="let others in without a token or TLS")
    parser.add_argument(
        "--from",
        dest="nats",
        action="append",
        default=[],
        metavar="URL",
        help="take streams from NATS as well, as nats://host:4222 or tls://host; several collectors share them; may be "
        "repeated",
    )
    parser.add_argument(
        "--disk",
        metavar="BYTES",
        type=int,
        default=0,
        help="bytes on disk that are not exceeded: events of the oldest windows are given up",
    )
    parser.add_argument("--keep-newest", metavar="N", type=int, default=8, help="windows given up last; default 8")
    parser.add_argument(
        "--keep-slowest", metavar="N", type=int, default=8, help="windows given up before them; default 8"
    )
    parser.add_argument("--fsync", action="store_true", help="confirm only what the disk has, at the price of speed")
    limits = {
        "max-streams": ("connections of exporters at once", 4096),
        "max-readers": ("connections beyond those at once", 1024),
        "max-kept-streams": ("streams in the directory", 65_536),
        "max-message": ("bytes of one message", 16 << 20),
        "max-intake": ("bytes of messages in memory that are not written yet", 256 << 20),
        "max-bytes": ("bytes of all streams together; 0: as much as the disk holds", 0),
        "max-stream-bytes": ("bytes of one stream; 0: no limit of its own", 0),
    }
    for name, (what, default) in limits.items():
        parser.add_argument(f"--{name}", metavar="N", type=int, default=default, help=f"{what}; default {default}")
    parser.add_argument(
        "--upload",
        metavar="URL",
        default="",
        help="copy windows that have ended to a store that fsspec knows, such as s3://bucket/job1; with --disk what was "
        "not copied yet is given up last",
    )
    parser.add_argument(
        "--upload-every", metavar="SECONDS", type=float, default=30.0, help="between two looks for that; default 30"
    )
    nats_options.add(parser)
    parser.set_defaults(function=collect, command="collect", parser=parser)


def collect(given: argparse.Namespace) -> int:
    """Runs until it is interrupted."""
    try:
        import uvloop

        from stepscope.collector.app import Collector
        from stepscope.collector.settings import CollectorSettings
    except ImportError as error:
        raise StepscopeError(f"{error}; pip install 'stepscope[collector]'") from error
    token = given.token_file.read_text().strip() if given.token_file else os.environ.get("STEPSCOPE_TOKEN", "")
    if given.token_file and not token:
        raise StepscopeError(f"{given.token_file} is empty: write the token into it, or leave --token-file out")
    settings = CollectorSettings(
        directory=given.dir,
        host=given.host,
        port=given.port,
        token=token,
        certificate=given.certificate,
        key=given.key,
        insecure=given.insecure,
        nats=tuple(given.nats),
        nats_access=nats_options.access(given),
        nats_limits=nats_options.limits(given),
        disk_bytes=given.disk,
        keep_newest=given.keep_newest,
        keep_slowest=given.keep_slowest,
        fsync=given.fsync,
        max_streams=given.max_streams,
        max_readers=given.max_readers,
        max_kept_streams=given.max_kept_streams,
        max_message=given.max_message,
        max_intake=given.max_intake,
        max_bytes=given.max_bytes,
        max_stream_bytes=given.max_stream_bytes,
        upload=given.upload,
        upload_seconds=given.upload_every,
    )
    try:
        allowed = settings.within(_allow_files())
        if allowed != settings:
            print(
                f"stepscope: for the open files that this process may have there can be {allowed.max_streams} streams and "
                f"{allowed.max_readers} other connections at once; allow more (ulimit -n)",
                file=sys.stderr,
            )
        collector = Collector(allowed)
    except (ImportError, ValueError) as error:
        raise StepscopeError(str(error)) from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(collector.run(lambda url: print(f"listening on {url}", flush=True)))
    return 0


def _allow_files() -> int:
    """As many open files as the system lets us have: each stream needs three, and shells often allow 1,024; how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
