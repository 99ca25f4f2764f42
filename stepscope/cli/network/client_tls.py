"""Options of commands that connect to a collector by TLS."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path
from typing import Any


def add(parser: Any) -> None:
    """Declares the options."""
    parser.add_argument("--ca", type=Path, metavar="FILE", help="certificates to trust, PEM (default: the system's)")
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help="certificate to show, PEM, if the collector requires one (--client-ca)",
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="its private key, PEM (default: in the certificate's file)"
    )


def context(given: argparse.Namespace) -> ssl.SSLContext:
    """The settings that the options give.

    Raises:
        ValueError: if a file cannot be used; says why.
    """
    try:
        made = ssl.create_default_context(cafile=None if given.ca is None else str(given.ca))
        if given.certificate is not None:
            made.load_cert_chain(given.certificate, given.key)
    except OSError as error:  # of ssl, too
        raise ValueError(f"the certificates (--ca, --certificate, --key) cannot be used: {error}") from error
    return made
