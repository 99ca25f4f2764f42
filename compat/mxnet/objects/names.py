"""Names: any text is legal, and different texts stay different."""

from __future__ import annotations

import hashlib
from typing import Protocol

from stepscope.runtime.settings.arguments import got

LONGEST = 1000
"""Bytes of UTF-8 that are kept; the recorder keeps 1,024, and a category has a suffix."""


class Named(Protocol):
    """An object with a name, such as a domain."""

    @property
    def name(self) -> str: ...


def legal(what: str, name: object) -> str:
    """Returns the recorded text of a name: the name itself, or its beginning and a digest if it is very long. Raises
    `TypeError` if it is no str."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a {what} must be a str, {got(name)}")
    raw = name.encode("utf-8", "backslashreplace")
    if len(raw) <= LONGEST:
        return name
    digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
    return f"{raw[: LONGEST - 20].decode(errors='ignore')}...{digest}"


def domain_name(domain: object) -> str:
    """The recorded name of a domain. Raises `TypeError` if it is none."""
    name = getattr(domain, "name", None)
    if isinstance(domain, str) or not isinstance(name, str):
        raise TypeError(f"domain must be a Domain, {got(domain)}; write Domain('name')")
    return legal("domain", name)
