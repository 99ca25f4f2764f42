"""Certificates for tests, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.basics import missing

REQUEST = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"


def certify(directory: Path) -> tuple[Path, Path]:
    """A certificate for this machine, and its key.

    Raises:
        pytest.skip.Exception: without openssl.
    """
    if shutil.which("openssl") is None:
        missing("openssl", "Install it (on Debian: apt-get install openssl).")
    made, key = directory / "cert.pem", directory / "key.pem"
    request = [*REQUEST.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *request, "-keyout", key, "-out", made], check=True, capture_output=True)
    return made, key
