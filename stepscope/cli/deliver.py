"""`stepscope deliver`: sends to a collector what a run could not."""

from __future__ import annotations

import argparse
import asyncio
import ssl
from pathlib import Path
from typing import Any

from stepscope.runtime.errors import StepscopeError

DESCRIPTION = """\
Sends to a collector what it has not confirmed of a run: the stream goes on where the collector's copy ends. The journal
of a process that was killed is recovered first, and takes the place of what the process had streamed. A journal that was
never streamed can be sent as well. Nothing is written twice, however often this is repeated.
"""

EPILOG = """\
examples:
  stepscope deliver runs/exp1 --url wss://collector.example:7788 --token-file token
  stepscope deliver runs/exp1/journal --url ws://127.0.0.1:7788

exit codes: 0 everything is written, 1 nothing to deliver, the process still runs, or the collector does not take it,
2 wrong usage
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "deliver",
        parents=[common],
        help="send to a collector what a run could not",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("place", metavar="FILE|DIR", type=Path, help="directory of a run, or a journal")
    parser.add_argument("--url", required=True, help="of the collector, such as wss://host:7788")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="what the collector asks for; else $STEPSCOPE_TOKEN"
    )
    parser.add_argument("--ca", type=Path, metavar="FILE", help="certificates to trust, PEM; default: the system's")
    parser.add_argument("--insecure", action="store_true", help="let a token go to another machine without TLS")
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="give up after so long without progress; default 60",
    )
    parser.set_defaults(function=deliver, command="deliver", parser=parser)


def deliver(given: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        StepscopeError: if there is nothing to deliver, or the collector does not take it.
        OSError: if files cannot be read.
    """
    try:
        from stepscope.exporters.collector import delivery
        from stepscope.exporters.collector.address import Address
        from stepscope.exporters.collector.settings import LinkSettings
    except ImportError as error:
        raise StepscopeError(f"{error}; pip install 'stepscope[collector]'") from error
    try:
        address = Address(given.url, given.token_file, insecure=given.insecure)
    except ValueError as error:
        raise StepscopeError(str(error)) from error
    tls = None if given.ca is None else ssl.create_default_context(cafile=given.ca)
    found = delivery.parcels(given.place)
    try:
        for parcel in found:
            asyncio.run(delivery.deliver(parcel, address, LinkSettings(), tls, given.timeout))
            print(f"delivered {parcel.what}: {parcel.events:,} events in stream {parcel.hello.stream}")
            if parcel.damaged:
                print(f"NOT delivered, and left where it is: {parcel.damaged}; and what follows that")
    finally:
        for parcel in found:
            parcel.close()
    if not found:
        print(f"nothing of {given.place} is left to deliver")
    return 1 if any(parcel.damaged for parcel in found) else 0
