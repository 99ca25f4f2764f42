"""Options of commands that connect to a collector by TLS, or to NATS."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.cli.common.values import option_text, size
from stepscope.exporters.nats.names import DEFAULT_TEAM
from stepscope.exporters.nats.servers import NatsAccess, NatsLimits
from stepscope.runtime.errors import StepscopeError


def add_files(group: Any, options: Mapping[str, str]) -> None:
    """Declares options that name a file, with the help of each."""
    for name, what in options.items():
        group.add_argument(f"--{name}", type=Path, metavar="FILE", help=what)


def add_tls(parser: Any) -> None:
    """Declares the options."""
    add_files(
        parser,
        {
            "ca": "certificates to trust, PEM (default: the system's)",
            "certificate": "certificate to show, PEM, if the collector requires one (--client-ca)",
            "key": "its private key, PEM (default: in the certificate's file)",
        },
    )


def tls_context(arguments: argparse.Namespace) -> ssl.SSLContext:
    """The settings that the options give.

    Raises:
        StepscopeError: if a file cannot be used; says why.
    """
    try:
        made = ssl.create_default_context(cafile=None if arguments.ca is None else str(arguments.ca))
        if arguments.certificate is not None:
            made.load_cert_chain(arguments.certificate, arguments.key)
    except OSError as error:  # of ssl, too
        raise StepscopeError(f"the certificates (--ca, --certificate, --key) cannot be used: {error}") from error
    return made


def add_nats(parser: argparse.ArgumentParser) -> None:
    """Declares the options, in a group of their own."""
    group = parser.add_argument_group("NATS", "the team, how to log in, and what JetStream keeps")
    group.add_argument(
        "--nats-team",
        default=DEFAULT_TEAM,
        metavar="NAME",
        help=f"team whose streams these are: collectors take those of their team only (default: {DEFAULT_TEAM})",
    )
    add_files(
        group,
        {
            "nats-credentials": "file with a user's JWT and seed, as nsc writes it",
            "nats-token-file": "file with a token",
            "nats-password-file": "file with the password of --nats-user",
            "nats-ca": "certificates to trust, PEM (default: the system's)",
            "nats-certificate": "certificate to show to servers, PEM",
            "nats-key": "its private key, PEM (default: in the certificate's file)",
        },
    )
    group.add_argument("--nats-user", default="", metavar="NAME", help="user name, with --nats-password-file")
    group.add_argument("--nats-insecure", action="store_true", help="allow other machines without TLS")
    default = NatsLimits()
    group.add_argument(
        "--nats-max-bytes",
        type=size,
        metavar="SIZE",
        default=default.max_bytes,
        help="bytes that JetStream keeps, if this command is the first to use it; 0: as the server allows "
        f"(default: {default.max_bytes})",
    )
    group.add_argument(
        "--nats-max-age",
        type=float,
        metavar="SECONDS",
        default=default.max_age,
        help=f"seconds that it keeps them, likewise; 0: for ever (default: {default.max_age:.0f})",
    )
    group.add_argument(
        "--nats-discard",
        choices=("old", "new"),
        default=default.discard,
        help="when full, likewise: drop old messages, or refuse new ones, which exporters then keep (default: old)",
    )


def nats_settings(arguments: argparse.Namespace) -> tuple[NatsAccess, NatsLimits]:
    """How to log in, and the limits of JetStream; ends with wrong usage if options contradict each other or are not valid."""
    parser: argparse.ArgumentParser = arguments.parser
    fields = [
        {name: getattr(arguments, f"nats_{name}") for name in kind.__struct_fields__}
        for kind in (NatsAccess, NatsLimits)
    ]
    try:
        return NatsAccess(**fields[0]), NatsLimits(**fields[1])
    except ValueError as error:
        parser.error(option_text(error, "NatsAccess|NatsLimits", prefix="nats-"))
