"""The process that trials run in: it takes one request a line, and gives one answer a line."""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from tests.stress.torture.fault import Fault, Outcome, label, load
from tests.stress.torture.processes import children, command, end_tree

PR_SET_CHILD_SUBREAPER = 36
"""Source: prctl(2)."""

HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that multiprocessing starts once, and keeps."""


class Request(msgspec.Struct, frozen=True):
    """One trial."""

    fault: str
    number: int
    directory: str


class Answer(msgspec.Struct, frozen=True):
    """The result of a trial."""

    outcome: Outcome = Outcome()
    missing: str = ""
    """Why it cannot be tried here."""


def attempt(fault: Fault, request: Request) -> Answer:
    """Runs a trial; what it raises, and processes that it leaves running, are problems."""
    try:
        outcome = fault.trial(Path(request.directory), request.number)
    except pytest.skip.Exception as skipped:
        return Answer(Outcome(tried=0), missing=str(skipped))
    except (Exception, pytest.fail.Exception) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome = Outcome(problems=(f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})",))
    running = {pid: command(pid) for pid in children(os.getpid())}
    running = {pid: line for pid, line in running.items() if not any(helper in line for helper in HELPERS)}
    # One without a command line is past its last instruction, and only not yet gone.
    left = [f"left running: {line[:120]}" for line in running.values() if line]
    for pid in running:
        end_tree(pid)
    return Answer(msgspec.structs.replace(outcome, problems=(*outcome.problems, *left)))


def serve(package: str, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers until there are no more requests."""
    # Orphans of a trial become children of this process, where they are found.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    faults = {label(fault): fault for fault in load(package).faults}
    for line in requests:
        request = msgspec.json.decode(line, type=Request)
        answers.write(msgspec.json.encode(attempt(faults[request.fault], request)) + b"\n")
        answers.flush()


def main() -> None:
    """Serves on standard input and output; what trials print goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing, os.fdopen(os.dup(0), "rb") as requests:
        os.dup2(nothing.fileno(), 0)
        serve(sys.argv[1], requests, answers)


if __name__ == "__main__":
    main()
