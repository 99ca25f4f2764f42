"""`stepscope deliver`: sends to a collector, or into NATS, what a run could not."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stepscope.cli.common import opening
from stepscope.cli.common.messages import Progress, add_json, message, print_json
from stepscope.cli.common.values import seconds
from stepscope.cli.network.connection_options import add_nats, add_tls, nats_settings, tls_context
from stepscope.runtime.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.exporters.stream.delivery import MakeTransport

HELP = "send to a collector what a run could not"
USAGE = "stepscope deliver FILE|DIR --url URL [options]"
DESCRIPTION = """\
Sends to a collector what a run could not, from where the collector's copy ends. A journal that was never sent can be sent
as well. If the process was killed, its journal is recovered first. You may repeat the command: nothing is stored twice.
With a URL of NATS the journal goes there, and `stepscope collect --from` takes it.
"""

EPILOG = """\
examples:
  stepscope deliver runs/exp1 --url wss://collector.example:7788 --token-file token
  stepscope deliver runs/exp1/journal --url ws://127.0.0.1:7788
  stepscope deliver runs/exp1 --url tls://nats.example:4222 --nats-credentials user.creds

exit codes: 0 everything is stored, 1 nothing to deliver, the process still runs, the collector refuses, or a frame is too
large, 2 wrong usage
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("place", metavar="FILE|DIR", type=Path, help="directory of a run, or a journal")
    parser.add_argument(
        "--url", required=True, help="the collector or NATS, such as wss://host:7788 or tls://nats:4222"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with the collector's token (default: $STEPSCOPE_TOKEN)"
    )
    add_tls(parser)
    parser.add_argument("--insecure", action="store_true", help="allow another machine without TLS")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="seconds without progress after which to give up (default: 60)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="assume that a process on another machine is dead",
    )
    add_nats(parser)
    add_json(parser, "what was delivered")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        StepscopeError: if there is nothing to deliver, or the collector does not take it.
        OSError: if files cannot be read.
    """
    try:
        from stepscope.exporters.stream import delivery
    except ImportError as error:
        raise StepscopeError(f"{error}; pip install 'stepscope[collector]'") from error
    make_transport = _into_nats(arguments) if arguments.url.startswith(("nats:", "tls:")) else _to_collector(arguments)
    failed = False
    delivered: list[dict[str, object]] = []
    journals = delivery.journals_in(arguments.place)
    for journal in journals:
        try:
            with Progress(f"delivering {opening.shown(journal)}"):
                delivery.complete(journal, force=arguments.force)
                sent = asyncio.run(delivery.deliver(journal, make_transport, arguments.timeout))
        except (StepscopeError, OSError) as error:
            if len(journals) == 1:
                raise
            message(f"stepscope deliver: not delivered: {error}")
            failed = True
            continue
        delivered.append({"journal": journal, **msgspec.to_builtins(sent)})
        if not arguments.json:
            print(f"delivered {journal}: stream {sent.stream} has its {sent.events:,} events")
        if sent.left_out_frames:
            message(
                f"stepscope deliver: {sent.left_out_frames} frames of {journal} are too large, and were not sent: they have "
                f"{sent.left_out:,} events, or ends of windows"
            )
            failed = True
    if arguments.json:
        print_json(delivered)
    return 1 if failed else 0


def _to_collector(arguments: argparse.Namespace) -> MakeTransport:
    from stepscope.exporters.stream.address import Address
    from stepscope.exporters.stream.transport import LinkSettings
    from stepscope.exporters.stream.websocket import WebSocketTransport

    parser: argparse.ArgumentParser = arguments.parser
    try:
        address = Address(arguments.url, arguments.token_file, insecure=arguments.insecure)
        address.headers()
    except ValueError as error:
        raise StepscopeError(str(error)) from error
    except OSError as error:  # else it would be tried again until the time is over
        parser.error(f"--token-file: {error.strerror}")
    tls = tls_context(arguments) if arguments.ca or arguments.certificate else None
    return lambda feed: WebSocketTransport(address, LinkSettings(), tls, feed)


def _into_nats(arguments: argparse.Namespace) -> MakeTransport:
    from stepscope.exporters.nats.names import Names
    from stepscope.exporters.nats.servers import Servers
    from stepscope.exporters.stream.transport import LinkSettings

    if arguments.token_file or arguments.ca or arguments.certificate or arguments.insecure:
        raise StepscopeError(
            "--token-file, --ca, --certificate and --insecure are for a collector; for NATS there are --nats-token-file, --nats-ca and "
            "--nats-insecure"
        )
    try:
        from stepscope.exporters.nats.transport import NatsTransport

        access, limits = nats_settings(arguments)
        servers, names = Servers(arguments.url, access), Names(arguments.nats_team)
    except ImportError as error:
        raise StepscopeError(f"{error}; pip install 'stepscope[nats]'") from error
    except ValueError as error:
        raise StepscopeError(str(error)) from error
    return lambda feed: NatsTransport(servers, names, limits, LinkSettings(), feed)
