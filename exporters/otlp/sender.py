"""Posts requests over HTTP, and posts them again where that may help."""

from __future__ import annotations

import gzip
import io
import logging
import math
import os
import ssl
import time
import urllib.request
from http import HTTPStatus
from http.client import responses

import aiohttp
import anyio
import anyio.to_thread
import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from stepscope.exporters.network.backoff import Backoff, parse_retry_after
from stepscope.exporters.network.http_failures import redirected, wants_plain, wants_tls
from stepscope.exporters.otlp.encoding import Request
from stepscope.exporters.otlp.options import OtlpOptions, Signal, Target
from stepscope.runtime.display.text_table import printable
from stepscope.runtime.errors import BrokenError
from stepscope.runtime.version import VERSION

log = logging.getLogger("stepscope")

RETRYABLE = frozenset({429, 502, 503, 504})
"""The status codes after which a request may be sent again (OTLP specification, "Retryable Response Codes")."""
MAX_RESPONSE = 65_536
"""Bytes that are read of a response; receivers send fewer."""
PROTOBUF = "application/x-protobuf"


class Refused(BrokenError):
    """Raised when a receiver rejects a request in a way that repeating it does not change."""

    def __init__(self, status: int, message: str) -> None:
        """Args: the status of HTTP, 0 if TLS failed; what happened."""
        super().__init__(message)
        self.status = status


class _Retryable(Exception):
    """An attempt failed in a way that may pass."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class _Response(msgspec.Struct, frozen=True):
    """The answer of a receiver, as far as it was read."""

    status: int
    retry_after: float | None
    """Seconds that it asks to wait."""
    body: bytes
    incomplete: str
    """Why the rest of the body was not read; empty if there is no rest."""


class Sender:
    """Posts to one target, one request at a time, on the loop that runs it.

    Errors show the target without secrets, and responses, which may repeat secrets, redacted.
    """

    def __init__(self, target: Target, options: OtlpOptions) -> None:
        self.target = target
        self._options = options
        self._backoff = Backoff(options.first_delay, options.longest_delay)
        self._not_before = 0.0
        self._throttled = False
        """Whether the receiver asked for no request before then."""
        self._failure = ""
        """The reason why the last attempt failed; empty if it succeeded."""
        self._has_answered = False
        self._closing = False
        self._close_deadline = math.inf
        """Time at which attempts end, if the run ends while the receiver fails."""
        self._retry_now = anyio.Event()
        self._scope = anyio.CancelScope()
        self._session: aiohttp.ClientSession | None = None
        self._warned = False

    async def open(self) -> None:
        """Prepares to connect; connects when there is something to send, and again whenever need be. Raises `OSError`
        if files of certificates cannot be read."""
        context = _tls(self.target, self._options) if self.target.encrypted else None
        headers = {
            "User-Agent": f"stepscope-otlp/{VERSION}",
            "Content-Type": PROTOBUF,
            "Accept": PROTOBUF,
            "Accept-Encoding": "identity",
            **({"Content-Encoding": "gzip"} if self.target.gzip else {}),
        }
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, ssl=context if context is not None else True),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=self.target.timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def aclose(self) -> None:
        """Closes connections; may be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, request: Request) -> int:
        """Posts until the receiver has accepted the request. Any status 2xx means that it has; a warning says once if the
        rest of the response cannot be read.

        Returns:
            How many parts of it the receiver says that it rejected; 0 if the response cannot be read.

        Raises:
            Refused: if the receiver rejects the request.
            BrokenError: if no attempt succeeded within `OtlpOptions.retry_seconds`, or `closing_seconds` at the end.
        """
        if anyio.current_time() >= self._close_deadline:
            raise BrokenError(f"{self.target}: {self._failure}; given up as the run ends")
        with anyio.CancelScope(deadline=self._close_deadline) as self._scope:
            response = await self._post_until_accepted(request)
            rejected = count_rejected(request.signal, response.body)
            if rejected is None or response.incomplete:
                self._warn(response.incomplete or f"it is no answer of OTLP to {request.signal}")
            return min(rejected or 0, len(request.parts))
        raise BrokenError(f"{self.target}: {self._failure}; given up as the run ends")

    def closing(self) -> None:
        """The run ends: a receiver that fails is tried at once, and for `OtlpOptions.closing_seconds` from now on."""
        self._closing = True
        if self._failure:
            self._limit_attempts()
            if not self._throttled:
                self._backoff.reset()
                self._not_before = 0.0
            self._retry_now.set()
            self._retry_now = anyio.Event()

    def _limit_attempts(self) -> None:
        self._close_deadline = min(self._close_deadline, anyio.current_time() + self._options.closing_seconds)
        self._scope.deadline = self._close_deadline

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "%s accepted a request, but its answer cannot be read: %s. Events that it may have rejected count as exported; check "
                "that it is a receiver of OTLP. No further warning follows",
                self.target,
                reason,
            )

    async def _post_until_accepted(self, request: Request) -> _Response:
        body = request.encode()
        if self.target.gzip:
            body = gzip.compress(body, 4, mtime=0)
        deadline = anyio.current_time() + self._options.retry_seconds
        renewed = False
        while True:
            # A delay that a receiver asked for applies to the requests that follow, too.
            if self._throttled and self._not_before >= deadline:
                tried = f"not tried: it is to come again in {self._not_before - anyio.current_time():.0f} s"
                raise BrokenError(f"{self.target}: {self._failure}; {tried}")
            while (remaining := min(self._not_before, deadline) - anyio.current_time()) > 0:
                with anyio.move_on_after(remaining):
                    await self._retry_now.wait()
            try:
                response = await self._post(body)
            except _Retryable as failure:
                self._failure, self._throttled = str(failure), failure.retry_after is not None
                if self._closing:
                    self._limit_attempts()
                self._not_before = anyio.current_time() + self._backoff.delay(failure.retry_after)
                if self._not_before >= deadline:
                    tried = f"given up after {self._options.retry_seconds:g} s of trying"
                    raise BrokenError(f"{self.target}: {failure}; {tried}") from None
            except Refused as refused:
                if refused.status == HTTPStatus.UNAUTHORIZED and not renewed and await self._renew_headers():
                    renewed = True
                    continue
                self._failure, self._close_deadline = "", math.inf
                raise
            else:
                self._backoff.reset()
                self._failure, self._close_deadline = "", math.inf
                return response

    async def _renew_headers(self) -> bool:
        """Whether there are other headers now, with which the receiver may take a request."""
        try:
            return await anyio.to_thread.run_sync(self.target.renew_headers)
        except Exception as error:  # of the program; its text may have a secret
            log.warning("%s: the headers cannot be read again: %s", self.target, type(error).__name__)
            return False

    async def _post(self, body: bytes) -> _Response:
        if self._session is None:
            raise _Retryable("closed")
        failure: Exception
        try:
            # Not as bytes: the client warns of more than a megabyte of them, and writes them to the connection all at once.
            data = io.BytesIO(body)
            async with self._session.post(
                self.target.url,
                data=data,
                headers=self.target.headers,
                allow_redirects=False,
                proxy=_proxy(self.target.url),
            ) as http:
                self._has_answered = True
                response = await self._read(http)
        except aiohttp.ClientConnectorCertificateError:
            failure = Refused(
                0, f"{self.target}: its certificate is not trusted; name yours in OtlpOptions.certificate"
            )
        except aiohttp.ClientSSLError as error:
            reason = wants_plain(getattr(error, "os_error", None), "http")
            failure = Refused(0, f"{self.target}: {reason or f'no TLS with it: {self._error_text(error)}'}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = _Retryable(self._error_text(error))
        else:
            status = response.status
            if 200 <= status < 300:
                return response
            reason = f"{status} {responses.get(status, 'unknown')}{excerpt(self.target.redact(response.body.decode('latin-1')))}"
            if 300 <= status < 400:
                reason += f"; {self.target.redact(redirected(http.headers.get('Location', '')))}"
            retryable = status in RETRYABLE
            failure = (
                _Retryable(reason, response.retry_after) if retryable else Refused(status, f"{self.target}: {reason}")
            )
        raise failure from None  # errors of the client may hold headers

    async def _read(self, http: aiohttp.ClientResponse) -> _Response:
        """The rest of a response. Errors from here on fail no request: its status has arrived, and decides."""
        body, incomplete = bytearray(), ""
        try:
            async for chunk in http.content.iter_any():
                body += chunk
                if len(body) > MAX_RESPONSE:
                    incomplete = f"it is longer than {MAX_RESPONSE:,} bytes"
                    break
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            incomplete = f"the rest of it did not come: {self._error_text(error)}"
        if incomplete:
            http.close()  # the connection is of no further use
        retry_after = parse_retry_after(http.headers.get("Retry-After"), time.time())
        return _Response(http.status, retry_after, bytes(body[:MAX_RESPONSE]), incomplete)

    def _error_text(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self.target.timeout:g} s"
        if isinstance(error, aiohttp.ServerDisconnectedError) and not (self.target.encrypted or self._has_answered):
            return wants_tls("https")
        if isinstance(error, aiohttp.InvalidURL):  # the target's was checked; its text may have a password
            return "the proxy that the environment names is none: it must be a URL such as http://host:port"
        text = str(error) or type(error).__name__
        if isinstance(error, aiohttp.ClientConnectorError):  # its text mentions TLS, whatever the URL is
            system = error.os_error
            # Errors of the system have a number above 0 and asyncio's text; those of the resolver have a text only.
            number = system.errno or 0
            reason = os.strerror(number) if number > 0 else system.strerror
            text = f"cannot connect to {error.host}:{error.port}: {reason or system}"
        elif isinstance(error, aiohttp.ClientResponseError):  # its text has the URL of a proxy, perhaps with a password
            text = f"{error.status} {error.message}"
        return self.target.redact(printable(text)[:200])


def count_rejected(signal: Signal, body: bytes) -> int | None:
    """Returns how many parts a response says were rejected; `None` if it is no response of the protocol."""
    try:
        if signal == "traces":
            return max(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans, 0)
        return max(ExportMetricsServiceResponse.FromString(body).partial_success.rejected_data_points, 0)
    except DecodeError:
        return None


def excerpt(text: str) -> str:
    """Returns a colon and the printable beginning of a response's text; empty if it has none."""
    shown = " ".join("".join(c if c.isprintable() and c.isascii() else " " for c in text).split())[:200]
    return f": {shown}" if shown else ""


def _tls(target: Target, options: OtlpOptions) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=target.certificate)
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if target.client_certificate is not None:
        context.load_cert_chain(target.client_certificate, target.client_key)
    return context


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for a URL (`HTTPS_PROXY`, `NO_PROXY`, ...)."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    return None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme)
