"""A worker: runs trials in a process of its own, and outlives one that hangs or crashes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import msgspec

from tests.stress.torture.fault import PACKAGE, Fault, Outcome, label
from tests.stress.torture.processes import end_tree
from tests.stress.torture.trials import Answer, Request
from tests.support.basics import ROOT, is_readable

LIMIT = 90.0
"""Seconds after which a trial hangs. Calls with a deadline take a tenth of that."""


class Worker:
    """Made once and used for many trials; a context manager. The process is started when it is needed.

    Args:
        package: where the faults are.
        limit: seconds that a trial may take.
    """

    def __init__(self, package: str = PACKAGE, limit: float = LIMIT) -> None:
        self._package = package
        self._limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def try_fault(self, fault: Fault, number: int) -> Answer:
        """Runs one trial in an empty directory. A hang, or the end of the process, is a problem of this trial."""
        directory = Path(tempfile.mkdtemp(prefix="torture-"))
        try:
            return self._request(Request(label(fault), number, str(directory)))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        """Ends the process, and all that it has started."""
        self._end()
        self._errors.close()

    def _request(self, request: Request) -> Answer:
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(msgspec.json.encode(request) + b"\n")
        process.stdin.flush()
        line, deadline = b"", time.monotonic() + self._limit
        while not line.endswith(b"\n"):
            if not is_readable(process.stdout, max(deadline - time.monotonic(), 0)):
                self._end()
                return Answer(Outcome(problems=(f"hung: no answer within {self._limit:g} s",)))
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                code = process.wait()
                self._end()
                return Answer(Outcome(problems=(f"its process ended with {code}: {self._last_words()}",)))
            line += piece
        return msgspec.json.decode(line, type=Answer)

    def _start(self) -> subprocess.Popen[bytes]:
        self._errors.seek(0)
        self._errors.truncate()
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.stress.torture.trials", self._package],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # an interrupt of the run is not one of the trial
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            end_tree(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # a request that nobody was left to read

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"
