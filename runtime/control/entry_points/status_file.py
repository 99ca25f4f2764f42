"""The status file next to a watched file, with the state of requests and windows."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.private_files import replace_private
from stepscope.runtime.requests.armed import ArmedStatus

log = logging.getLogger("stepscope")

SHOWN = 8
"""Number of windows in the file, the latest."""


class StatusFile:
    """An object of facts in a JSON file, which each change replaces in one step.

    If the file cannot be written, that is logged once.
    """

    def __init__(self, path: Path, *, enabled: bool = True) -> None:
        self.path = path
        self.enabled = enabled
        self._facts: dict[str, Any] = {}
        self._failed = False

    def put(self, **facts: Any) -> None:
        """Changes facts, and removes those that are `None`."""
        changed = {**self._facts, **facts}
        self._facts = {name: value for name, value in changed.items() if value is not None}
        if not self.enabled:
            return
        facts = {**self._facts, "pid": os.getpid(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        try:
            replace_private(self.path, msgspec.json.format(json_bytes(facts), indent=2) + b"\n")
        except OSError as error:
            if not self._failed:
                self._failed = True
                log.warning("%s cannot be written: %s", self.path, error)

    def put_answer(self, request: str, answer: str, *, trigger: str, run_id: str = "") -> None:
        """Writes the latest request and its answer."""
        self.put(request=request, run_id=run_id or None, trigger=trigger, answer=answer)

    def put_windows(self, windows: Sequence[ArmedStatus]) -> None:
        """Writes the states of windows, if they have changed."""
        latest = list(windows[-SHOWN:])
        if latest != self._facts.get("windows", []):
            self.put(windows=latest)
