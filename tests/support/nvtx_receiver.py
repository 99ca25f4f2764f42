"""A library that receives a program's calls of NVTX, as NVIDIA's tools do, and writes down each call."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.native import COMPILER, require_compiler

SOURCE = Path(__file__).with_suffix(".c")


class Call(NamedTuple):
    """One call: `start`, `end`, `mark`, `push` or `pop`."""

    what: str
    domain: str
    message: str
    range: int
    """Number of the range that begins or ends; 0 for the others."""


def build(directory: Path) -> Mapping[str, str]:
    """Compiles it; returns the environment in which a program loads it."""
    require_compiler()
    made = directory / "nvtx_receiver.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(made), str(SOURCE)], check=True)
    return {"NVTX_INJECTION64_PATH": str(made), "TEST_NVTX_LOG": str(directory / "nvtx.log")}


def calls(environment: Mapping[str, str]) -> list[Call]:
    """Those of the program, in their order."""
    lines = Path(environment["TEST_NVTX_LOG"]).read_text(encoding="utf-8").splitlines()
    return [Call(what, domain, message, int(number)) for what, domain, message, number in map(_split, lines)]


def _split(line: str) -> list[str]:
    return line.split("|")
