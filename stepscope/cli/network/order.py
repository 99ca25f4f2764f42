"""Sending an order to a collector over HTTP."""

from __future__ import annotations

import argparse
import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from stepscope.cli.network import client_tls
from stepscope.exporters.network.http_failures import redirected, wants_plain, wants_tls
from stepscope.exporters.stream.address import Address
from stepscope.runtime.errors import ControlError
from stepscope.runtime.requests.armed import ArmedStatus

PATH = "/v1/windows"
MOST_BYTES = 64 << 20
"""Of an answer."""


class OrderedRank(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one process, as far as it is shown."""

    id: str
    rank: int | None
    host: str
    pid: int
    step: int | None
    obeys: bool
    text: str
    stage: str = ""
    windows: tuple[ArmedStatus, ...] = ()


class OrderResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result, as far as it is shown."""

    outcome: str
    reason: str = ""
    first: int | None = None
    last: int | None = None
    ranks: list[OrderedRank]


def send_order(given: argparse.Namespace, order: dict[str, Any]) -> OrderResult:
    """Sends it; returns what became of it.

    Raises:
        ControlError: if the collector cannot be reached, refuses, or answers what cannot be read.
    """
    try:
        address = Address(given.url, given.token_file, insecure=given.insecure)
        headers = address.headers()
    except (ValueError, OSError) as error:
        raise ControlError(str(error)) from error
    parts = urlsplit(address.url)
    base = parts.path.removesuffix("/v1/stream").rstrip("/")
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    url = urlunsplit((scheme, parts.netloc, base + PATH, "", ""))
    body = json.dumps({name: value for name, value in order.items() if value is not None}).encode()
    request = urllib.request.Request(
        url, body, {**headers, "Content-Type": "application/json", "User-Agent": "stepscope"}, method="POST"
    )
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if scheme == "https":
        try:
            tls = client_tls.context(given)
        except ValueError as error:
            raise ControlError(str(error)) from error
        handlers.append(urllib.request.HTTPSHandler(context=tls))
    if address.is_local:
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=12 * given.timeout) as response:
            content: bytes = response.read(MOST_BYTES)
        return msgspec.json.decode(content, type=OrderResult)
    except urllib.error.HTTPError as error:
        with error:
            if 300 <= error.code < 400:
                said = redirected(error.headers.get("Location", ""))
                raise ControlError(f"{given.url} answered {error.code}, {said}") from error
            raise ControlError(f"the collector at {given.url} refuses: {_detail(error)}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if scheme == "https":
            reason = wants_plain(reason, "ws") or reason
        elif isinstance(error, http.client.BadStatusLine):  # or none at all
            reason = wants_tls("wss")
        raise ControlError(f"the collector at {given.url} cannot be reached: {reason}") from error
    except msgspec.MsgspecError as error:
        raise ControlError(f"the answer of {given.url} cannot be read: {error}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is shown to nobody else than who was named."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        found = json.loads(error.read(MOST_BYTES))
        return f"{error.code}, {found['detail'] or found['title']}"
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
