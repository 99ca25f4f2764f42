"""Requests a window of this very process, as `stepscope arm --pid` does of another one."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

import stepscope as sc
from stepscope.runtime.control.entry_points.client import ask_process
from stepscope.runtime.control.entry_points.environment import VARIABLE
from stepscope.runtime.requests.armed import Armed
from stepscope.runtime.requests.command import Command

SOCKET = sc.Control(socket=True)
"""The entry point through which tests request windows."""


def arm_here(steps: int = 2) -> Armed:
    """Requests the next steps of the only profiler of this process with a socket, and returns its answer."""
    (answer,) = ask_process(os.getpid(), Command(command="arm", request=sc.control.WindowRequest(steps=steps)), 60)
    assert answer.armed is not None, answer.error
    return answer.armed


def set_options_in_environment(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Sets STEPSCOPE_OPTIONS."""
    monkeypatch.setenv(VARIABLE, json.dumps(fields))
