"""Programs that kill themselves while they record, and what they leave."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import textwrap
from collections import Counter
from pathlib import Path

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Flag, Kind
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.recovery.recover import Recovery, recover
from stepscope.runtime.windows.window import Window
from tests.support.launch import run_to_end

START = """
import asyncio, os, signal, sys, threading
import stepscope as sc
from stepscope.runtime import _core
def die():
    os.kill(os.getpid(), signal.SIGKILL)
profiler = sc.trace(output_dir=sys.argv[1], name="crashing", metadata={"model": "m"}, options=sc.Options(
    session_dir=sys.argv[2], drain_interval=float(sys.argv[3]), close_timeout=30.0))
"""


class Crash:
    """A program that is run until it kills itself, and what it leaves."""

    def __init__(self, tmp_path: Path) -> None:
        self.run = tmp_path / "run"
        self.session = tmp_path / "session"
        self.session.mkdir(exist_ok=True)

    @classmethod
    def copy(cls, place: Path, tmp_path: Path) -> Crash:
        """A copy of a killed program's files, as if it had been killed in another directory."""
        shutil.copytree(place, tmp_path, dirs_exist_ok=True)
        crash = cls(tmp_path)
        for path in (crash.run / "session", *crash.directory().glob("run-*")):
            path.write_text(path.read_text().replace(str(place), str(tmp_path)))
        return crash

    def renote(self, **fields: object) -> None:
        """Changes what the run's note says."""
        path = self.run / "session"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    def execute(self, program: str, *, drain_interval: float = 0.05) -> Crash:
        """Runs the program after the lines of START."""
        source = START + textwrap.dedent(program)
        command = [sys.executable, "-c", source, str(self.run), str(self.session), str(drain_interval)]
        result = run_to_end(command)
        assert result.returncode == -signal.SIGKILL, result.stderr
        return self

    def recover(self) -> Recovery:
        """Recovers it."""
        return recover(self.run)

    def directory(self) -> Path:
        """The session directory that the program used."""
        (found,) = self.session.iterdir()
        return found


def batches(path: Path) -> list[EventBatch]:
    """All batches of a journal that must be undamaged and complete."""
    with JournalReader(path) as reader:
        found = [item for item in reader if isinstance(item, EventBatch)]
        assert not reader.damage
        assert reader.end is not None
    return found


def windows(path: Path) -> list[Window]:
    """All windows of a journal."""
    with JournalReader(path) as reader:
        return [item for item in reader if isinstance(item, Window)]


def names(path: Path, kind: Kind = Kind.SPAN) -> Counter[str]:
    """How often each name occurs among the events of a kind."""
    return Counter(
        strings.name_of(event) for batch in batches(path) for event in batch.events[batch.events["kind"] == int(kind)]
    )


def open_names(path: Path) -> list[str]:
    """Names of the spans that had not ended, outermost first."""
    return [
        strings.name_of(event) for batch in batches(path) for event in batch.events if event["flags"] & int(Flag.OPEN)
    ]


BODY = """
profiler.start()
for number in range(40):
    with sc.span("forward", number=number, text="ü" * number):
        with sc.span("inner"):
            pass
    sc.instant("instant")
    sc.counter("counter", number / 2)
    {between}
    profiler.step()
with sc.span("outer"):
    with sc.span("done"):
        pass
    with sc.span("innermost", key="lost with its end"):
        die()
"""
MIDWAY = "number == 20 and profiler.flush()"
