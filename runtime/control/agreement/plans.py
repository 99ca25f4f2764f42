"""The files by which ranks agree on steps. Each is written once, in one step, and never changed.

plan-N.json         rank 0: the steps of a window, another end of windows, or the reason of a refusal
request-KEY.json    another rank: a request that it received; rank 0 deletes it when it has decided
unable-N-RANK.json  another rank: the reason why it cannot follow plan N
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.runtime.control.agreement.job_directory import read_record
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.file_reading import create_once
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.end_change import EndChange, EndRequest
from stepscope.runtime.requests.window_request import Rank, WindowRequest
from stepscope.runtime.session.ranks import ranks_text

AnyRequest = WindowRequest | EndRequest
"""A window, or another end of existing windows."""

MAX_PLANS = 16
"""Plans in the directory; older ones are deleted."""

_PLAN = re.compile(r"plan-(\d{1,9})\.json")


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

    number: int
    key: str
    """Identifies the request."""
    request: Request
    window: WindowRequest | None = None
    """The window to record: its start step, and its last step or its length, are numbers."""
    change: EndChange | None = None
    """The new end of existing windows."""
    refused: str = ""
    """Why nothing is recorded or changed."""

    @property
    def first(self) -> int:
        """The start step of the window."""
        return int(self.window.start_step) if self.window is not None and self.window.start_step != "next" else 0

    def answer_elsewhere(self) -> Armed:
        """The answer on a rank that the plan does not concern."""
        payload = self.request.payload
        if self.window is None or not isinstance(payload, WindowRequest):
            return Armed(not self.refused, run_id=payload.run_id, reason=self.refused or "asked of other ranks")
        by = f"by rank{'s' * (len(payload.ranks or ()) != 1)} {ranks_text(payload.ranks)}"
        return Armed(True, self.first, self.window.stop_step, payload.run_id, by)


class Unable(msgspec.Struct, frozen=True):
    """A report of a rank that cannot follow a plan."""

    rank: Rank
    reason: Annotated[str, msgspec.Meta(max_length=2000)]


class Plans:
    """The files of one run. Methods raise `OSError` if the directory cannot be used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def numbers(self) -> list[int]:
        """Returns the numbers of the existing plans, in order."""
        found = (_PLAN.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def ranks(self) -> int:
        """Returns the number of ranks that have joined, without rank 0."""
        return sum(1 for _ in self.directory.glob("rank-*.json"))

    def plan(self, number: int) -> Plan | None:
        """Reads a plan; `None` if it does not exist or cannot be read."""
        plan = read_record(self.directory / f"plan-{number}.json", Plan)
        return plan if plan is not None and plan.number == number else None

    def publish(self, plan: Plan) -> Plan:
        """Writes a plan with the next number, and returns it. Deletes old plans."""
        numbers = self.numbers()
        plan = msgspec.structs.replace(plan, number=max(numbers, default=0) + 1)
        while not create_once(self.directory / f"plan-{plan.number}.json", json_bytes(plan)):
            plan = msgspec.structs.replace(plan, number=plan.number + 1)
        for number in numbers:
            if number <= plan.number - MAX_PLANS:
                for path in (self.directory / f"plan-{number}.json", *self.directory.glob(f"unable-{number}-*.json")):
                    path.unlink(missing_ok=True)
        return plan

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

    def report_unable(self, number: int, unable: Unable) -> None:
        """Reports that a rank cannot follow a plan."""
        create_once(self.directory / f"unable-{number}-{unable.rank}.json", json_bytes(unable))

    def unable(self, number: int) -> list[Unable]:
        """Returns the reports of ranks that cannot follow a plan."""
        found = (read_record(path, Unable) for path in self.directory.glob(f"unable-{number}-*.json"))
        return sorted((each for each in found if each is not None), key=lambda each: each.rank)
