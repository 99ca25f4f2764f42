"""The answer at the end of `stepscope run`: what is slow, of all ranks of the job that run on this machine.

`python -m stepscope.cli.programs.ending` writes it for a process that a signal ends, as that may hold any lock and can import nothing.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from posix import posix_spawn  # gevent replaces that of `os` by one that only the main thread can call
from typing import TYPE_CHECKING, TypeVar

import msgspec

from stepscope.cli.common import opening
from stepscope.runtime.recovery.journals import Journals
from stepscope.runtime.session.note import notes_in

if TYPE_CHECKING:
    from stepscope.analysis.findings import Answer

_T = TypeVar("_T")

# By name: gevent and eventlet replace the functions in their modules.
_select, _read, _waitpid = select.select, os.read, os.waitpid

RANKS_WAIT_S = 5.0
"""Seconds for which rank 0 waits for the other ranks' journals to end."""
SIGNAL_WAIT_S = 8.0
"""How long a program that a signal ends waits for the answer. The sender of the signal kills it after 10 seconds or more."""
_POLL_S = 0.1
FAILED = "The program failed before its first step."
_WIDTH = 120
"""Columns where there is no terminal."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The run of the answer, and its form."""

    path: str
    """The run's directory, or that of all ranks."""
    ranks: int = 0
    """Ranks of the job; 0 if it has one, or if the answer is about this rank only."""
    local_ranks: int = 0
    """Ranks of the job that run on this machine: the first ones."""
    notes: tuple[tuple[str, str], ...] = ()
    """Further lines: a label and a text."""
    failed: str = ""
    """The reason why the program failed before its first step; shown instead of the note that there are too few steps."""
    absent: str = ""
    """The reason why this process recorded nothing; shown instead of an answer, unless another rank recorded something."""
    width: int = _WIDTH
    colour: bool = False
    says_more: bool = True
    """True if the answer names the command that shows the rest."""

    def text(self) -> str:
        """The answer in few lines, or the reason why there is none."""
        shown, why = self._try(self._shown)
        return shown or "\n".join([f"  No answer  {why}", *(f"  {label}  {text}" for label, text in self.notes)])

    def answer(self) -> tuple[Answer, Sequence[tuple[str, str]]]:
        """The same for programs: the answer, `refused` where there is none, and the notes."""
        from stepscope.analysis.explain import refused

        found, why = self._try(lambda answer, notes: (answer, notes))
        return found or (refused(self.path, why), self.notes)

    def _try(self, make: Callable[[Answer, Sequence[tuple[str, str]]], _T]) -> tuple[_T | None, str]:
        """Makes something of the answer and its notes, or returns why not: an error here must not hide how the program itself ended."""
        if self.absent and not self.ranks:
            return None, self.absent
        try:
            notes = (*self._awaited(), *self.notes)
            return make(self._judged(), notes), ""
        except KeyboardInterrupt:
            return None, "interrupted"
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"

    def text_of_other_process(self) -> str:
        """The same text, made by another process; empty if that takes too long."""
        typed_in = "" if opening.shell_directory is None else str(opening.shell_directory)
        command = [sys.executable, "-P", "-m", __name__, msgspec.json.encode(self).decode(), typed_in]
        environment = {name: value for name, value in os.environ.items() if name != "STEPSCOPE_JOIN"}
        out, into = os.pipe()
        try:
            silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 2)]
            # A session of its own: what ends this process group may not end it.
            child = posix_spawn(
                sys.executable,
                command,
                environment,
                file_actions=[*silent, (os.POSIX_SPAWN_DUP2, into, 1)],
                setsid=True,
                setsigmask=[],
            )
        except (OSError, NotImplementedError):
            os.close(out)
            return ""
        finally:
            os.close(into)
        text, until = bytearray(), time.monotonic() + SIGNAL_WAIT_S
        while _select([out], [], [], max(until - time.monotonic(), 0))[0]:
            more = _read(out, 1 << 16)
            if not more:
                break
            text += more
        else:
            os.kill(child, signal.SIGKILL)
            text.clear()
        os.close(out)
        _waitpid(child, 0)
        return text.decode(errors="replace")

    def _judged(self) -> Answer:
        from stepscope.analysis.explain import judge
        from stepscope.analysis.reading.recording import load
        from stepscope.analysis.tables.rank_summary import RankSummary

        recording = load(self.path)
        if self.ranks:  # an earlier job with more ranks may have written here
            recording.ranks = [rank for rank in recording.ranks if rank.rank is None or rank.rank < self.ranks]
        answer = judge(recording, [RankSummary(rank) for rank in recording.ranks])
        if self.failed and answer.refused:
            answer = msgspec.structs.replace(answer, verdict=FAILED, refused=self.failed)
        elif self.absent and not any(rank.windows for rank in recording.ranks):
            answer = msgspec.structs.replace(answer, refused=f"Nothing was recorded: {self.absent}.")
        return answer

    def _shown(self, answer: Answer, notes: Sequence[tuple[str, str]]) -> str:
        from rich.console import Console

        from stepscope.analysis.terminal import show_short

        text = StringIO()
        console = Console(file=text, force_terminal=self.colour, highlight=False, width=self.width)
        show_short(answer, console, notes, opening.command("report", Path(self.path)) if self.says_more else "")
        return text.getvalue().rstrip()

    def _awaited(self) -> list[tuple[str, str]]:
        """Waits a short time for the other ranks on this machine. Returns a note on those that have not ended or are not there."""
        if not self.ranks:
            return []
        from stepscope.analysis.reading.run_choice import SAME_JOB_NS

        place, until = Path(self.path), time.monotonic() + RANKS_WAIT_S
        while True:
            found = [_newest_run(place / f"rank{rank}") for rank in range(self.ranks)]
            running = [rank for rank, (_, is_running) in enumerate(found) if is_running]
            # Runs of an earlier job in the same place began long before rank 0.
            there = {
                rank
                for rank, (began_ns, is_running) in enumerate(found)
                if is_running or (began_ns and abs(began_ns - found[0][0]) < SAME_JOB_NS)
            }
            waiting = [rank for rank in range(self.local_ranks) if rank not in there or rank in running]
            if not waiting or time.monotonic() > until:
                break
            time.sleep(_POLL_S)
        absent = [rank for rank in range(self.ranks) if rank not in there]
        missing: list[str] = []
        if absent:
            missing.append(
                f"{_ranks(absent)}: nothing of {'it' if len(absent) == 1 else 'them'} is in {opening.shown(place)}"
            )
        if running:
            missing.append(
                f"{_ranks(running)}: not ended {RANKS_WAIT_S:.0f} s after this one, judged as far as recorded"
            )
        return [("Missing", "; ".join(missing))] if missing else []


def _newest_run(place: Path) -> tuple[int, bool]:
    """Unix time at which the newest run of a directory began, and whether one goes on there; 0 and False without a run."""
    try:
        is_running = any(note.running for _, note in notes_in(place, []))
        journals = Journals.of(place).found
    except OSError:  # there is none, or it is removed meanwhile
        return 0, False
    record = journals[0][1] if journals else None
    return 0 if record is None else record.created_ns, is_running


def _ranks(numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2, 5`, and of many how many."""
    if len(numbers) > 6:
        return f"{len(numbers):,} ranks ({numbers[0]} to {numbers[-1]})"
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def width() -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size((_WIDTH, 24)).columns


def main() -> None:
    """Writes the answer for a process that a signal ends."""
    opening.shell_directory = Path(sys.argv[2]) if sys.argv[2] else None
    print(msgspec.json.decode(sys.argv[1], type=Ending).text(), flush=True)


if __name__ == "__main__":
    main()
