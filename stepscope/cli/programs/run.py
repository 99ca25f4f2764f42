"""`stepscope run`: traces an unchanged program."""

from __future__ import annotations

import argparse
import os
import sys

from stepscope.cli.common.messages import message
from stepscope.cli.programs import run_options, script
from stepscope.cli.programs.child_processes import command_for_ranks
from stepscope.cli.programs.traced_program import TracedProgram
from stepscope.compat.mindspore.environment import EnvProfiler
from stepscope.runtime.lifecycle.shutdown_hooks import after_signal

HELP = "trace an unchanged program"
USAGE = "stepscope run [options] script.py [args ...]\n       stepscope run [options] -m module [args ...]"
DESCRIPTION = """\
Runs a Python program as it is and traces it: torch's operators if it uses torch, and its calls of stepscope.span() and
the like. Each call of the optimizer's step() ends a step.

Without --active it records everything in one window, that is, in one piece: right for a short program. For a long one
choose steps as for torch.profiler.schedule: --skip-first, then --repeat times --wait, --warmup and --active. Or keep the
last steps in memory, and save them when something goes wrong: --keep-last.
"""

EPILOG = """\
examples:
  stepscope run train.py --epochs 3
  stepscope run --skip-first 10 --wait 5 --warmup 1 --active 3 --repeat 2 train.py
  stepscope run --exporter tensorboard --mode kineto --profile-memory --out runs/exp1 train.py
  stepscope run --keep-last 20 train.py
  stepscope run -m package.train --epochs 3
  stepscope run --backend torch --backend host --duration 60 train.py
  stepscope run --control --collector ws://127.0.0.1:7788 train.py
  torchrun --no-python --nproc-per-node 2 stepscope run --out runs/exp2 train.py

Options come before the program; what follows it is the program's.
At the end it says what is slow, above the traceback of a program that fails; `stepscope explain DIR` says more.
--json prints an object as `stepscope explain --json` does, after the output of the program; nothing if a signal ends the
program.
One process is traced, and the workers of its DataLoaders. Each of a launcher's processes (ranks) needs the command, as in
the last example; rank 0 answers for all. Other processes that the program starts add their spans to its trace if they
import stepscope and STEPSCOPE_JOIN=1 is set.
If MS_PROFILER_OPTIONS has "start": true, stepscope.mindspore records the program as well: docs/mindspore.md.
The run's directory always has a journal, a file that survives a kill: `stepscope recover DIR` brings it back.
STEPSCOPE_SIGNALS=none leaves out stacks and the other signals: stepscope.Options.signals.

exit codes: the program's own; 1 if tracing could not begin, 2 for wrong usage
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    run_options.add(parser)
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    # Not REMAINDER, which would take options before the program as well, or lose a `--` behind it.
    parser.add_argument("program", metavar="script.py", nargs=argparse.PARSER, help="the program, and its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        OutputError: if the run's directory cannot be written; the program has not begun then.
    """
    words: list[str] = arguments.program
    program, *rest = words[1:] if words[0] == "--" and len(words) > 1 else words
    parser: argparse.ArgumentParser = arguments.parser
    if why := script.why_missing(program, module=arguments.module):
        ranks = command_for_ranks(program, rest)
        parser.error(f"{why}; to trace what a launcher starts: {ranks}" if ranks else why)
    if arguments.out is not None and arguments.out.is_file():
        parser.error(f"--out {arguments.out} is a file; name a directory")
    traced = TracedProgram.of(arguments, program, rest)
    if ranks := command_for_ranks(program, rest):
        message(
            f"stepscope run: {program} starts other processes, which this trace will not have; to trace each: {ranks}"
        )
    owner, output = os.getpid(), sys.stdout
    if not arguments.quiet:
        after_signal.add(traced.print_signal)
    traced.start(arguments)
    EnvProfiler.init_profiler()
    try:
        outcome = script.run(program, rest, module=arguments.module)
        failure = outcome.error or (
            RuntimeError(f"the program exited with status {outcome.code}") if outcome.code else None
        )
        if failure is not None:
            traced.profiler.caught(failure)
    finally:
        # A child that the program forked and that comes back here has nothing of this to end.
        if os.getpid() == owner:
            traced.end()
    # The program's error comes behind the answer, where it is seen.
    if os.getpid() == owner:
        if arguments.quiet:
            traced.print_traces()
        else:
            if arguments.report:
                traced.print_report()
            traced.print_end(failure, output, as_json=arguments.json)
    outcome.print_error()
    return outcome.code
