"""The processes that measure, seen from the one that asks them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from benchmarks.harness.row import Tool
from benchmarks.harness.worker import Answer, Request

ROOT = Path(__file__).resolve().parents[2]


class WorkerDiedError(Exception):
    """Raised when a process ended while it was to answer; shows the end of what it wrote to standard error."""


class WorkerProcess:
    """One process."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.worker", tool],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=ROOT,
        )

    def ask(self, request: Request) -> Answer:
        """Sends a request and waits for the answer.

        Raises:
            WorkerDiedError: if none came.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            line = b""
        else:
            line = process.stdout.readline()
        if not line:
            process.wait()
            self._stderr.seek(0)
            end = self._stderr.read()[-800:].decode(errors="replace")
            raise WorkerDiedError(f"the process for {self.tool} ended with {process.returncode}: {end}")
        return msgspec.json.decode(line, type=Answer)

    def close(self) -> None:
        """Lets the process end."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._stderr.close()


class WorkerProcesses:
    """One process for each tool, started when it is first needed."""

    def __init__(self) -> None:
        self._processes: dict[Tool, WorkerProcess] = {}

    def process(self, tool: Tool) -> WorkerProcess:
        """The process for a tool."""
        if tool not in self._processes:
            self._processes[tool] = WorkerProcess(tool)
        return self._processes[tool]

    def dismiss(self, tool: Tool) -> None:
        """Ends a tool's process; the next one asked for is new."""
        process = self._processes.pop(tool, None)
        if process is not None:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for tool in list(self._processes):
            self.dismiss(tool)
