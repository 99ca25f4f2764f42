"""Tickets: what a browser shows in the address of a download, which cannot have a header."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote, urlencode

from litestar.utils import normalize_path

from stepscope.collector.web.tokens import Token

SECONDS = 30
"""How long a ticket holds."""
MOST = 1024
"""Tickets that are open at once; the oldest give way."""


class Tickets:
    """Each is for one path, for one use, for a short time: one that is seen in a log is worth nothing."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, float, Token | None]] = {}

    def issue(self, path: str, token: Token | None) -> str:
        """A ticket for a path with its parameters, for the holder of a token."""
        now = time.monotonic()
        self._open = {ticket: one for ticket, one in self._open.items() if one[1] > now}
        while len(self._open) >= MOST:
            del self._open[next(iter(self._open))]
        ticket = secrets.token_urlsafe(24)
        path, _, query = path.partition("?")
        self._open[ticket] = _address(unquote(path), parse_qsl(query, keep_blank_values=True)), now + SECONDS, token
        return ticket

    def use(self, ticket: str, path: str, query: Sequence[tuple[str, str]]) -> Token | None:
        """The token for which a ticket was issued, once, if the path and the other parameters are those of the ticket.

        Args:
            ticket: as `issue` returned it.
            path: of the request, decoded.
            query: its parameters, decoded, without the ticket.
        """
        address, until, token = self._open.pop(ticket, ("", 0.0, None))
        return token if address == _address(path, query) and time.monotonic() < until else None


def _address(path: str, query: Sequence[tuple[str, str]]) -> str:
    """One form for all ways in which an address can be written."""
    return f"{normalize_path(path)}?{urlencode(query)}"
