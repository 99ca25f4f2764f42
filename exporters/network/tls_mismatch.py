"""Connections of which one end speaks TLS and the other does not: what their failures look like, and what to do."""

from __future__ import annotations

import ssl

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


def wants_plain(error: object, plain: str) -> str:
    """A message if the other end has answered without TLS; empty if the failure is another.

    Args:
        error: that TLS failed by.
        plain: scheme of a URL without TLS.
    """
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return f"what answers there speaks no TLS: use {plain}://, or give it a certificate"
    return ""


def wants_tls(secure: str) -> str:
    """A message if the other end has closed a connection without TLS and has not answered, or not by HTTP.

    Args:
        secure: scheme of a URL with TLS.
    """
    return f"it gave no answer of HTTP: it probably wants TLS, use {secure}:// then"
