"""The tokens that a collector accepts, their rights, and tickets for downloads."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec
from litestar.utils import normalize_path

from stepscope.collector.errors import ExposureError
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.network.secrets import read_secret
from stepscope.exporters.stream.address import fits_header

log = logging.getLogger("stepscope.collector")

Scope = Literal["ingest", "read", "control"]
"""The rights of a token: to send streams; to read; to order windows."""
ALL: frozenset[Scope] = frozenset({"ingest", "read", "control"})
INTERVAL = 1.0
"""Seconds between two looks at the files."""
MAX_TOKENS = 10_000
"""Limit of tokens in one file."""

_JOB = "job="

TICKET_SECONDS = 30
"""Seconds for which a ticket is valid."""
MAX_TICKETS = 1024
"""Tickets that are open at once; the oldest give way."""


class Token(msgspec.Struct, frozen=True):
    """A token, without its text."""

    digest: bytes
    """SHA-256 of the text: all have one length, so a comparison does not reveal the length of a token."""
    scopes: frozenset[Scope]
    job: str | None = None
    """The only job to which it gives access; `None`: all jobs."""


class _Use(msgspec.Struct, frozen=True, eq=False):
    """A request in progress."""

    token: Token
    scope: Scope
    end: Callable[[], object]


class TokenFile:
    """A file of tokens, as it was when it was read last.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it has no token, or a line that is none.
        ExposureError: if a token is too short.
    """

    def __init__(self, path: Path, scopes: frozenset[Scope], settings: CollectorSettings) -> None:
        self._path, self._scopes, self._settings = path, scopes, settings
        self._read_state = self._seen_state = self._state()
        self.tokens = self._read()

    def changed(self) -> bool:
        """Reads the file if it is not as it was when it was read, but as it was at the last call: who writes it is done.

        Returns whether there are other tokens now.
        """
        state = self._state()
        unchanged, self._seen_state = state == self._seen_state, state
        if not unchanged or state == self._read_state:
            return False
        self._read_state = state
        try:
            tokens = self._read()
        except (OSError, ValueError, ExposureError) as error:
            log.error("the tokens of %s stay as they were: %s", self._path, error)
            return False
        changed = tokens != self.tokens
        self.tokens = tokens
        return changed

    def _state(self) -> tuple[int, int, int] | None:
        try:
            about = self._path.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size, about.st_ino

    def _read(self) -> list[Token]:
        try:
            lines = read_secret(self._path).splitlines()
        except ValueError as error:
            raise ValueError(f"{error}; write a token into it, or leave the option for it out") from error
        tokens: list[Token] = []
        for number, line in enumerate(lines, 1):
            # A job's name can have spaces, a token cannot. No message shows the line.
            head, _, text = line.strip().rpartition(" ")
            head = head.strip()
            if not text:
                continue
            job = head.removeprefix(_JOB).strip() if head.startswith(_JOB) else None
            if not fits_header(text) or (head and not job):
                raise ValueError(
                    f"line {number} of {self._path} is neither TOKEN nor job=NAME TOKEN; a token is printable ASCII without spaces"
                )
            self._settings.check_token(text)
            tokens.append(Token(_digest(text), self._scopes, job))
        if len(tokens) > MAX_TOKENS:
            raise ValueError(f"{self._path} has {len(tokens)} tokens, the limit is {MAX_TOKENS}")
        return tokens


class Tokens:
    """The tokens of the settings and their files, which are read again when they change.

    A file that is deleted or becomes invalid changes nothing: the tokens that it had stay valid, and the log says so. The
    requests of a token that is removed are ended.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if a file has no token, a line that is none, or one token for several jobs.
        ExposureError: if a token is too short.
    """

    def __init__(self, settings: CollectorSettings) -> None:
        self._fixed = [Token(_digest(settings.token), ALL)] if settings.token else []
        self._files = [
            TokenFile(path, scopes, settings)
            for path, scopes in (
                (settings.token_file, ALL),
                (settings.ingest_token_file, frozenset[Scope]({"ingest"})),
                (settings.read_token_file, frozenset[Scope]({"read"})),
                (settings.control_token_file, frozenset[Scope]({"control", "read"})),
            )
            if path is not None
        ]
        self._uses: set[_Use] = set()
        self._tokens = self._merged()

    @property
    def required(self) -> bool:
        """True if requests need a token."""
        return bool(self._tokens)

    @property
    def has_files(self) -> bool:
        """Whether `run` has anything to do."""
        return bool(self._files)

    def find(self, text: str) -> Token | None:
        """The token with this text. Takes the same time whichever it is."""
        digest, found = _digest(text), None
        for token in self._tokens:
            if secrets.compare_digest(token.digest, digest):
                found = token
        return found

    def allows(self, token: Token, scope: Scope) -> bool:
        """True if a token is still valid, for the same job, and has a scope."""
        now = next((one for one in self._tokens if one.digest == token.digest), None)
        return now is not None and scope in now.scopes and now.job == token.job

    @contextlib.contextmanager
    def using(self, token: Token | None, scope: Scope, end: Callable[[], object]) -> Generator[None]:
        """A request with a token is in progress inside.

        Args:
            token: of the request; `None` where none is required.
            end: called once if the token becomes invalid for that.
        """
        if token is None:
            yield
            return
        use = _Use(token, scope, end)
        self._uses.add(use)
        try:
            yield
        finally:
            self._uses.discard(use)

    async def run(self) -> None:
        """Looks at the files every `INTERVAL` seconds, for ever."""
        while True:
            await asyncio.sleep(INTERVAL)
            if await asyncio.to_thread(self._changed):
                self._replace()

    def _changed(self) -> bool:
        return any([file.changed() for file in self._files])

    def _replace(self) -> None:
        try:
            self._tokens = self._merged()
        except ValueError as error:
            log.error("the tokens stay as they were: %s", error)
            return
        ended = [use for use in self._uses if not self.allows(use.token, use.scope)]
        log.info("tokens were read again: there are %d, and %d requests are ended", len(self._tokens), len(ended))
        for use in ended:
            self._uses.discard(use)
            use.end()

    def _merged(self) -> list[Token]:
        """Each token once, with all its scopes."""
        merged: dict[bytes, Token] = {}
        for token in self._every():
            before = merged.setdefault(token.digest, token)
            if before.job != token.job:
                raise ValueError(f"a token is there twice, for {_of(before)} and for {_of(token)}: use one for each")
            merged[token.digest] = msgspec.structs.replace(before, scopes=before.scopes | token.scopes)
        return list(merged.values())

    def _every(self) -> Iterable[Token]:
        yield from self._fixed
        for file in self._files:
            yield from file.tokens


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


def _of(token: Token) -> str:
    return "all jobs" if token.job is None else f"the job {token.job!r}"


class Tickets:
    """Tickets, each for one path, one use and a short time: a ticket in a log is of no use to anybody."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, float, Token | None]] = {}

    def issue(self, path: str, token: Token | None) -> str:
        """A ticket for a path with its parameters, for the holder of a token."""
        now = time.monotonic()
        self._open = {ticket: one for ticket, one in self._open.items() if one[1] > now}
        while len(self._open) >= MAX_TICKETS:
            del self._open[next(iter(self._open))]
        ticket = secrets.token_urlsafe(24)
        path, _, query = path.partition("?")
        self._open[ticket] = (
            _address(unquote(path), parse_qsl(query, keep_blank_values=True)),
            now + TICKET_SECONDS,
            token,
        )
        return ticket

    def use(self, ticket: str, path: str, query: Sequence[tuple[str, str]]) -> Token | None:
        """The token for which a ticket was issued, once, if the path and the other parameters are those of the ticket.

        Args:
            ticket: as `issue` returned it.
            query: its parameters, decoded, without the ticket.
        """
        address, until, token = self._open.pop(ticket, ("", 0.0, None))
        return token if address == _address(path, query) and time.monotonic() < until else None


def _address(path: str, query: Sequence[tuple[str, str]]) -> str:
    """Brings an address, which can be written in several ways, into one form."""
    return f"{normalize_path(path)}?{urlencode(query)}"
