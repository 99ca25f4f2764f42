"""Debian's NATS server, with JetStream, for tests: it can be killed and started again."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support.basics import missing, pause_process


class NatsServer:
    """Listens on a port of its own on loopback; what it stores outlives it. As a context manager it is killed at the end."""

    def __init__(self, directory: Path, config: str = "", *, start: bool = True) -> None:
        """Args: where it stores; more of its configuration; whether to start it at once."""
        program = shutil.which("nats-server")
        if program is None:
            missing("nats-server", "Install it (on Debian: apt-get install nats-server).")
        self._program, self._directory = program, directory
        self._config = directory.with_name(f"{directory.name}.conf")
        self.configure(config)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        if start:
            self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self.port}"

    def configure(self, config: str) -> None:
        """Gives it another configuration, for the next start."""
        self._config.write_text(config)

    def start(self, *, jetstream: bool = True) -> None:
        """Starts it, and waits until it listens."""
        command = [self._program, "-c", str(self._config), "-a", "127.0.0.1", "-p", str(self.port)]
        if jetstream:
            command += ["-js", "-sd", str(self._directory)]
        with (self._directory.parent / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None and time.monotonic() < deadline, "nats-server does not listen"
                time.sleep(0.01)

    def pause(self) -> None:
        """Stops it where it is: it reads and answers nothing, until it goes on or is killed."""
        assert self._process is not None
        pause_process(self._process.pid)

    def resume(self) -> None:
        """Lets it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
    """A server that has started."""
    with NatsServer(tmp_path / "jetstream") as started:
        yield started
