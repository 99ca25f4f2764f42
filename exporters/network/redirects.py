"""Redirects, which no client of ours follows: the token and the traces go to no other host than the one that was named."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from stepscope.runtime.display.text_table import printable

_MOST_CHARACTERS = 200


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
