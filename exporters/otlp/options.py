"""Settings of the OTLP exporter: its options, and where requests go according to arguments and the environment."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

import msgspec

from stepscope.exporters.stream.address import is_local
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked

log = logging.getLogger("stepscope")

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]

Headers: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""Names and values, or what returns them."""
Signal: TypeAlias = Literal["traces", "metrics"]
"""Kinds of data in requests."""

DEFAULT = "http://localhost:4318"
PREFIX = "OTEL_EXPORTER_OTLP_"

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HOST = re.compile(r"[\w.-]{1,100}:\d{1,5}")
"""A host and port, where the scheme was forgotten."""
_UNPRINTABLE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
_SECRET = re.compile(r"auth|token|key|secret|passw|cookie|credential", re.IGNORECASE)
"""Found in the name of a header or parameter whose value is probably a secret."""
_RESERVED = {"content-type", "content-encoding", "content-length", "transfer-encoding", "host", "connection"}


class OtlpOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of an OTLP exporter; unknown fields are refused. Sizes in bytes, times in seconds.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    service_name: str | None = None
    """`service.name`; default: OTEL_SERVICE_NAME in the environment, else the name of the run."""
    resource: Mapping[str, str | bool | int | float] = {}
    """Further attributes of the resource. They replace those of OTEL_RESOURCE_ATTRIBUTES, which replace the exporter's own."""
    categories: tuple[str, ...] | None = None
    """Categories of which events are sent; `None`: all but those of `leave_out`. Steps are always sent."""
    leave_out: tuple[str, ...] = ("python_function", "cpu_instant_event")
    """Categories of which nothing is sent: by default Python frames and memory events, which are too many for a store."""
    names: tuple[str, ...] | None = None
    """Patterns as of a shell (`aten::*`), one of which the name of an event must match; `None`: any name."""
    min_duration: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Spans that are shorter are not sent."""
    spans_per_second: Annotated[float, msgspec.Meta(gt=0)] | None = 1000.0
    """Most spans for each second of recorded time; the longest are sent. Samples of counters have a limit of the same size.
    `None`: all are sent, which few stores stand."""
    metrics: bool = True
    """Whether counters and the durations of steps are sent as metrics. Receivers of traces alone refuse them."""
    compression: Literal["gzip", "none"] | None = None
    """Default: OTEL_EXPORTER_OTLP_COMPRESSION in the environment, else gzip."""
    timeout: Seconds | None = None
    """Limit for one attempt to send; default: OTEL_EXPORTER_OTLP_TIMEOUT in the environment, else 10."""
    retry_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0
    """How long a request is tried again that failed in a way that may pass."""
    first_delay: Annotated[float, msgspec.Meta(ge=0.001, le=60)] = 0.5
    """Longest delay before the second attempt. It doubles for each further attempt, and is drawn from its upper half. A
    receiver that says when to come again (`Retry-After`) is obeyed instead."""
    longest_delay: Annotated[float, msgspec.Meta(ge=0.001, le=600)] = 15.0
    """The delay does not grow beyond this."""
    closing_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 1.0
    """How long a receiver that fails may hold up the end of the run. Requests that it has not accepted by then are dropped, and
    counted. One that takes requests is sent everything, as far as the deadline for closing allows."""
    batch_spans: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 512
    """Most spans, or points of metrics, of one request."""
    batch_bytes: Annotated[int, msgspec.Meta(ge=1024, le=64 << 20)] = 1 << 20
    """Most bytes of one request before compression; only a single span may be larger."""
    hold_events: Annotated[int, msgspec.Meta(ge=1)] = 262_144
    """Most events that wait for the end of their step. Beyond that they are sent at once: a span whose parent has not ended
    becomes a child of its step then."""
    hold_seconds: Seconds = 10.0
    """How long they wait at most, in recorded time."""
    certificate: str | None = None
    """File of certificates to trust instead of the system's; default: OTEL_EXPORTER_OTLP_CERTIFICATE in the environment."""
    client_certificate: str | None = None
    """The exporter's own, for receivers that ask; default: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE."""
    client_key: str | None = None
    """Its key, if that is in another file; default: OTEL_EXPORTER_OTLP_CLIENT_KEY."""
    insecure: bool = False
    """Whether headers and parameters that look like a secret (Authorization, keys, tokens, cookies) may go to another machine
    over `http:`, where others can read them; also OTEL_EXPORTER_OTLP_INSECURE in the environment. Traces without such headers go
    there in any case, as receivers inside a cluster often have no certificate: a warning says so unless this is set."""
    verify: bool = True
    """Whether the receiver's certificate is checked. Without that anybody between may read headers and traces."""


class Target:
    """URL, headers, timeout and certificates of one signal. Only `url` and `headers` show secrets.

    The variables of the environment have the meaning that OpenTelemetry specifies ("OpenTelemetry Protocol Exporter").
    """

    def __init__(self, signal: Signal, endpoint: str | None, headers: Headers | None, options: OtlpOptions):
        """
        Args:
            signal: what is sent there.
            endpoint: URL of the receiver without `/v1/traces`; default: from the environment.
            headers: added to those of the environment, and replace those of the same name.
            options: they replace variables of the environment.

        Raises:
            ValueError: if one of these, or a variable, cannot be used; says which and what to do, and shows no secret.
        """
        self.url = _url(signal, endpoint)
        self._signal: Signal = signal
        self._headers: Headers = headers or {}
        self.encrypted = self.url.startswith("https:")
        host = urlsplit(self.url).hostname or ""
        allowed = options.insecure or _variable("INSECURE", signal).lower() == "true"
        self.clear_text_host = "" if self.encrypted or allowed or is_local(host) else host
        """The other machine that everything goes to over `http:`, unless a setting allows that."""
        self.headers = self._current_headers()
        """Headers by their names in lower case."""
        self._before: dict[str, str] = {}
        """The headers before the last change."""
        compression = options.compression or _variable("COMPRESSION", signal) or "gzip"
        if compression not in ("gzip", "none"):
            raise ValueError(f"{PREFIX}COMPRESSION is {compression!r}: use gzip or none")
        self.gzip = compression == "gzip"
        self.timeout = options.timeout or _timeout(signal)
        self.certificate = options.certificate or _variable("CERTIFICATE", signal) or None
        self.client_certificate = options.client_certificate or _variable("CLIENT_CERTIFICATE", signal) or None
        self.client_key = options.client_key or _variable("CLIENT_KEY", signal) or None

    def renew_headers(self) -> bool:
        """Reads the headers again, as a token may have expired. Returns whether there are others now.

        Raises:
            ValueError: as the constructor; and whatever the program's function raises.
        """
        self._before, self.headers = self.headers, self._current_headers()
        return self.headers != self._before

    def _current_headers(self) -> dict[str, str]:
        more = self._headers() if callable(self._headers) else self._headers
        if not isinstance(more, Mapping):
            raise TypeError(f"headers must return a mapping of names to values, got {type(more).__name__}")
        headers: dict[str, str] = {}
        for name, value in [*_headers_from_environment(self._signal), *more.items()]:
            _check_header(name, value)
            headers[name.lower()] = value
        self._refuse_secrets_in_clear_text(headers)
        return headers

    def _refuse_secrets_in_clear_text(self, headers: Mapping[str, str]) -> None:
        if not self.clear_text_host:
            return
        secret = [f"the header {name!r}" for name in headers if _SECRET.search(name)]
        secret += [f"the parameter {name!r}" for name, _ in parse_qsl(urlsplit(self.url).query) if _SECRET.search(name)]
        if secret:
            raise ValueError(
                f"{' and '.join(secret)} would go to {self.clear_text_host} over http:, where others can read it; use https://, "
                f"or allow it with OtlpOptions(insecure=True) or {PREFIX}INSECURE=true"
            )

    def __str__(self) -> str:
        """The URL without its query, which may hold a key."""
        return urlunsplit(urlsplit(self.url)._replace(query=""))

    __repr__ = __str__

    def redact(self, text: str) -> str:
        """Returns the text without the values of the headers and the query, which a receiver may repeat."""
        query = urlsplit(self.url).query
        values = (*self.headers.values(), *self._before.values(), query)
        secrets = [part for value in values for part in (value, *value.split()) if len(part) > 3]
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def make_targets(endpoint: str | None, headers: Headers | None, options: OtlpOptions) -> dict[Signal, Target]:
    """Makes the targets of all signals that are sent. Warns if they are on another machine and reached over `http:`.

    Raises:
        ValueError: as `Target`.
    """
    signals: tuple[Signal, ...] = ("traces", "metrics") if options.metrics else ("traces",)
    targets: dict[Signal, Target] = {signal: Target(signal, endpoint, headers, options) for signal in signals}
    for host in sorted({target.clear_text_host for target in targets.values()} - {""}):
        log.warning(
            "traces go to %s over http:, where others can read them; use https://, or allow it with "
            "OtlpOptions(insecure=True) or %sINSECURE=true",
            host,
            PREFIX,
        )
    return targets


def _variable(name: str, signal: Signal) -> str:
    """A variable `OTEL_EXPORTER_OTLP_...`; that of the signal goes before the general one. Empty if neither is set."""
    return _raw_variable(f"{signal.upper()}_{name}") or _raw_variable(name)


def _raw_variable(name: str) -> str:
    return os.environ.get(PREFIX + name, "").strip()


def _url(signal: Signal, endpoint: str | None) -> str:
    if endpoint is not None:
        return _with_path(_parse_url(endpoint, "endpoint"), signal)
    protocol = _variable("PROTOCOL", signal) or "http/protobuf"
    own, general = _raw_variable(f"{signal.upper()}_ENDPOINT"), _raw_variable("ENDPOINT")
    if protocol != "http/protobuf" and (own or general):
        raise ValueError(
            f"{PREFIX}PROTOCOL is {protocol!r}, so the endpoint in the environment is for that; this exporter speaks "
            f"http/protobuf: pass endpoint=, as {DEFAULT!r}"
        )
    if own:  # used as it is; only an empty path becomes the root
        parts = _parse_url(own, f"{PREFIX}{signal.upper()}_ENDPOINT")
        return urlunsplit(parts._replace(path=parts.path or "/"))
    return _with_path(_parse_url(general or DEFAULT, f"{PREFIX}ENDPOINT"), signal)


def _with_path(parts: SplitResult, signal: Signal) -> str:
    path = parts.path.rstrip("/")
    for other in ("traces", "metrics", "logs"):
        path = path.removesuffix(f"/v1/{other}")
    return urlunsplit(parts._replace(path=f"{path}/v1/{signal}"))


def _parse_url(url: str, what: str) -> SplitResult:
    if not isinstance(url, str):
        raise TypeError(f"{what} must be a URL such as {DEFAULT!r}, {got(url)}")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good, parts = False, SplitResult("", "", "", "", "")
    if "@" in parts.netloc:
        raise ValueError(f"{what} has a user name or password: URLs are shown in logs; use the header Authorization")
    if not good or not url.isprintable() or " " in url:
        shown = url.partition("?")[0].rpartition("@")[2]
        likely = f"; did you mean {f'http://{shown}'!r}?" if _HOST.fullmatch(shown) else ""
        raise ValueError(f"{what} must be a URL such as {DEFAULT!r}, got {shown!r}{likely}")
    return parts._replace(fragment="")


def _headers_from_environment(signal: Signal) -> list[tuple[str, str]]:
    """`name=value,name=value`, percent-encoded. Those of all signals come first."""
    headers: list[tuple[str, str]] = []
    for name in ("HEADERS", f"{signal.upper()}_HEADERS"):
        for part in _raw_variable(name).split(","):
            key, equals, value = part.partition("=")
            if not part.strip():
                continue
            if not equals:
                raise ValueError(f"{PREFIX}{name} must be a list name=value,name=value; a part of it has no '='")
            headers.append((unquote(key.strip()), unquote(value.strip())))
    return headers


def _check_header(name: object, value: object) -> None:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"a header's name must be of letters, digits and dashes, got {name!r}")
    if name.lower() in _RESERVED:
        raise ValueError(f"the header {name!r} is set by the exporter itself: leave it out")
    if not isinstance(value, str) or _UNPRINTABLE.search(value):
        raise ValueError(f"the value of header {name!r} must be text without line breaks and of Latin letters")


def _timeout(signal: Signal) -> float:
    text = _variable("TIMEOUT", signal)
    if not text:
        return 10.0
    if not text.isdigit() or int(text) == 0:
        raise ValueError(f"{PREFIX}TIMEOUT is {text!r}: it must be a number of milliseconds above 0")
    return int(text) / 1000
