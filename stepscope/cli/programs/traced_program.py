"""A program and the profiler around it."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import os
import sys
import textwrap
from _thread import interrupt_main
from collections.abc import Callable, Sequence
from os import write  # by name, like select: gevent and eventlet replace the functions in their modules
from pathlib import Path
from select import select
from typing import TextIO

import msgspec

from stepscope.backends.parallel_layout import DECLARED, with_layout
from stepscope.backends.torch import loader as torch_loader
from stepscope.backends.torch.importing import TorchImport
from stepscope.build import trace
from stepscope.cli.common import opening
from stepscope.cli.common.messages import Progress, discard_unwritten, message, on_terminal, print_json
from stepscope.cli.programs.child_processes import ChildProcesses
from stepscope.cli.programs.ending import Ending
from stepscope.cli.programs.ending import width as ending_width
from stepscope.cli.programs.run_options import TRACES, backends_of, exporters_of, schedule_of
from stepscope.cli.programs.torch_program import OptimizerSteps
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.control.settings import Control
from stepscope.runtime.display.text_table import human_count, printable
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.lifecycle.output_directory import Output
from stepscope.runtime.options import SIGNALS, Options
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import Schedule, never
from stepscope.runtime.session.job import local_world_size, rank_from_environment
from stepscope.runtime.threads.background_call import start
from stepscope.runtime.threads.native_threads import Event, Thread
from stepscope.runtime.windows.step_statistics import OPTIMIZER, STEPS_END

PATIENT = Options(linger=60, close_timeout=120, signals=SIGNALS)
"""The program has ended, nobody waits for the terminal: what torch's profiler still converts is worth waiting for."""
log = logging.getLogger("stepscope")

WINDOWS_INTERVAL_S = 1.0
"""Seconds between two lines about windows, at least."""
_STDERR = 2
_INDENT = 12
"""Columns before the values in the report."""
_HOW_TO_TRACE_CHILDREN = (
    "ranks: start them by torchrun --no-python --nproc-per-node N stepscope run [options] train.py, or call stepscope.trace() in them; "
    "spans of others: set STEPSCOPE_JOIN=1, and import stepscope in them"
)


_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_calls: list[object] = []
"""Calls that the main thread may still make, and that must not be freed before."""


def call_on_main_thread(function: Callable[[], None]) -> None:
    """Has the main thread call a function soon, between two instructions, as it calls handlers of signals.

    While it waits in a library it calls nothing.
    """

    def called(_: object) -> int:
        try:
            function()
        except Exception:
            log.exception("%r failed", function)
        except BaseException:  # of a handler of a signal; it cannot leave this call
            interrupt_main()
        return 0

    call = _CALL(called)
    _calls.append(call)
    ctypes.pythonapi.Py_AddPendingCall(call, None)


class TracedProgram(msgspec.Struct, frozen=True):
    """The profiler of `stepscope run`, with its files and messages."""

    profiler: Profiler
    steps: OptimizerSteps
    watch: TorchImport
    files: dict[str, Path]
    """The files that are written, by exporter."""
    children: ChildProcesses
    over: Event
    """Set when the program has ended."""

    @classmethod
    def of(cls, arguments: argparse.Namespace, program: str, rest: list[str]) -> TracedProgram:
        """Makes the profiler; wrong arguments end the process, as argparse does it."""
        name: str = arguments.name or (program if arguments.module else Path(program).stem) or "run"
        chosen = schedule_of(arguments)
        backends = backends_of(arguments)
        rank = rank_from_environment()[0]
        # Chosen here, so that what the exporters write is in the run's directory.
        output = Output.choose(arguments.out, name, None)
        opening.shell_directory, directory = absolute("."), absolute(output.path)
        files, exporters = exporters_of(arguments, directory if rank is None else directory / f"rank{rank}")
        if not arguments.quiet:
            for path in files.values():
                every = path.with_name(path.name.replace("{window}", "*"))
                if any(found.is_file() for found in path.parent.glob(every.name)):
                    message(
                        f"stepscope run: {opening.shown(every)} is of an earlier run, and will be replaced; its journal stays"
                    )

        def note_layout() -> None:
            """Process groups are made after the start, and may be destroyed before the end."""
            if layout := with_layout(profiler.metadata).get(DECLARED):
                profiler.add_metadata(DECLARED, layout)

        steps = OptimizerSteps(lambda: profiler.step(), note_layout)
        by_optimizer = arguments.step_on == "optimizer"
        # As they were typed, without the program and its arguments.
        options = [word for word in arguments.words[1 : -len(arguments.program)] if word not in ("-m", "--")]
        profiler = trace(
            schedule=chosen,
            keep_last=arguments.keep_last,
            backends=backends,
            exporters=exporters,
            name=name,
            output_dir=output,
            metadata={"command": [program, *rest]}
            | ({"options": options} if options else {})
            | ({STEPS_END: OPTIMIZER} if by_optimizer else {}),
            options=PATIENT,
            control=Control(socket=True, collector=bool(arguments.collector)) if arguments.control else None,
        )
        torch_loader.LOADER.workers_join = True
        children = ChildProcesses()
        watch = TorchImport(steps.attach)
        if by_optimizer:
            watch.watch()
        return cls(profiler, steps, watch, files, children, Event())

    def start(self, arguments: argparse.Namespace) -> None:
        """Begins to record."""
        self.profiler.start()
        says_more = self.prints_ending and not arguments.quiet
        if self.profiler.control is not None and says_more:
            message(f"stepscope run: to record steps: stepscope arm --pid {os.getpid()} --steps 30")
        if on_terminal() and says_more:
            if self.profiler.schedule is not never:
                message(f"stepscope run: {self._begin()} {opening.shown(self.profiler.output.path)}")
            with contextlib.suppress(RuntimeError):  # no thread is left, and the program matters more
                start(Thread(target=self._print_windows, name="stepscope windows", daemon=True))
        if arguments.duration is not None:
            wait = Thread(target=self._end_after, args=(arguments.duration,), name="stepscope duration", daemon=True)
            start(wait)

    def _begin(self) -> str:
        """The beginning of the message that names the directory: which steps are recorded."""
        keep_last, chosen = self.profiler.keep_last, self.profiler.schedule
        if keep_last is not None:
            return f"keeping the last {human_count(keep_last.steps, 'step')}; if something goes wrong they are saved in"
        first = chosen.next_record(0) if isinstance(chosen, Schedule) else 0
        return f"recording from step {first} on, in" if first else "recording in"

    def _print_windows(self) -> None:
        """Prints how many windows were recorded, when there are more. That is all until the end, as the terminal is the program's."""
        printed = 0
        while not self.over.wait(WINDOWS_INTERVAL_S):
            statistics = self.profiler.statistics()
            is_open = self.profiler.current_action.records
            ended = statistics.windows - is_open if self.profiler.keep_last is None else len(self.profiler.saved())
            if ended > printed and os.isatty(_STDERR):
                printed = ended
                steps = human_count(statistics.steps, "step")
                _write(f"stepscope run: {human_count(ended, 'window')} recorded, {steps} so far\n")

    def _until_next_step(self, step: int) -> ProfilerAction:
        """A schedule that ends the open window with the next step, and records no other."""
        is_open = self.profiler.current_action is ProfilerAction.RECORD
        return ProfilerAction.RECORD_AND_SAVE if is_open else ProfilerAction.NONE

    def _end_after(self, seconds: float) -> None:
        if self.over.wait(seconds):
            return
        if self.profiler.control is not None:
            self.profiler.control.refuse(f"--duration {seconds:g} is over")
        steps = self.profiler.statistics().steps if self.profiler.keep_last is None else 0
        if steps:
            on_request = any(window.state == "running" for window in self.profiler.armed())
            self.profiler.replace_schedule(never if on_request else self._until_next_step)
            self.profiler.abort(reason=f"--duration {seconds:g} is over")
        else:  # no step may ever come, or its border matters to no window
            self.watch.forget()
            self.steps.detach()
            self.profiler.stop()
            call_on_main_thread(self.profiler.stop)  # torch records its operators there until this
        if self.prints_ending:
            where = opening.shown(self.profiler.output.path)
            ends = "with this step" if steps else "now"
            message(f"stepscope run: {seconds:g} s are over: recording ends {ends}; what was recorded is in {where}")

    def end(self) -> None:
        """Closes everything; what was recorded is on disk then."""
        self.over.set()
        self.watch.forget()
        self.steps.detach()
        with Progress("the program has ended; writing the recording"):
            self.profiler.close()

    def print_report(self) -> None:
        """Prints the table and the trust report."""
        report = self.profiler.report().text(verbose=True)
        if on_terminal():
            wrap = textwrap.TextWrapper(
                ending_width(), subsequent_indent=" " * _INDENT, break_long_words=False, break_on_hyphens=False
            )
            report = "\n".join(map(wrap.fill, report.split("\n")))
        message("\n".join([self.profiler.summary(top=15), report, ""]))

    def print_end(self, failure: BaseException | None, output: TextIO | None, *, as_json: bool) -> None:
        """Prints what is slow, why, what to try, and where the files are. Of the ranks of a job only the first does.

        Args:
            failure: of the program, which says enough of what it did not record.
            output: standard output as it was before the program began, which may have replaced `sys.stdout`; `None` if it was closed.
            as_json: the answer as JSON on standard output.
        """
        if not self.prints_ending:
            return
        problem = self.watch.problem
        problems = [] if problem is None else [("No steps", f"{type(problem).__name__}: {problem}")]
        notes = (*problems, *self._untraced(), *(() if failure else self._empty()))
        failed = _failure_text(failure) if failure is not None and not self.profiler.statistics().steps else ""
        ending = self._ending(notes, failed, "" if failed else self._absent())
        progress = Progress("looking for what is slow")
        if not as_json:
            with progress:
                text = ending.text()
            message(text)
            return
        with progress:
            answer, lines = ending.answer()
        _print_lines(lines)
        if output is None:
            message("stepscope run: the answer could not be written to standard output: it is closed")
            return
        try:
            with contextlib.redirect_stdout(output):
                print_json(answer)
        except (OSError, ValueError) as error:  # the program has closed standard output, or its reader has gone
            message(f"stepscope run: the answer could not be written to standard output: {error}")
            discard_unwritten(output)

    def print_traces(self) -> None:
        """Prints where the traces are, whether the program started a launcher, and no more."""
        if self.prints_ending:
            untraced = self._untraced() if self.children.ranks else []
            _print_lines([("See it", how) for how in self._opening()] + untraced)

    def _ending(self, notes: tuple[tuple[str, str], ...] = (), failed: str = "", absent: str = "") -> Ending:
        """The last lines, with the paths of the files."""
        run = self.profiler.output.path
        rank, size = rank_from_environment()
        several = rank == 0 and size is not None and size > 1 and run.name == "rank0"
        whole = run.parent if several else run
        traces = [] if several else self._opening()
        files = [("See it", how) for how in traces or ([] if absent else [opening.command("view", whole)])]
        return Ending(
            path=str(whole),
            absent=absent,
            ranks=size or 0 if several else 0,
            local_ranks=min(local_world_size() or size or 0, size or 0) if several else 0,
            notes=(*notes, *files),
            failed=failed,
            width=ending_width(),
            colour=on_terminal(),
        )

    @property
    def prints_ending(self) -> bool:
        """True if this process prints how it ended: it is no rank of a job, or the first one."""
        return rank_from_environment()[0] in (None, 0)

    def _empty(self) -> list[tuple[str, str]]:
        """Advice if the program recorded nothing but its steps."""
        found = self.profiler.aggregates()
        spans = [row.name for row in (*found.rows, *found.elsewhere) if not row.name.startswith("ProfilerStep")]
        if spans or found.counters or found.instants or not self.profiler.statistics().windows:
            return []
        why = "records nothing itself" if "torch" in sys.modules else "imports no torch, and records nothing itself"
        return [("Empty", f"the program {why}: add stepscope.span() to it, or stepscope.instrument(module)")]

    def _absent(self) -> str:
        """The reason why there is no window; empty if there is one."""
        profiler = self.profiler
        if profiler.saved() if profiler.keep_last is not None else profiler.statistics().windows:
            return ""
        if profiler.control is not None:
            return "no window was asked for: stepscope arm, while the program runs"
        return next(iter(profiler.diagnostics()), "")

    def _untraced(self) -> list[tuple[str, str]]:
        """A note on other processes, if this one did no step: they did the work."""
        statistics = self.profiler.statistics()
        joined = 0 if statistics.recorder is None else len(statistics.recorder.workers)
        count = self.children.count - joined
        if statistics.steps or count <= 0:
            return []
        ran = f"{human_count(count, 'process', 'es')} that the program started ran, and this trace does not have them"
        how = f"to trace each: {self.children.ranks}" if self.children.ranks else _HOW_TO_TRACE_CHILDREN
        return [("Children", f"{ran}; {how}")]

    def print_signal(self, name: str) -> None:
        """Prints that a signal ends the program, where the files are, and what is slow; `end` has been called by nobody."""
        directory = opening.shown(self.profiler.output.path)
        timed_out = self.profiler.statistics().timed_out
        rest = "; not all was written, see above" if timed_out else ""
        if timed_out or self.prints_ending:
            _write(f"stepscope run: {name} ended the program; what was recorded is in {directory}{rest}\n")
        if not timed_out and self.prints_ending and _takes_text():
            ending = self._ending(absent=self._absent() if self.profiler.control is not None else "")
            answer = ending.text_of_other_process().lstrip("\n")  # a line was printed already
            _write(answer or "".join(f"{label}  {text}\n" for label, text in ending.notes))

    def _opening(self) -> list[str]:
        """Commands that open the result, if there is one."""
        profiler = self.profiler
        commands: list[str] = []
        windows = profiler.statistics().windows if profiler.keep_last is None else len(profiler.saved())
        for exporter, path in self.files.items() if windows else ():
            if exporter in TRACES and (trace := _latest(path)) is not None:
                commands.append(opening.perfetto(trace))
            elif exporter == "tensorboard" and path.exists():
                commands.append(opening.tensorboard(path))
        return commands


def _print_lines(lines: Sequence[tuple[str, str]]) -> None:
    if lines:
        message("\n".join(f"{label.lower():10} {text}" for label, text in lines))


def _failure_text(failure: BaseException) -> str:
    """The exception of the program, on one line, with advice if this environment lacks a module."""
    text = printable(error_text(failure))
    if isinstance(failure, ModuleNotFoundError):
        text += f". The program ran with {sys.executable}: install stepscope into the environment that has its modules."
    return text


def _takes_text() -> bool:
    """True if standard error takes something at once."""
    with contextlib.suppress(OSError):  # closed
        return bool(select([], [_STDERR], [], 0)[1])
    return False


def _write(text: str) -> None:
    """Writes to standard error, if it takes something at once.

    `sys.stderr` has a lock that the program may hold, and a pipe that nobody reads would make the process wait.
    """
    with contextlib.suppress(OSError):  # closed
        if _takes_text():
            write(_STDERR, text.encode(errors="replace"))


def _latest(path: Path) -> Path | None:
    """A trace that was written, where each window has a file the last one's; `None` if there is none."""
    written = path.parent.glob(path.name.replace("{window}", "*"))
    return max(written, key=lambda trace: (len(trace.name), trace.name), default=None)
