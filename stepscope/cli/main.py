"""The entry of the command line: the list of commands, and the handling of their errors."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from stepscope.cli.common.messages import discard_unwritten, flush, message, print_any_text
from stepscope.cli.common.values import number
from stepscope.cli.machine import doctor
from stepscope.cli.network import arm, collect, deliver, upload
from stepscope.cli.programs import demo, run
from stepscope.cli.showing import explain, report, view, windows
from stepscope.cli.writing import analyse, convert, merge, recover
from stepscope.runtime.errors import NoWindowError, StepscopeError
from stepscope.runtime.files.descriptors import reserve_standard_descriptors
from stepscope.runtime.settings.validation import did_you_mean
from stepscope.runtime.version import VERSION

COMMANDS = (
    doctor,
    demo,
    run,
    explain,
    report,
    view,
    windows,
    arm,
    recover,
    convert,
    analyse,
    collect,
    deliver,
    upload,
    merge,
)
"""Each has `HELP`, `DESCRIPTION`, `EPILOG`, in some cases `USAGE`, `add_options(parser)`, and `run(arguments)`, which returns its exit code."""
MOST_COLUMNS = 120
"""Columns of a line of text that still reads well."""
_CHOICE = re.compile(r"invalid choice: (.+?)(?:, maybe .+)? \(choose from (.+)\)")
"""argparse's message about a value that is not among the choices."""
NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]

EPILOG = """\
examples:
  stepscope doctor                what can be recorded here
  stepscope run train.py
  stepscope explain               what is slow in the newest run
  stepscope view runs/exp1

exit codes:
  0    done
  1    failed; standard error says why
  2    wrong usage
  3    analyse, convert, explain, merge, recover, report, windows: done, but without recordings, or parts of one, that could not be
       read, which are named
  4    convert, explain, merge, report: there is no such window
  130  interrupted
`stepscope run` exits as the script does.

`stepscope COMMAND --help` has the options of a command, with examples.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="stepscope",
        description="Traces training loops and asyncio programs, step by step. To begin: stepscope run train.py",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"stepscope {VERSION}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_CommandParser)
    for name, command in zip(NAMES, COMMANDS, strict=True):
        one: argparse.ArgumentParser = commands.add_parser(
            name,
            help=command.HELP,
            usage=getattr(command, "USAGE", None),
            description=command.DESCRIPTION,
            epilog=command.EPILOG,
        )
        command.add_options(one)
        one.set_defaults(function=command.run, command=name, parser=one)
    return top


class _CommandParser(argparse.ArgumentParser):
    """The parser of one command, with what all of them have."""

    def __init__(self, **settings: Any) -> None:
        settings["description"] = _wrapped(settings["description"])
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)
        self.register("type", int, number(int, "a whole number"))
        self.register("type", float, number(float, "a number"))
        self.add_argument("--traceback", action="store_true", help="show the traceback of an error")

    def error(self, message: str) -> NoReturn:
        message = _CHOICE.sub(lambda choice: f"must be one of {choice[2]}, got {choice[1]}", message)
        message = re.sub(r"^argument (\S+): must", r"\1 must", message)
        super().error(message.removeprefix("argument "))


def _wrapped(description: str) -> str:
    """A description for this terminal; lists, whose lines are indented, stay as they are."""
    width = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    paragraphs = description.strip().split("\n\n")
    return "\n\n".join(text if "\n  " in text else wrapper.fill(text) for text in paragraphs)


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
    parsed = _parsed(list(sys.argv[1:] if arguments is None else arguments))
    if parsed.command != "run":
        print_any_text()
    try:
        code: int = parsed.function(parsed)
        if (
            parsed.command != "run"
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
        if parsed.traceback and sys.stderr is not None:
            traceback.print_exc()
        message(f"stepscope {parsed.command}: {_sentence(error)}")
        discard_unwritten(sys.stdout)
        return error.exit_code if isinstance(error, NoWindowError) else 1


def _parsed(words: list[str]) -> argparse.Namespace:
    """Parses the arguments; ends with help, or with wrong usage that names the likely command or option."""
    top = parser()
    if not words:
        top.print_help(sys.stderr)
        top.exit(2)
    if words[0] == "help":
        words = [*words[1:2], "--help"]
    first = words[0]
    if not first.startswith("-") and first not in NAMES:
        is_script = first.endswith(".py") or Path(first).exists()
        hint = f"; did you mean: stepscope run {first}" if is_script else did_you_mean(first, NAMES)
        top.error(f"there is no command {first!r}{hint}")
    parsed, unknown = top.parse_known_args(words)
    if unknown:
        _refuse(parsed, unknown)
    parsed.words = words
    return parsed


def _refuse(parsed: argparse.Namespace, unknown: list[str]) -> None:
    command: argparse.ArgumentParser = parsed.parser
    option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
    if option is None:
        command.error(f"unrecognized arguments: {' '.join(unknown)}")
    options = re.findall(r"^  (-.*?)(?:   |$)", command.format_help(), re.MULTILINE)
    known = re.findall(r"--[\w-]+", " ".join(options))
    if option in known:
        command.error(f"options go after the command: stepscope {parsed.command} {option} ...")
    close = get_close_matches(option, known, 1, 0.8)
    hint = f"; did you mean {close[0]}?" if close else ""
    if parsed.command == "run" and not close:
        hint = "; options of the program go after its name"
    command.error(f"{parsed.command} has no option {option}{hint}")


def _sentence(error: Exception) -> str:
    """An error as one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    text = " ".join(str(error).split())
    if isinstance(error, StepscopeError | ImportError | OSError):
        return text
    return f"{type(error).__name__}: {text} (not foreseen: please report it with what --traceback shows)"
