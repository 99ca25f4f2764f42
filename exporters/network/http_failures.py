"""Messages about redirects, and about connections of which only one end speaks TLS.

No client of ours follows a redirect: the token and the traces go to no other host than the one that was named.
"""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit, urlunsplit

from stepscope.runtime.display.text_table import printable

_MOST_CHARACTERS = 200

_NO_TLS = frozenset(
    {
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
        "UNKNOWN_PROTOCOL",
        "UNSUPPORTED_PROTOCOL",
        "WRONG_VERSION_NUMBER",
    }
)
"""Reasons of OpenSSL for an answer that is no TLS; which one depends on its version and on what the answer is."""


def redirected(location: str) -> str:
    """A message about an answer that redirects, without the query of the new address, which may hold a secret.

    Args:
        location: the answer's header `Location`; empty if it has none.
    """
    try:
        parts = urlsplit(location)
        shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        shown = ""
    where = f" to {printable(shown)[:_MOST_CHARACTERS]}" if shown else ""
    return f"a redirect{where}, which is not followed: give the address that this should go to"


def wants_plain(error: object, plain: str) -> str:
    """A message if the other end has answered without TLS; empty if the failure is another."""
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return f"what answers there speaks no TLS: use {plain}://, or give it a certificate"
    return ""


def wants_tls(secure: str) -> str:
    """A message if the other end has closed a connection without TLS and has not answered, or not by HTTP."""
    return f"it gave no answer of HTTP: it probably wants TLS, use {secure}:// then"
