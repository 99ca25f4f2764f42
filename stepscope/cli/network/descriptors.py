"""How many files a command may have open."""

from __future__ import annotations

import resource
import sys


def allow_all() -> int:
    """Lets this process have as many open files as the system lets it, where shells often allow 1,024; how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
