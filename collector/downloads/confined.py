"""Replaces itself by another program with limits. It is run as a script, and imports nothing of the package.

Arguments: the pid of who started it; bytes of memory; seconds of processor time; bytes of a file; the program and its
arguments. The program ends when that process does, however that ends.
"""

import ctypes
import os
import resource
import signal
import sys

_PDEATHSIG = 1
"""`PR_SET_PDEATHSIG` of prctl(2)."""


def main() -> None:
    """Does not return. Raises `OSError` if a limit cannot be set."""
    parent, memory, seconds, file = map(int, sys.argv[1:5])
    if ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process would not notice the end of the one that started it")
    if os.getppid() != parent:
        sys.exit("who wanted this has gone")
    for what, most in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    os.execv(sys.argv[5], sys.argv[5:])


if __name__ == "__main__":
    main()
