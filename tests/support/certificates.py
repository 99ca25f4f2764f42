"""Certificates for tests, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.basics import missing

REQUEST = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"


def certify(directory: Path, names: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """A certificate that is its own authority, and its key.

    Args:
        directory: for the two files.
        names: whose it is (subjectAltName); empty: nobody's.

    Raises:
        pytest.skip.Exception: without openssl.
    """
    if shutil.which("openssl") is None:
        missing("openssl", "Install it (on Debian: apt-get install openssl).")
    made, key = directory / "cert.pem", directory / "key.pem"
    request = [*REQUEST.split(), *(("-addext", f"subjectAltName={names}") if names else ())]
    subprocess.run(["openssl", *request, "-keyout", key, "-out", made], check=True, capture_output=True)
    return made, key
