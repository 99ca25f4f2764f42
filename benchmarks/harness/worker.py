"""A process that measures one tool: it takes one JSON request a line, and gives one answer a line."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import AbstractContextManager
from typing import BinaryIO, Literal

import msgspec

from benchmarks.catalog import ROWS
from benchmarks.harness.peers import NotInstalledError
from benchmarks.harness.row import Round, Row, Sample, Tool
from benchmarks.harness.scale import SCALES


class Request(msgspec.Struct, frozen=True):
    """The next action for one contender of a row."""

    do: Literal["enter", "round", "leave"]
    row: str
    label: str
    scale: str = ""


class Answer(msgspec.Struct, frozen=True):
    """Its result: a sample after `round`."""

    sample: Sample | None = None
    missing: str = ""
    """Why the contender cannot be measured here."""
    failed: str = ""


class Turns:
    """The contender that is prepared at the moment."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._rows: dict[str, Row] = {row.key: row for row in ROWS}
        self._probe: AbstractContextManager[Round] | None = None
        self._round: Round | None = None

    def answer(self, request: Request) -> Answer:
        """Carries out a request; a fault is reported, and costs this contender only."""
        try:
            return self._do(request)
        except (NotInstalledError, ModuleNotFoundError) as error:
            return Answer(missing=str(error))
        except Exception as error:
            return Answer(failed=f"{type(error).__name__}: {error}")

    def _do(self, request: Request) -> Answer:
        if request.do == "enter":
            row = self._rows[request.row]
            contender = next(c for c in row.contenders if (c.tool, c.label) == (self._tool, request.label))
            self._probe = contender.probe(SCALES[request.scale])
            self._round = self._probe.__enter__()
        elif request.do == "round":
            assert self._round is not None
            return Answer(sample=self._round())
        elif self._probe is not None:
            probe, self._probe, self._round = self._probe, None, None
            probe.__exit__(None, None, None)
        return Answer()


def serve(tool: Tool, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers until there are no more requests."""
    turns = Turns(tool)
    for line in requests:
        answers.write(msgspec.json.encode(turns.answer(msgspec.json.decode(line, type=Request))) + b"\n")
        answers.flush()


def main() -> None:
    """Serves on standard input and output; what tools print goes to standard error."""
    warnings.simplefilter("ignore")  # of the tools measured
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(Tool(sys.argv[1]), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
