"""An operator of NATS with an account and a user, whose JWTs a server believes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from typing import Any

from tests.support.basics import require

_PREFIXES = {"O": 14 << 3, "A": 0, "U": 20 << 3}


class _Key:
    def __init__(self, kind: str) -> None:
        keys: Any = require("nkeys")
        prefix = _PREFIXES[kind]
        raw = bytes([18 << 3 | prefix >> 5, (prefix & 31) << 3]) + os.urandom(32)
        raw += keys.crc16(bytearray(raw)).to_bytes(2, "little")
        self.seed = base64.b32encode(raw).rstrip(b"=")
        self._pair = keys.from_seed(bytearray(self.seed))
        self.public: str = self._pair.public_key.decode()

    def claims(self, subject: _Key, name: str, about: dict[str, Any]) -> str:
        """A JWT about somebody, signed by this one."""
        body: dict[str, Any] = {"iat": int(time.time()), "iss": self.public, "sub": subject.public, "name": name}
        body["nats"] = {**about, "version": 2}
        body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
        text = ".".join(_packed(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body))
        return f"{text}.{_packed(self._pair.sign(text.encode()))}"


class Operator:
    """Has one account, which may use JetStream, and one user."""

    def __init__(self) -> None:
        self._operator, self._system, self._account, self._user = _Key("O"), _Key("A"), _Key("A"), _Key("U")

    def configuration(self) -> str:
        """The part of a server's configuration that knows these keys."""
        limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        storing = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
        operator = self._operator.claims(self._operator, "operator", {"type": "operator"})
        accounts = ", ".join(
            f"{key.public}: {self._operator.claims(key, 'account', {'type': 'account', 'limits': {**limits, **more}})}"
            for key, more in ((self._system, {}), (self._account, {**storing, "wildcards": True}))
        )
        return (
            f"operator: {operator}\nsystem_account: {self._system.public}\n"
            f"resolver: MEMORY\nresolver_preload: {{ {accounts} }}\n"
        )

    def credentials(self) -> str:
        """The user's file, as nsc writes it."""
        about: dict[str, Any] = {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        jwt = self._account.claims(self._user, "user", about)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self._user.seed.decode()}\n------END USER NKEY SEED------\n"
        )


def _packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
