"""Posts requests, and posts them again where that may help."""

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

import aiohttp
import anyio
import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.otlp.request import Request
from stepscope.exporters.otlp.retry import RETRYABLE, Backoff, retry_after
from stepscope.exporters.otlp.target import Target
from stepscope.exporters.redirects import redirected
from stepscope.exporters.tls_mismatch import wants_plain, wants_tls
from stepscope.runtime.display.text_table import printable
from stepscope.runtime.errors import BrokenError
from stepscope.runtime.version import VERSION

log = logging.getLogger("stepscope")

MOST_ANSWER = 65_536
"""Bytes that are read of an answer; a receiver says less."""

PROTOBUF = "application/x-protobuf"


class Refused(BrokenError):
    """Raised when a receiver will not take a request, however often it is sent."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unreached(BrokenError):
    """Raised when a request could not be delivered in the time that there is for trying."""


class _Later(Exception):
    """An attempt failed in a way that may pass."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class _Answer(msgspec.Struct, frozen=True):
    """What a receiver answered, as far as it was read."""

    status: int
    wait: float | None
    """Seconds that it asks to wait."""
    body: bytes
    unread: str
    """Why that is not all of it; empty if it is."""


class Sender:
    """Posts to one target, one request at a time, on the loop that runs it.

    What it raises names the target without secrets, and no answer is believed to hold none.
    """

    def __init__(self, target: Target, options: OtlpOptions) -> None:
        self.target = target
        self._options = options
        self._backoff = Backoff(options.first_delay, options.longest_delay)
        self._not_before = 0.0
        self._asked = False
        """Whether it is the receiver that wants no request before."""
        self._failure = ""
        """How the last attempt failed; empty if it did not."""
        self._answered = False
        self._closing = False
        self._given_up_at = math.inf
        """When nothing is tried any more, as the run ends and the receiver fails."""
        self._hurry = anyio.Event()
        self._scope = anyio.CancelScope()
        self._session: aiohttp.ClientSession | None = None
        self._warned = False

    async def open(self) -> None:
        """Prepares to connect; connects later, and again whenever need be.

        Raises:
            OSError: if files of certificates cannot be read.
        """
        context = _tls(self.target, self._options) if self.target.encrypted else None
        headers = {
            "User-Agent": f"stepscope-otlp/{VERSION}",
            "Content-Type": PROTOBUF,
            "Accept": PROTOBUF,
            "Accept-Encoding": "identity",
            **({"Content-Encoding": "gzip"} if self.target.gzip else {}),
            **self.target.headers,
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
        """Posts until the receiver has it, which its status says: one of 2xx that comes with an answer that cannot be read,
        is not whole or is longer than `MOST_ANSWER` is a success all the same, and a warning the first time.

        Returns:
            How many spans or points of it the receiver says that it rejected; 0 if it cannot be read what it says.

        Raises:
            Refused: if the receiver answered that it does not want it.
            Unreached: if it did not get through within `OtlpOptions.retry_seconds`, or `closing_seconds` at the end.
        """
        if anyio.current_time() < self._given_up_at:
            with anyio.CancelScope(deadline=self._given_up_at) as self._scope:
                return min(self._rejected(request, await self._taken(request)), request.parts)
        raise Unreached(f"{self.target}: {self._failure}; given up as the run ends")

    def closing(self) -> None:
        """The run ends: a receiver that fails is tried at once, and for `OtlpOptions.closing_seconds` from now on."""
        self._closing = True
        if self._failure:
            self._give_up_soon()
            if not self._asked:
                self._backoff.reset()
                self._not_before = 0.0
            self._hurry.set()
            self._hurry = anyio.Event()

    def _give_up_soon(self) -> None:
        self._given_up_at = min(self._given_up_at, anyio.current_time() + self._options.closing_seconds)
        self._scope.deadline = self._given_up_at

    def _rejected(self, request: Request, answer: _Answer) -> int:
        found = rejected(request, answer.body)
        if found is None or answer.unread:
            self._warn(answer.unread or f"it is no answer of OTLP to {request.signal}")
        return found or 0

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "%s took a request, but what it answered cannot be read: %s. What it rejects without our knowing counts as "
                "exported; see that it is a receiver of OTLP. Said once",
                self.target,
                why,
            )

    async def _taken(self, request: Request) -> _Answer:
        """The answer of a receiver that has taken a request, however often that is posted."""
        body = gzip.compress(request.body, 4, mtime=0) if self.target.gzip else request.body
        deadline = anyio.current_time() + self._options.retry_seconds
        while True:
            # What a receiver asked for holds for what comes after the request, too.
            if self._asked and self._not_before >= deadline:
                tried = f"not tried: it is to come again in {self._not_before - anyio.current_time():.0f} s"
                raise Unreached(f"{self.target}: {self._failure}; {tried}")
            while (left := min(self._not_before, deadline) - anyio.current_time()) > 0:
                with anyio.move_on_after(left):
                    await self._hurry.wait()
            try:
                answer = await self._post(body)
            except _Later as failure:
                self._failure, self._asked = str(failure), failure.wait is not None
                if self._closing:
                    self._give_up_soon()
                wait = self._backoff.delay() if failure.wait is None else failure.wait
                self._not_before = anyio.current_time() + wait
                if self._not_before >= deadline:
                    tried = f"given up after {self._options.retry_seconds:g} s of trying"
                    raise Unreached(f"{self.target}: {failure}; {tried}") from None
            except Refused:
                self._reached()
                raise
            else:
                self._backoff.reset()
                self._reached()
                return answer

    def _reached(self) -> None:
        self._failure, self._given_up_at = "", math.inf

    async def _post(self, body: bytes) -> _Answer:
        if self._session is None:
            raise _Later("closed")
        failure: Exception
        try:
            # Not as bytes: the client warns of more than a megabyte of them, and writes them to the connection all at once.
            data = io.BytesIO(body)
            async with self._session.post(
                self.target.url, data=data, allow_redirects=False, proxy=_proxy(self.target.url)
            ) as response:
                self._answered = True
                answer = await self._read(response)
        except aiohttp.ClientConnectorCertificateError:
            failure = Refused(
                0, f"{self.target}: its certificate is not trusted; name yours in OtlpOptions.certificate"
            )
        except aiohttp.ClientSSLError as error:
            said = wants_plain(getattr(error, "os_error", None), "http")
            failure = Refused(0, f"{self.target}: {said or f'no TLS with it: {self._error_text(error)}'}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = _Later(self._error_text(error))
        else:
            status = answer.status
            if 200 <= status < 300:
                return answer
            said = f"{status} {_phrase(status)}{detail(self.target.redact(answer.body.decode('latin-1')))}"
            if 300 <= status < 400:
                said += f"; {self.target.redact(redirected(response.headers.get('Location', '')))}"
            failure = _Later(said, answer.wait) if status in RETRYABLE else Refused(status, f"{self.target}: {said}")
        raise failure from None  # errors of the client may hold headers

    async def _read(self, response: aiohttp.ClientResponse) -> _Answer:
        """The rest of an answer. What fails from here on fails no request: its status has come, and that decides."""
        body, unread = bytearray(), ""
        try:
            async for part in response.content.iter_any():
                body += part
                if len(body) > MOST_ANSWER:
                    unread = f"it is longer than {MOST_ANSWER:,} bytes"
                    break
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            unread = f"the rest of it did not come: {self._error_text(error)}"
        if unread:
            response.close()  # the connection is of no further use
        wait = retry_after(response.headers.get("Retry-After"), time.time())
        return _Answer(response.status, wait, bytes(body[:MOST_ANSWER]), unread)

    def _error_text(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self.target.timeout:g} s"
        if isinstance(error, aiohttp.ClientConnectorError):  # its text speaks of TLS, whatever the URL says
            system = error.os_error
            # Those of the system have a number above 0, and a text of asyncio's; those of its resolver a text only.
            number = system.errno or 0
            why = os.strerror(number) if number > 0 else system.strerror
            return self.target.redact(printable(f"cannot connect to {error.host}:{error.port}: {why or system}")[:200])
        if isinstance(error, aiohttp.ServerDisconnectedError) and not (self.target.encrypted or self._answered):
            return wants_tls("https")
        if isinstance(error, aiohttp.InvalidURL):  # ours was looked at; its text is the URL, perhaps with a password
            return "the proxy that the environment names is none: it must be a URL such as http://host:port"
        if isinstance(error, aiohttp.ClientResponseError):  # its text has the URL of a proxy, perhaps with a password
            return self.target.redact(printable(f"{error.status} {error.message}")[:200])
        return self.target.redact(printable(str(error) or type(error).__name__)[:200])


def rejected(request: Request, answer: bytes) -> int | None:
    """What an answer says was rejected; `None` if it is no answer of the protocol."""
    try:
        if request.signal == "traces":
            return max(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans, 0)
        return max(ExportMetricsServiceResponse.FromString(answer).partial_success.rejected_data_points, 0)
    except DecodeError:
        return None


def detail(answer: str) -> str:
    """A colon and the beginning of what an answer says, without what a terminal would obey; empty if it says nothing."""
    words = "".join(c if c.isprintable() and c.isascii() else " " for c in answer).split()
    text = " ".join(words)[:200]
    return f": {text}" if text else ""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "unknown"


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
