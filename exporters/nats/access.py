"""Settings for NATS: who one is, whom one trusts, and what JetStream keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from stepscope.runtime.settings.checked import Checked


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
