"""A library that stands for that of NVIDIA's driver, with its symbols and two devices."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.native import COMPILER, require_compiler

SOURCE = Path(__file__).with_suffix(".c")


def build(directory: Path) -> Path:
    """Compiles it, under the name by which it is looked for."""
    require_compiler()
    made = directory / "libnvidia-ml.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(made), str(SOURCE)], check=True)
    return made
