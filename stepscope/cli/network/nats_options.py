"""Options of commands that go to NATS."""

from __future__ import annotations

import argparse
from pathlib import Path

from stepscope.cli.common.values import option_text, size
from stepscope.exporters.nats.names import DEFAULT_TEAM
from stepscope.exporters.nats.servers import NatsAccess, NatsLimits


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the options, in a group of their own."""
    group = parser.add_argument_group("NATS", "the team, how to log in, and what JetStream keeps")
    group.add_argument(
        "--nats-team",
        default=DEFAULT_TEAM,
        metavar="NAME",
        help=f"team whose streams these are: collectors take those of their team only (default: {DEFAULT_TEAM})",
    )
    for name, what in (
        ("credentials", "file with a user's JWT and seed, as nsc writes it"),
        ("token-file", "file with a token"),
        ("password-file", "file with the password of --nats-user"),
        ("ca", "certificates to trust, PEM (default: the system's)"),
        ("certificate", "certificate to show to servers, PEM"),
        ("key", "its private key, PEM (default: in the certificate's file)"),
    ):
        group.add_argument(f"--nats-{name}", type=Path, metavar="FILE", help=what)
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


def access(given: argparse.Namespace) -> NatsAccess:
    """The credentials and trusted authorities; ends with wrong usage if options contradict each other."""
    parser: argparse.ArgumentParser = given.parser
    try:
        return NatsAccess(**{name: getattr(given, f"nats_{name}") for name in NatsAccess.__struct_fields__})
    except ValueError as error:
        parser.error(option_text(error, "NatsAccess|NatsLimits", prefix="nats-"))


def limits(given: argparse.Namespace) -> NatsLimits:
    """The limits of JetStream; ends with wrong usage if one is not valid."""
    parser: argparse.ArgumentParser = given.parser
    try:
        return NatsLimits(**{name: getattr(given, f"nats_{name}") for name in NatsLimits.__struct_fields__})
    except ValueError as error:
        parser.error(option_text(error, "NatsAccess|NatsLimits", prefix="nats-"))
