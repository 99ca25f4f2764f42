"""Servers of NATS, how to get in there, and what JetStream keeps."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from stepscope.exporters.network.secrets import open_named, read_secret
from stepscope.exporters.stream.address import is_local
from stepscope.runtime.settings import checked
from stepscope.runtime.settings.checked import Checked

SCHEMES = frozenset({"nats", "tls"})


class Servers:
    """URLs of one or more servers, and how to get in. No message and no `repr` shows more than hosts and ports.

    Args:
        urls: such as `nats://host:4222` or `tls://host`.
        access: credentials and certificates.

    Raises:
        TypeError: if it is neither a URL nor a list of them.
        ValueError: for a URL that is none of NATS or holds a secret, and for one that leads to another machine without TLS,
            and for a file that should hold a secret and is empty.
        ImportError: if a package is missing that credentials need; says how to get it.
        OSError: if a file of the access cannot be read.
    """

    def __init__(self, urls: str | Sequence[str], access: NatsAccess | None = None) -> None:
        if not isinstance(urls, Sequence) or not all(isinstance(url, str) for url in urls):
            raise TypeError(
                f"servers must be a URL such as nats://host:4222, or a list of them, got {type(urls).__name__}"
            )
        self.urls = [urls] if isinstance(urls, str) else list(urls)
        self.access = checked.settings("access", access, NatsAccess)
        if not self.urls:
            raise ValueError("a server of NATS must be given, such as nats://host:4222")
        for url in self.urls:
            parts = _checked(url)
            if self.wants_tls(parts.scheme) or self.may_be_plain(parts.hostname or ""):
                continue
            raise ValueError(
                f"what is recorded would go to {parts.hostname} where others can read it; use tls:// in place of "
                f"{parts.scheme}://, name the certificates to trust (ca, --nats-ca), or say "
                "access=NatsAccess(insecure=True) (--nats-insecure)"
            )
        if self.access.credentials is not None and find_spec("nkeys") is None:
            raise ImportError("credentials of NATS need a package: pip install 'stepscope[nats]' (no module nkeys)")
        self._read_files()

    def _read_files(self) -> None:
        """Reads the files with secrets: for each connection, and at the start, so that a missing file is reported early."""
        access = self.access
        for secret in (access.credentials, access.token_file, access.password_file):
            if secret is not None:
                read_secret(secret)
        files = {"certificates to trust": access.ca, "our certificate": access.certificate, "its key": access.key}
        for what, file in files.items():
            if file is not None:
                open_named(file, what).close()

    def wants_tls(self, scheme: str) -> bool:
        """Whether a server whose URL has this scheme must show that it has TLS."""
        return scheme == "tls" or self.access.wants_tls

    def may_be_plain(self, host: str) -> bool:
        """Whether a host may be talked to without TLS, where the URL does not ask for it."""
        return self.access.insecure or is_local(host)

    def __str__(self) -> str:
        return ", ".join(self.urls)

    def __repr__(self) -> str:
        return f"Servers({self.urls!r})"


def _checked(url: str) -> SplitResult:
    """The parts of a URL. Messages about a wrong one do not have it: it may have a secret."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, valid = urlsplit(""), False
    if "@" in url:
        raise ValueError(
            "the URL of a NATS server must not hold a user, a password or a token; give files that hold them: "
            "NatsAccess(credentials=...), NatsAccess(token_file=...) or NatsAccess(user=..., password_file=...); on the "
            "command line --nats-credentials, --nats-token-file, or --nats-user and --nats-password-file"
        )
    if not valid or parts.query or parts.fragment or parts.path.strip("/"):
        raise ValueError("a NATS server must be such as nats://host:4222 or tls://host; what was given is not")
    return parts


class NatsAccess(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credentials and certificates for NATS. Files are read again for each connection. Unknown fields are refused.

    Raises:
        ValueError: naming what does not go together.
    """

    credentials: Path | None = None
    """File with a user's JWT and seed, as `nsc` writes it; needs the package nkeys."""
    token_file: Path | None = None
    """File that holds a token."""
    user: str = ""
    """Name of a user who has a password."""
    password_file: Path | None = None
    """File that holds the password."""
    ca: Path | None = None
    """PEM file with the certificates to trust instead of the system's; no server is talked to without TLS then."""
    certificate: Path | None = None
    """PEM file with the certificate that servers are shown; no server is talked to without TLS then."""
    key: Path | None = None
    """PEM file with its private key; `None`: in the certificate's file."""
    insecure: bool = False
    """Whether what is recorded, and what is given here, may go to another machine without TLS."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.user) != (self.password_file is not None):
            raise ValueError("NatsAccess.user and NatsAccess.password_file must be given together")
        if self.key is not None and self.certificate is None:
            raise ValueError("NatsAccess.key is the key of a certificate: NatsAccess.certificate must be given as well")
        ways = [self.credentials, self.token_file, self.password_file]
        if sum(way is not None for way in ways) > 1:
            raise ValueError(
                "of NatsAccess.credentials, NatsAccess.token_file and NatsAccess.user with its password one at most can be given"
            )

    @property
    def wants_tls(self) -> bool:
        """Whether no server may be talked to without TLS, whatever its URL says."""
        return self.ca is not None or self.certificate is not None

    def options(self) -> list[str]:
        """The same as options of the command line."""
        options = ((f"--nats-{name.replace('_', '-')}", getattr(self, name)) for name in self.__struct_fields__)
        return [
            word
            for option, value in options
            if value
            for word in ((option,) if value is True else (option, str(value)))
        ]


class NatsLimits(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that the stream in JetStream is made with, if it is not there yet: whoever made it decides them. Unknown fields
    are refused."""

    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 8 << 30
    """Bytes, which the server sets aside at once; 0: as much as the server allows."""
    max_age: Annotated[float, msgspec.Meta(ge=0)] = 7 * 86_400.0
    """Seconds after which what was published is thrown away, taken or not; 0: never."""
    discard: Literal["old", "new"] = "old"
    """Which messages go when it is full: `old` throws the oldest away, taken or not, and readers count what is missing; `new` takes
    nothing more, so that exporters keep it, until age has made room."""
