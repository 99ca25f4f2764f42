"""The files by which ranks agree on steps, in the directory of a run. Each is written once, in one step, and never changed.

plan-N.json         rank 0: the steps of a window, another end of windows, or the reason of a refusal
request-KEY.json    another rank: a request that it received; rank 0 deletes it when it has decided
unable-N-RANK.json  another rank: the reason why it cannot follow plan N
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.file_reading import create_once, read_bounded
from stepscope.runtime.requests.end_change import EndChange, EndRequest
from stepscope.runtime.requests.window_request import WindowRequest

T = TypeVar("T")

AnyRequest = WindowRequest | EndRequest
"""A window, or another end of existing windows."""

MAX_RECORD_BYTES = 1 << 20
MAX_PLANS = 16
"""Plans in the directory; older ones are deleted."""

_PLAN = re.compile(r"plan-(\d{1,9})\.json")
_UNABLE = re.compile(r"unable-\d{1,9}-(\d{1,9})\.json")


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that one rank forwards to rank 0: `window` or `end`."""

    profiler: str
    """Name of the profiler within its process."""
    trigger: str
    """Its origin, such as `file` or `socket`."""
    window: WindowRequest | None = None
    end: EndRequest | None = None

    @property
    def payload(self) -> AnyRequest:
        """The one of the two that is set."""
        return self.window or self.end or EndRequest(command="abort")


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rank 0's decision on a request: a window, a change, or a refusal."""

    key: str
    """Identifies the request."""
    request: Request
    window: WindowRequest | None = None
    """The window to record: its start step, and its last step or its length, are numbers."""
    change: EndChange | None = None
    """The new end of existing windows."""
    refused: str = ""
    """Why nothing is recorded or changed."""


class Plans:
    """The files of one run. Methods raise `OSError` if the directory cannot be used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def numbers(self, after: int = 0) -> list[int]:
        """Returns the numbers of the plans after this one, in order."""
        found = (_PLAN.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(number for match in found if match and (number := int(match[1])) > after)

    def ranks(self) -> int:
        """Returns the number of ranks that have joined, without rank 0."""
        return sum(1 for _ in self.directory.glob("rank-*"))

    def plan(self, number: int) -> Plan | None:
        """Reads a plan; `None` if it does not exist or cannot be read."""
        return read_record(self.directory / f"plan-{number}.json", Plan)

    def publish(self, plan: Plan) -> int:
        """Writes a plan with the next number, which it returns. Deletes the oldest plan, and what ranks reported of it."""
        number = max(self.numbers(), default=0) + 1
        oldest = number - MAX_PLANS
        for path in (self.directory / f"plan-{oldest}.json", *self.directory.glob(f"unable-{oldest}-*.json")):
            path.unlink(missing_ok=True)
        while not create_once(self.directory / f"plan-{number}.json", json_bytes(plan)):
            number += 1
        return number

    def request_path(self, key: str) -> Path:
        """Returns the path of a request's file."""
        return self.directory / f"request-{key}.json"

    def requests(self, profiler: str) -> list[tuple[str, Request]]:
        """Returns the requests of other ranks for one profiler, with their keys."""
        found = [(path.stem[8:], read_record(path, Request)) for path in self.directory.glob("request-*.json")]
        return [(key, request) for key, request in found if request is not None and request.profiler == profiler]

    def forward(self, key: str, request: Request) -> None:
        """Forwards a request to rank 0."""
        create_once(self.request_path(key), json_bytes(request))

    def report_unable(self, number: int, rank: int, reason: str) -> None:
        """Reports that a rank cannot follow a plan."""
        create_once(self.directory / f"unable-{number}-{rank}.json", json_bytes(reason))

    def unable(self, number: int) -> dict[int, str]:
        """Returns the reasons of ranks that cannot follow a plan, by rank."""
        found = [(_UNABLE.fullmatch(path.name), path) for path in self.directory.glob(f"unable-{number}-*.json")]
        reasons = {int(match[1]): read_record(path, str) for match, path in found if match}
        return {rank: reason for rank, reason in sorted(reasons.items()) if reason is not None}


def read_record(path: Path, kind: type[T]) -> T | None:
    """Reads a small record; `None` if it does not exist or cannot be read. A link is not followed."""
    reading = read_bounded(path, MAX_RECORD_BYTES, follow=False)
    if reading.content is None:
        return None
    try:
        return msgspec.json.decode(reading.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
