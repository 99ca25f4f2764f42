"""Settings of a collector."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.collector.errors import ExposureError
from stepscope.exporters.nats.names import DEFAULT_TEAM, Team
from stepscope.exporters.nats.servers import NatsAccess, NatsLimits
from stepscope.exporters.stream.address import UNFIT_TOKEN, fits_header, is_local
from stepscope.exporters.stream.protocol import MAX_MESSAGE, MIN_MAX_MESSAGE
from stepscope.runtime.options import PositiveFloat
from stepscope.runtime.settings.checked import Checked

STREAM_FILES = 3
"""Open files of a stream: its connection, its journal and where that ended."""
READER_FILES = 2
"""Open files of another connection: itself, and the file that is sent to it."""
OTHER_FILES = 64
"""Open files of everything else."""
LEAST_TOKEN = 16
"""Characters of a token with which others than this machine can be let in."""
LEAST_DISK = 512 << 10
"""Bytes of a limit of the disk below which there is no room beside the collector's own files, and that for downloads, for a
stream and messages of it: an eighth of this is the smallest message that exporters are held to."""


class CollectorSettings(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a collector listens and writes, whom it lets in, and what it takes at most. Unknown fields are refused."""

    directory: Path
    """Directory below which streams are stored; it is made if it does not exist, for this user only."""
    host: str = "127.0.0.1"
    """Address to listen on; addresses other than loopback want a token and a certificate."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 7788
    """Port to listen on; 0: any free one."""
    token: str = ""
    """A token that allows everything, 16 characters at least if other machines can connect. Without it and without any of the
    files below no token is required, and every user of this machine can do everything."""
    token_file: Path | None = None
    """File of tokens that allow everything. Here and in the next three a line is `TOKEN` or `job=NAME TOKEN`, and the file is
    read again when it changes."""
    ingest_token_file: Path | None = None
    """File of tokens that allow to send streams."""
    read_token_file: Path | None = None
    """File of tokens that allow to read: the page, the HTTP API, downloads and metrics."""
    control_token_file: Path | None = None
    """File of tokens that allow to order windows, and to read."""
    certificate: Path | None = None
    """PEM file with the server's certificate chain."""
    key: Path | None = None
    """PEM file with its private key; `None`: in the certificate's file."""
    client_ca: Path | None = None
    """PEM file with the authorities of client certificates; if given, every client must show a certificate of one of them."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients may address the collector (the `Host` header), beside those of loopback. Empty: the names in the
    certificate and the address that it listens on."""
    insecure: bool = False
    """Whether other machines may connect without a token or TLS."""
    max_streams: Annotated[int, msgspec.Meta(ge=1)] = 4096
    """Connections of exporters at once."""
    max_readers: Annotated[int, msgspec.Meta(ge=1)] = 1024
    """Other connections at once; if one more comes, the connection that has been idle for longest is ended."""
    max_kept_streams: Annotated[int, msgspec.Meta(ge=1)] = 65_536
    """Streams in the directory, connected or not."""
    max_message: Annotated[int, msgspec.Meta(ge=MIN_MAX_MESSAGE, le=MAX_MESSAGE)] = MAX_MESSAGE
    """Bytes of one message. Frames that do not fit are left out: the end of a window with more than 40,000 steps takes 1 MB."""
    max_intake: Annotated[int, msgspec.Meta(ge=1 << 20)] = 256 << 20
    """Bytes of messages in memory, of all connections together, that are not written yet; further senders wait."""
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes of all streams together; 0: as much as the disk holds."""
    max_stream_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes of one stream; 0: no limit of its own."""
    disk_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes on disk of everything in the directory; for more, the oldest segments of streams are deleted. 0: no limit, else
    512 KiB at least."""
    keep_newest: Annotated[int, msgspec.Meta(ge=0)] = 8
    """Newest windows, whose segments are deleted last."""
    keep_slowest: Annotated[int, msgspec.Meta(ge=0)] = 8
    """Windows with the slowest steps, whose segments are deleted before those and after all others."""
    upload: str = ""
    """Object store for copies of closed segments, as fsspec has it: `s3://bucket/job1`; empty: none."""
    upload_seconds: PositiveFloat = 30.0
    """Seconds between two looks for closed segments."""
    nats: tuple[str, ...] = ()
    """Servers of NATS from which streams are taken as well; others than this machine want TLS."""
    nats_team: Team = DEFAULT_TEAM
    """Team whose streams are taken from there; those of other teams are not."""
    nats_access: NatsAccess = NatsAccess()
    """Credentials and certificates for these servers."""
    nats_limits: NatsLimits = NatsLimits()
    """Limits of the stream in JetStream, if this collector is the first to use it."""
    fsync: bool = False
    """Whether to wait for the disk before frames are confirmed: a machine that loses power keeps them then."""
    hello_timeout: PositiveFloat = 10.0
    """Seconds in which a connection must send its `Hello`."""
    idle_timeout: PositiveFloat = 120.0
    """Seconds in which something must come from a connection; exporters compare clocks every few."""

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            ValueError: naming the field, the value and what it should be.
        """
        super().__post_init__()
        if not fits_header(self.token):
            raise ValueError(UNFIT_TOKEN)
        if self.client_ca is not None and self.certificate is None:
            raise ValueError(
                "client certificates (client_ca, --client-ca) need TLS: give the certificate of the collector, too"
            )
        if 0 < self.disk_bytes < LEAST_DISK:
            raise ValueError(
                f"the limit of the disk (disk_bytes, --disk) is {self.disk_bytes} bytes, which hold not even one stream: "
                f"give {LEAST_DISK} at least, or 0 for no limit"
            )

    @property
    def has_tokens(self) -> bool:
        """Whether requests need a token."""
        files = (self.token_file, self.ingest_token_file, self.read_token_file, self.control_token_file)
        return bool(self.token) or any(file is not None for file in files)

    @property
    def exposed(self) -> bool:
        """Whether other machines can connect without a token or TLS."""
        return not is_local(self.host) and not (self.has_tokens and self.certificate)

    def within(self, files: int) -> CollectorSettings:
        """These settings, with no more connections than a process that may open so many files can serve.

        Raises:
            ValueError: if that is not even one.
        """
        if self.max_streams * STREAM_FILES + self.max_readers * READER_FILES + OTHER_FILES <= files:
            return self
        remaining = files - OTHER_FILES
        readers = min(self.max_readers, remaining // (4 * READER_FILES))
        streams = min(self.max_streams, (remaining - readers * READER_FILES) // STREAM_FILES)
        if readers < 1 or streams < 1:
            raise ValueError(f"a collector cannot work with {files} open files; allow more (ulimit -n)")
        return msgspec.structs.replace(self, max_streams=streams, max_readers=readers)

    def check_exposure(self) -> None:
        """Refuses to be reached by other machines without a token and TLS, and with a token that is short.

        Raises:
            ExposureError: says what is missing, or too short.
        """
        if is_local(self.host):
            return
        if self.token:
            self.check_token(self.token)
        if not self.exposed or self.insecure:
            return
        missing = [
            name for name, there in (("a token", self.has_tokens), ("a TLS certificate", self.certificate)) if not there
        ]
        if missing:
            raise ExposureError(
                f"the collector would listen on {self.host}, where others can reach it, without {' and '.join(missing)}; "
                "give them, listen on 127.0.0.1, or say --insecure"
            )

    def check_token(self, token: str) -> None:
        """Refuses a token that can be guessed, if other machines can connect.

        Raises:
            ExposureError: says how long it is, and how long it must be.
        """
        if len(token) < LEAST_TOKEN and not is_local(self.host):
            raise ExposureError(
                f"the collector would listen on {self.host}, where others can reach it, with a token of {len(token)} "
                f"characters, which can be guessed: give {LEAST_TOKEN} at least, such as "
                '`python -c "import secrets; print(secrets.token_urlsafe(32))"` makes'
            )


def host_name(host: str) -> str:
    """A name or an address in the form in which it compares: in lower case, an address in its shortest form."""
    try:
        return ipaddress.ip_address(host).compressed
    except ValueError:
        return host.lower().rstrip(".")
