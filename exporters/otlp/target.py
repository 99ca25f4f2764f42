"""Where OTLP goes: URLs, headers and the variables of the environment that say so.

Variables and their meaning: "OpenTelemetry Protocol Exporter" of the OpenTelemetry specification.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.stream.address import is_local
from stepscope.runtime.settings.arguments import got

log = logging.getLogger("stepscope")

Signal: TypeAlias = Literal["traces", "metrics"]
"""What a request carries."""

DEFAULT = "http://localhost:4318"
PREFIX = "OTEL_EXPORTER_OTLP_"

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HOST = re.compile(r"[\w.-]{1,100}:\d{1,5}")
"""A host and port, where the scheme was forgotten."""
_UNPRINTABLE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
_SECRET = re.compile(r"auth|token|key|secret|passw|cookie|credential", re.IGNORECASE)
"""In the name of a header or parameter whose value is probably a secret."""
_OURS = {"content-type", "content-encoding", "content-length", "transfer-encoding", "host", "connection"}


def variable(name: str, signal: Signal | None = None) -> str:
    """A variable `OTEL_EXPORTER_OTLP_...`; that of the signal goes before the general one. Empty if not set."""
    own = os.environ.get(f"{PREFIX}{signal.upper()}_{name}", "").strip() if signal else ""
    return own or os.environ.get(PREFIX + name, "").strip()


class Target:
    """URL, headers and files of one signal. Secrets are in no text that this gives but `headers`."""

    def __init__(self, signal: Signal, endpoint: str | None, headers: Mapping[str, str] | None, options: OtlpOptions):
        """
        Args:
            signal: what is sent there.
            endpoint: URL below which receivers are; default: from the environment.
            headers: beside those from the environment, which they replace where both have a name.
            options: for what else the environment may say.

        Raises:
            ValueError: if one of these, or a variable, cannot be used; says which and what to do, and names no secret.
        """
        self.signal: Signal = signal
        self.url = _url(signal, endpoint)
        self.headers: dict[str, str] = {}
        """Names in lower case."""
        for name, value in [*_named(signal), *(headers or {}).items()]:
            _check_header(name, value)
            self.headers[name.lower()] = value
        self.clear_text_host = ""
        """The other machine that everything goes to over `http:`, if nobody allowed that."""
        self._refuse_secrets_in_clear_text(options)
        compression = options.compression or variable("COMPRESSION", signal) or "gzip"
        if compression not in ("gzip", "none"):
            raise ValueError(f"{PREFIX}COMPRESSION is {compression!r}: use gzip or none")
        self.gzip = compression == "gzip"
        self.timeout = options.timeout or _timeout(signal)
        self.certificate = options.certificate or variable("CERTIFICATE", signal) or None
        self.client_certificate = options.client_certificate or variable("CLIENT_CERTIFICATE", signal) or None
        self.client_key = options.client_key or variable("CLIENT_KEY", signal) or None

    def _refuse_secrets_in_clear_text(self, options: OtlpOptions) -> None:
        host = urlsplit(self.url).hostname or ""
        if self.encrypted or is_local(host) or options.insecure or variable("INSECURE", self.signal).lower() == "true":
            return
        self.clear_text_host = host
        secret = [f"the header {name!r}" for name in self.headers if _SECRET.search(name)]
        secret += [f"the parameter {name!r}" for name, _ in parse_qsl(urlsplit(self.url).query) if _SECRET.search(name)]
        if secret:
            raise ValueError(
                f"{' and '.join(secret)} would go to {host} over http:, where others can read it; use https://, or allow it with "
                f"OtlpOptions(insecure=True) or {PREFIX}INSECURE=true"
            )

    @property
    def encrypted(self) -> bool:
        """Whether it is spoken to by TLS."""
        return self.url.startswith("https:")

    def __str__(self) -> str:
        """The URL without its query, which may hold a key."""
        return urlunsplit(urlsplit(self.url)._replace(query=""))

    __repr__ = __str__

    def redact(self, text: str) -> str:
        """A text from elsewhere without the values of our headers, should it hold any."""
        query = urlsplit(self.url).query
        secrets = [
            part for value in (*self.headers.values(), query) for part in (value, *value.split()) if len(part) > 3
        ]
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def _url(signal: Signal, endpoint: str | None) -> str:
    if endpoint is not None:
        return _below(_checked(endpoint, "endpoint"), signal)
    protocol = variable("PROTOCOL", signal) or "http/protobuf"
    own = os.environ.get(f"{PREFIX}{signal.upper()}_ENDPOINT", "").strip()
    general = os.environ.get(f"{PREFIX}ENDPOINT", "").strip()
    if protocol != "http/protobuf" and (own or general):
        raise ValueError(
            f"{PREFIX}PROTOCOL is {protocol!r}, so the endpoint in the environment is for that; this exporter speaks "
            f"http/protobuf: pass endpoint=, as {DEFAULT!r}"
        )
    if own:  # used as it is; only an empty path becomes the root
        parts = _checked(own, f"{PREFIX}{signal.upper()}_ENDPOINT")
        return urlunsplit(parts._replace(path=parts.path or "/"))
    return _below(_checked(general or DEFAULT, f"{PREFIX}ENDPOINT"), signal)


def _below(parts: SplitResult, signal: Signal) -> str:
    path = parts.path.rstrip("/")
    for other in ("traces", "metrics", "logs"):
        path = path.removesuffix(f"/v1/{other}")
    return urlunsplit(parts._replace(path=f"{path}/v1/{signal}"))


def _checked(url: str, what: str) -> SplitResult:
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


def _named(signal: Signal) -> list[tuple[str, str]]:
    """Headers from the environment, those of all signals first: `name=value,name=value`, percent-encoded."""
    headers: list[tuple[str, str]] = []
    for name in (f"{PREFIX}HEADERS", f"{PREFIX}{signal.upper()}_HEADERS"):
        for part in os.environ.get(name, "").split(","):
            key, equals, value = part.partition("=")
            if not part.strip():
                continue
            if not equals:
                raise ValueError(f"{name} must be a list name=value,name=value; a part of it has no '='")
            headers.append((unquote(key.strip()), unquote(value.strip())))
    return headers


def _check_header(name: object, value: object) -> None:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ValueError(f"a header's name must be of letters, digits and dashes, got {name!r}")
    if name.lower() in _OURS:
        raise ValueError(f"the header {name!r} is set by the exporter itself: leave it out")
    if not isinstance(value, str) or _UNPRINTABLE.search(value):
        raise ValueError(f"the value of header {name!r} must be text without line breaks and of Latin letters")


def _timeout(signal: Signal) -> float:
    text = variable("TIMEOUT", signal)
    if not text:
        return 10.0
    if not text.isdigit() or int(text) == 0:
        raise ValueError(f"{PREFIX}TIMEOUT is {text!r}: it must be a number of milliseconds above 0")
    return int(text) / 1000


def both(endpoint: str | None, headers: Mapping[str, str] | None, options: OtlpOptions) -> dict[Signal, Target]:
    """The targets of all signals that are sent. A warning names another machine that traces go to over `http:`.

    Raises:
        ValueError: as `Target`.
    """
    signals = ("traces", "metrics") if options.metrics else ("traces",)
    targets: dict[Signal, Target] = {
        signal: Target(signal, endpoint, headers, options) for signal in cast("tuple[Signal, ...]", signals)
    }
    for host in sorted({target.clear_text_host for target in targets.values()} - {""}):
        log.warning(
            "traces go to %s over http:, where others can read them; use https://, or allow it with "
            "OtlpOptions(insecure=True) or %sINSECURE=true",
            host,
            PREFIX,
        )
    return targets
