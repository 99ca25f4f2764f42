"""Which servers of NATS to connect to."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from urllib.parse import SplitResult, urlsplit

from stepscope.exporters.nats.access import NatsAccess
from stepscope.exporters.network.secret_file import open_named, read_secret
from stepscope.exporters.stream.address import is_local
from stepscope.runtime.settings import checked

SCHEMES = frozenset({"nats", "tls", "ws", "wss"})
PROTECTED = frozenset({"tls", "wss"})
"""Schemes that never do without TLS."""


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
            safe = "wss" if parts.scheme == "ws" else "tls"
            raise ValueError(
                f"what is recorded would go to {parts.hostname} where others can read it; use {safe}:// in place of "
                f"{parts.scheme}://, name the certificates to trust (ca, --nats-ca), or say "
                "access=NatsAccess(insecure=True) (--nats-insecure)"
            )
        if self.access.credentials is not None and find_spec("nkeys") is None:
            raise ImportError("credentials of NATS need a package: pip install 'stepscope[nats]' (no module nkeys)")
        self._read_files()

    def _read_files(self) -> None:
        """They are read again for each connection; who waits for the first one would learn late that one is not there."""
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
        return scheme in PROTECTED or scheme == "nats" and self.access.wants_tls

    def may_be_plain(self, host: str) -> bool:
        """Whether a host may be talked to without TLS, where the URL does not ask for it."""
        return self.access.insecure or is_local(host)

    def __str__(self) -> str:
        return ", ".join(self.urls)

    def __repr__(self) -> str:
        return f"Servers({self.urls!r})"


def _checked(url: str) -> SplitResult:
    """The parts of a URL. Whatever is wrong with it is said without it: it may hold a secret."""
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
