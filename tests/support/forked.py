"""Python programs that start as forks of `tests.support.fork_server`, where that makes no difference to them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.backends.torch import arm as torch_arm

BEGAN_WITH = dict(os.environ)
FIXED = tuple("ASAN_ INTEL_ LANG LC_ LD_ MALLOC_ MKL_ OMP_ OPENBLAS_ PYTHON STEPSCOPE_JOIN TORCH_ TSAN_".split())
"""Beginnings of the names of variables that are read when Python starts, or a module is imported; PYTHONPATH is served."""


class Serving:
    """Whether programs may be forks: in the process that runs the tests, not in programs that start further ones."""

    on = False


def request_of(
    command: Sequence[str | os.PathLike[str]], cwd: Any, environment: Mapping[str, str] | None
) -> dict[str, Any] | None:
    """The server's request for this program.

    Returns:
        None if only a new Python can run it: for flags of the interpreter other than -P and -W, or an environment in
        which Python would start otherwise.
    """
    if not Serving.on or command[0] != sys.executable or "LD_PRELOAD" in os.environ:
        return None
    variables = {torch_arm.VARIABLE: torch_arm.library(), **(os.environ if environment is None else environment)}
    if _fixed(variables) != _fixed(BEGAN_WITH | {torch_arm.VARIABLE: torch_arm.library()}):
        return None
    rest = [os.fspath(each) for each in command[1:]]
    warnings: list[str] = []
    safe = False
    while rest and (rest[0] == "-P" or rest[0] == "-W"):
        if rest.pop(0) == "-P":
            safe = True
        else:
            warnings.append(rest.pop(0))
    place = Path.cwd() if cwd is None else Path(cwd).absolute()
    match rest:
        case ["-c", program, *arguments]:
            kind, argv, path = "-c", ["-c", *arguments], ""
        case ["-m", program, *arguments]:
            kind, argv, path = "-m", ["-m", *arguments], str(place)
        case [program, *arguments] if program.endswith(".py") and (place / program).is_file():
            kind, argv, path = "file", rest, str((place / program).resolve().parent)
        case _:
            return None
    return {
        "kind": kind,
        "program": program,
        "argv": argv,
        "path": [] if safe else [path],
        "command": [os.fspath(each) for each in command],
        "warnings": warnings,
        "cwd": str(place),
        "environment": variables,
    }


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(FIXED) and name != "PYTHONPATH"}


class Servers:
    """The servers of this process; each starts when it is asked first, and ends with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, socket.socket] = {}

    def run_program(self, kind: str, request: dict[str, Any], descriptors: list[int]) -> None:
        """Has a program run.

        Args:
            kind: of the server, as in `fork_server.IMPORTED`.
            request: of `request_of`.
            descriptors: of the program's standard streams, and of the socket for its number and how it ended.
        """
        with self._lock:
            if kind not in self._of:
                self._of[kind] = self._start(kind)
        socket.send_fds(self._of[kind], [json.dumps(request).encode()], descriptors)

    def _start(self, kind: str) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            server = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("fork_server.py"), kind, str(theirs.fileno())],
                env={**BEGAN_WITH, "OPENBLAS_NUM_THREADS": "1"},  # so that it has one thread
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

        def end() -> None:
            ours.close()
            server.wait()

        atexit.register(end)
        return ours


_servers = Servers()


class Forked(subprocess.Popen[Any]):
    """A program that a server runs, in a session of its own.

    Args:
        request: of `request_of`.
        kind: of the server.
        settings: those of `subprocess.Popen` for the standard streams.
    """

    def __init__(self, request: dict[str, Any], kind: str, **settings: Any) -> None:
        self._request, self._kind = request, kind
        self._reply, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(request["command"], **settings)

    # Popen makes the pipes, reads and writes; only how a program starts and ends differs.
    def _execute_child(self, *arguments: Any) -> None:
        pipes = arguments[10:16]
        streams = [number if each == -1 else each for number, each in enumerate((pipes[0], pipes[3], pipes[5]))]
        with self._theirs:
            _servers.run_program(self._kind, self._request, [*streams, self._theirs.fileno()])
        popen: Any = super()
        popen._close_pipe_fds(*pipes)
        reply = self._reply.recv(64)
        if not reply:
            raise RuntimeError("the server that forks programs has ended")
        self.pid = int(reply)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._reply, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            reply = self._reply.recv(64)
            if not reply:
                raise RuntimeError("the server that forks programs has ended")
            self.returncode = os.waitstatus_to_exitcode(int(reply))
            self._reply.close()
        return self.returncode
