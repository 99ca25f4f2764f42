"""Runs Python programs in forks of a process that has imported most of what they import, so that they start in no time.

This is the program of that process; `tests.support.forked` asks it. It has one thread, no session of stepscope's and no
event loop. A fork runs its program as `__main__` on the main thread, and Python ends in it as in any process.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import io
import json
import linecache
import os
import runpy
import select
import socket
import sys
import threading
import types
import warnings
from typing import Any

PLAIN = (
    "stepscope anyio._backends._asyncio aiofiles asyncio msgspec.json numpy tempfile textwrap uvloop "
    "stepscope.backends.base stepscope.build stepscope.errors stepscope.exporters.chrome stepscope.exporters.memory "
    "stepscope.exporters.tensorboard stepscope.exporters.journal stepscope.runtime.lifecycle.interpreter_exit "
    "stepscope.runtime.flight.recorder stepscope.runtime.lifecycle.join stepscope.runtime.profiler stepscope.runtime.recovery.recover"
)
IMPORTED = {
    "plain": PLAIN,
    "command": f"{PLAIN} stepscope.cli.main stepscope.cli.network.collect stepscope.collector.app uvicorn websockets",
    "torch": f"{PLAIN} torch torch.utils.data stepscope.torch stepscope.backends.torch.backend",
}
"""Modules that each kind of server has imported: `stepscope` before torch, so that operators can arrive live."""


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks for each request and reports how the forks ended; ends the process when nobody can ask any more.

    Returns:
        In each fork: the request, and descriptors for the standard streams.
    """
    running: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in running:
                poll.unregister(descriptor)
                os.close(descriptor)
                pid, reply = running.pop(descriptor)
                _send_number(reply, os.waitpid(pid, 0)[1])
                reply.close()
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 4)
            if not message:
                os._exit(0)
            if (pid := os.fork()) == 0:
                return json.loads(message), descriptors[:3]
            for each in descriptors[:3]:
                os.close(each)
            reply = socket.socket(fileno=descriptors[3])
            _send_number(reply, pid)
            ended = os.pidfd_open(pid)
            running[ended] = pid, reply
            poll.register(ended, select.POLLIN)


def _send_number(reply: socket.socket, number: int) -> None:
    with contextlib.suppress(ConnectionError):  # the client has ended
        reply.send(str(number).encode())


def become(request: dict[str, Any], streams: list[int], filters: int) -> None:
    """Makes a fork what a Python is that was started with this command line, directory and environment.

    Args:
        request: as `tests.support.forked` makes them.
        streams: descriptors for the standard streams.
        filters: how many filters of warnings Python began with.
    """
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1 << 20)
    os.chdir(request["cwd"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old: Any = getattr(sys, name)
        raw: Any = io.FileIO(number, f"{old.mode}b", closefd=False)
        raw.name = f"<{name}>"
        buffer: Any = raw if isinstance(old.buffer, io.FileIO) else type(old.buffer)(raw)
        lines = not old.write_through and (name == "stderr" or os.isatty(number))
        new: Any = io.TextIOWrapper(buffer, old.encoding, old.errors, "\n", lines, old.write_through)
        new.mode = old.mode
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    del sys.path[: len(_path_of_environment())]
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = request["path"] + _path_of_environment()
    sys.argv, sys.orig_argv = request["argv"], request["command"]
    # Filters of the command line come before Python's own; modules have put theirs before both.
    module: Any = warnings
    modules = module.filters[:-filters]
    del module.filters[:-filters]
    sys.warnoptions += request["warnings"]
    module._processoptions(request["warnings"])
    module.filters[:0] = modules
    module._filters_mutated()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # as Python does it for `random`
    thread: Any = threading.main_thread()
    thread._set_native_id()  # which Python 3.11 does not at a fork
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __loader__=importlib.machinery.BuiltinImporter)
    if sys.version_info < (3, 14):  # which makes them when they are asked for
        vars(main).update(__annotations__={})


def _path_of_environment() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def nothing(*_: object) -> None:
    """Prints nothing."""


def run(kind: str, program: str) -> int:
    """Runs a source text (`-c`) or a file as Python does it; -1 after an exception, which has been printed."""
    python: Any = ctypes.pythonapi
    if kind == "-c":
        if sys.version_info >= (3, 14):  # whose tracebacks show the lines
            lines = program.splitlines(keepends=True)
            linecache.cache["<string>"] = (len(program), None, lines, "<string>")
        return int(python.PyRun_SimpleString(program.encode()))
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    opened = ctypes.c_void_p(library.fopen(os.fsencode(program), b"rb"))
    return int(python.PyRun_SimpleFileExFlags(opened, os.fsencode(os.path.join(os.getcwd(), program)), 1, None))


if __name__ == "__main__":
    BEGAN_WITH = len(warnings.filters)
    del sys.path[0]
    for module in IMPORTED[sys.argv[1]].split():
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else collecting would write to all pages, and so copy them
    REQUEST, STREAMS = serve(socket.socket(fileno=int(sys.argv[2])))
    become(REQUEST, STREAMS, BEGAN_WITH)
    if REQUEST["kind"] == "-m":
        runpy._run_module_as_main(REQUEST["program"])  # type: ignore[attr-defined]
    elif run(REQUEST["kind"], REQUEST["program"]):
        sys.excepthook = nothing  # it has been printed
        raise sys.last_value or RuntimeError()  # not SystemExit, which would hide from Python that it was interrupted
