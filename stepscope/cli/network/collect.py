"""`stepscope collect`: takes the streams of many ranks."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stepscope.cli.common.messages import message
from stepscope.cli.common.values import option_text, size
from stepscope.cli.network.connection_options import add_files, add_nats, nats_settings
from stepscope.runtime.errors import StepscopeError

HELP = "receive and show the traces of many ranks"
USAGE = "stepscope collect --dir DIR [options]"
DESCRIPTION = """\
Receives what the ranks of a job send (each rank is one process), stores a journal for each, and shows all of them in the
browser, at the address that it prints. Ranks send with CollectorExporter, or later with `stepscope deliver`. It logs on
standard error which ranks come and go, and runs until you interrupt it.
"""

EPILOG = """\
examples:
  stepscope collect --dir runs/job1
  stepscope collect --dir runs/job1 --disk 50GB --upload s3://bucket/job1
  stepscope collect --dir runs/job1 --host 0.0.0.0 --token-file token --certificate chain.pem --key key.pem
  stepscope collect --dir runs/job1 --from tls://nats.example:4222 --nats-credentials user.creds

exit codes: 0 ended by SIGTERM or Ctrl-C, 1 failed, 2 wrong usage
"""

_COUNTS = {
    "max-streams": ("ranks connected at once", 4096),
    "max-readers": ("other connections at once, such as browsers", 1024),
    "max-kept-streams": ("streams in the directory", 65_536),
}
_SIZES = {
    "max-message": ("bytes of one message", 80 << 20),
    "max-intake": ("bytes in memory that are not written yet", 256 << 20),
    "max-bytes": ("bytes of all streams together; 0: no limit", 0),
    "max-stream-bytes": ("bytes of one stream; 0: no limit", 0),
}
_OPTIONS = {
    "directory": "--dir",
    "nats": "--from",
    "disk_bytes": "--disk",
    "upload_seconds": "--upload-every",
    "allowed_hosts": "--allowed-host",
}
"""Names of fields whose option has another name."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "-o",
        "--out",
        "--dir",
        dest="directory",
        type=Path,
        required=True,
        metavar="DIR",
        help="where to store what ranks send",
    )
    parser.add_argument("--fsync", action="store_true", help="confirm only what has reached the disk; slower")
    parser.add_argument(
        "--from",
        dest="nats",
        action="append",
        default=[],
        metavar="URL",
        help="also receive from NATS, such as nats://host:4222 or tls://host; several collectors share the work; may be "
        "repeated",
    )
    _add_access(parser)
    _add_disk(parser)
    limits = parser.add_argument_group("limits")
    for name, (what, default) in _COUNTS.items():
        limits.add_argument(f"--{name}", metavar="N", type=int, default=default, help=f"{what} (default: {default})")
    for name, (what, default) in _SIZES.items():
        limits.add_argument(
            f"--{name}", metavar="SIZE", type=size, default=default, help=f"{what} (default: {default})"
        )
    add_nats(parser)


def _add_access(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access", "where it listens, and who may connect")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    group.add_argument("--port", type=int, default=7788, help="port to listen on; 0: any free one (default: 7788)")
    add_files(
        group,
        {
            "token-file": "file with tokens that allow everything, one a line (default: $STEPSCOPE_TOKEN); like the next three, "
            "it is read again when it changes, and a line job=NAME TOKEN limits a token to one job",
            "ingest-token-file": "file with tokens to send streams",
            "read-token-file": "file with tokens for the page, the API, downloads and metrics",
            "control-token-file": "file with tokens to order windows and to read",
            "certificate": "TLS certificate, PEM",
            "key": "its private key, PEM",
            "client-ca": "authorities, PEM; every client must show a certificate of one of them",
        },
    )
    group.add_argument(
        "--allowed-host",
        dest="allowed_hosts",
        action="append",
        default=[],
        metavar="NAME",
        help="host name by which clients may address it; may be repeated (default: the names in the certificate and --host)",
    )
    group.add_argument("--insecure", action="store_true", help="allow other machines without a token or TLS")


def _add_disk(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "disk and store", "what to delete when the disk is full, and where to copy it first"
    )
    group.add_argument(
        "--disk",
        dest="disk_bytes",
        metavar="SIZE",
        type=size,
        default=0,
        help="most disk to use, such as 50GB; then the oldest segments of streams are deleted (default: no limit)",
    )
    group.add_argument("--keep-newest", metavar="N", type=int, default=8, help="newest windows to keep (default: 8)")
    group.add_argument(
        "--keep-slowest", metavar="N", type=int, default=8, help="slowest windows to keep as well (default: 8)"
    )
    group.add_argument(
        "--upload",
        metavar="URL",
        default="",
        help="copy closed segments to an object store that fsspec knows, such as s3://bucket/job1; with --disk, segments "
        "that are not in the store are deleted last",
    )
    group.add_argument(
        "--upload-every",
        dest="upload_seconds",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="seconds between two looks for closed segments (default: 30)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs until it is interrupted."""
    try:
        import uvloop

        from stepscope.analysis.live import judge_steps
        from stepscope.collector.app import Collector
        from stepscope.collector.settings import CollectorSettings
    except ImportError as error:
        raise StepscopeError(f"{error}; pip install 'stepscope[collector]'") from error
    values: dict[str, Any] = {
        name: getattr(arguments, name) for name in CollectorSettings.__struct_fields__ if hasattr(arguments, name)
    }
    has_file = any(values[name] for name in values if name.endswith("token_file"))
    values |= {name: tuple(values[name]) for name in ("nats", "allowed_hosts")}
    values["nats_access"], values["nats_limits"] = nats_settings(arguments)
    values |= {"token": "" if has_file else _token_of_environment()}
    parser: argparse.ArgumentParser = arguments.parser
    try:
        settings = CollectorSettings(**values)
    except ValueError as error:
        parser.error(option_text(error, "CollectorSettings", _OPTIONS))
    try:
        allowed = settings.within(_allow_open_files())
        if allowed != settings:
            message(
                f"stepscope: for the open files that this process may have there can be {allowed.max_streams} streams and "
                f"{allowed.max_readers} other connections at once; allow more (ulimit -n)"
            )
        collector = Collector(allowed, judge_steps)
    except (ImportError, ValueError) as error:
        raise StepscopeError(str(error)) from error
    _show_log()

    def listening(url: str) -> None:
        print(f"listening on {url}")
        print(
            f"in training scripts: exporters=[{_exporter(url, arguments.ingest_token_file or arguments.token_file)}]",
            flush=True,
        )

    # With a thousand streams, Python's defaults spend 7 % of the time on looking for cycles of objects, of which there are few.
    gc.set_threshold(50_000, 20, 50)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(collector.run(listening))
    return 0


def _token_of_environment() -> str:
    """The token of the environment, or nothing. An empty variable is refused: the collector would be open unintentionally."""
    from stepscope.exporters.stream.address import TOKEN_VARIABLE

    token = os.environ.get(TOKEN_VARIABLE)
    if token is not None and not token.strip():
        raise StepscopeError(f"{TOKEN_VARIABLE} is set, and there is nothing in it: put the token there, or unset it")
    return (token or "").strip()


def _allow_open_files() -> int:
    """Raises the limit of open files, for which shells often set 1,024, to the system's limit. Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _exporter(url: str, token: Path | None) -> str:
    """The line of code that sends to a collector."""
    from stepscope.exporters.stream.address import is_local

    parts = urlsplit(url)
    everywhere = parts.hostname in ("0.0.0.0", "::")
    where = f"{socket.gethostname()}:{parts.port}" if everywhere else parts.netloc
    scheme = {"http": "ws", "https": "wss"}[parts.scheme]
    shown = "" if token is None else f", token=Path({str(token)!r})"
    if token is not None and len(token.read_text(errors="replace").split()) > 1:
        shown = ", token=Path('file with one token')"  # a client's file has no other
    if scheme == "ws" and not is_local(parts.hostname or ""):
        shown += ", settings=sc.exporters.LinkSettings(insecure=True)"
    return f'sc.CollectorExporter("{scheme}://{where}"{shown})'


def _show_log() -> None:
    """Logs to standard error which streams begin and end, and what goes wrong; the audit has what was done or refused."""
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    log = logging.getLogger("stepscope.collector")
    log.addHandler(shown)
    log.setLevel(logging.INFO)
    logging.getLogger("stepscope.collector.audit").propagate = False
