"""Where a collector is, and what is shown to it."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

from stepscope.exporters.network.secrets import read_secret
from stepscope.exporters.stream import protocol
from stepscope.runtime.settings.arguments import got

TOKEN_VARIABLE = "STEPSCOPE_TOKEN"
NO_TOKEN = "token missing or wrong (token=, --token-file, STEPSCOPE_TOKEN)"
"""Message when a collector asks for another token."""
UNFIT_TOKEN = "the token holds characters that a header cannot: it must be printable ASCII without spaces"

_HOST = re.compile(r"[\w.-]{1,100}(:\d{1,5})?")
"""A host and perhaps a port, where the scheme was forgotten."""

Token = str | Path | Callable[[], str] | None
"""A token, the file that holds it, a function that gives it, or `None`: that of the environment, if there is one."""


class Address:
    """A collector's URL and the token for it, which no message and no `repr` shows.

    Args:
        url: `ws://`, `wss://`, `http://` or `https://`, with or without a path.
        token: what the collector asks for; a file or function is read again for each connection.
        insecure: allow another machine without TLS. The traces and the token go there in clear text, and whoever is between
            can send commands to the program.

    Raises:
        TypeError: if the URL or the token is nothing of the kind.
        ValueError: for a URL that is none of these or holds a password, for one of another machine without TLS, and
            for a file that holds no token.
        OSError: if the token's file cannot be read.
    """

    def __init__(self, url: str, token: Token = None, *, insecure: bool = False) -> None:
        if token is not None and not (isinstance(token, str | Path) or callable(token)):
            raise TypeError(f"token must be a str, the Path of a file or a function, got {type(token).__name__}")
        parts = _checked(url)
        scheme = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}[parts.scheme]
        self.url = urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") or protocol.PATH, "", ""))
        """The address to which streams are sent."""
        self.is_local = is_local(parts.hostname or "")
        self.token_file = token if isinstance(token, Path) else None
        """The file that holds the token, if one does."""
        self.has_token = bool(token)
        """Whether there is a token that others cannot take from the environment."""
        self._token = token
        if scheme == "ws" and not (insecure or self.is_local):
            raise ValueError(
                f"{parts.hostname} is another machine, and {parts.scheme}:// has no TLS: others can read the traces and the token "
                "on their way, and send commands to this program; use wss:// (stepscope collect --certificate), or allow it "
                "with settings=LinkSettings(insecure=True) (--insecure)"
            )
        if self.token_file is not None:
            self.headers()  # it is read again for each connection; who waits for the first one would learn of it late

    def headers(self) -> dict[str, str]:
        """Headers of the request for a connection.

        Raises:
            OSError: if the token's file cannot be read.
            ValueError: if its file is empty, the token's function fails, or the token cannot be part of a header.
        """
        if callable(self._token):
            try:
                token = self._token()
            except Exception as error:
                # Its text may hold the token.
                raise ValueError(f"the function that gives the token raised {type(error).__name__}") from None
        elif isinstance(self._token, Path):
            token = read_secret(self._token)
        else:
            token = os.environ.get(TOKEN_VARIABLE, "").strip() if self._token is None else self._token
        if not isinstance(token, str) or not fits_header(token):
            raise ValueError(UNFIT_TOKEN)
        return {"Authorization": f"Bearer {token}"} if token else {}

    def __repr__(self) -> str:
        return f"Address({self.url!r})"


def fits_header(token: str) -> bool:
    """Whether a token can be shown in a request."""
    return all("!" <= char <= "~" for char in token)


def is_local(host: str) -> bool:
    """Whether only this machine can be there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _checked(url: str) -> SplitResult:
    if not isinstance(url, str):
        raise TypeError(f"url must be a str such as ws://host:7788, {got(url)}")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("ws", "wss", "http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, valid = urlsplit(""), False
    if parts.username is not None or parts.password is not None:
        raise ValueError("the collector's url must not hold a user or a password; give token=...")
    if not valid:
        likely = f"; did you mean {f'ws://{url}'!r}?" if _HOST.fullmatch(url) else ""
        raise ValueError(f"the collector's url must be such as ws://host:7788 or wss://host, got {url[:200]!r}{likely}")
    if parts.query or parts.fragment:
        raise ValueError("the collector's url must have no ?query and no #fragment; a token is given as token=...")
    return parts
