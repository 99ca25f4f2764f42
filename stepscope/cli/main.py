"""The entry of the command line: which commands there are, and what becomes of their errors."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence

from stepscope.cli import analyse, arm, collect, convert, deliver, demo, explain, merge, recover, report, run, upload
from stepscope.cli.messages import discard_unwritten, flush, message, print_any_text
from stepscope.runtime.descriptors import reserve_standard_descriptors
from stepscope.runtime.errors import NoWindowError, StepscopeError
from stepscope.runtime.version import VERSION

COMMANDS = (demo, run, explain, report, arm, recover, convert, analyse, collect, deliver, upload, merge)
"""Each has `add(commands, common)`, which declares it, and names its function."""

EPILOG = """\
exit codes:
  0    done
  1    failed; standard error says why
  2    wrong usage
  3    recover: done, but something is missing that could not be read
  4    convert, merge: there is no such window
  130  interrupted
`stepscope run` exits as the script does.

`stepscope COMMAND --help` has the options of a command, with examples.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="stepscope",
        description="Traces training loops, step by step.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"stepscope {VERSION}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--traceback", action="store_true", help="show where an error was raised")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands, common)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: those after the program's name; by default those of this process.

    Returns:
        The exit code.

    Raises:
        SystemExit: from argparse, for wrong usage (2), `--help` and `--version` (0).
    """
    reserve_standard_descriptors()
    given = parser().parse_args(arguments)
    given.words = list(sys.argv[1:] if arguments is None else arguments)
    if given.command != "run":
        print_any_text()
    try:
        code: int = given.function(given)
        if (
            given.command != "run"
        ):  # what a program has not written yet, the interpreter writes at its exit, as without us
            flush(sys.stdout)
        return code
    except KeyboardInterrupt:
        message("stepscope: interrupted")
        return 130
    except BrokenPipeError:  # the reader of a pipe has gone, as `head` does
        discard_unwritten(sys.stdout)
        return 1
    except Exception as error:
        if given.traceback and sys.stderr is not None:
            traceback.print_exc()
        message(f"stepscope {given.command}: {_sentence(error)}")
        discard_unwritten(sys.stdout)
        return error.exit_code if isinstance(error, NoWindowError) else 1


def _sentence(error: Exception) -> str:
    """An error as one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    text = " ".join(str(error).split())
    if isinstance(error, StepscopeError | ImportError | OSError):
        return text
    return f"{type(error).__name__}: {text} (not foreseen: please report it with what --traceback shows)"
