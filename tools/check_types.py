"""Runs mypy and pyright over everything: `python -m tools.check_types`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.package_tree import make, original

COLLECT_RARELY = "--max-semi-space-size=128"
"""For Node.js, which runs pyright and by its defaults spends a third of the time on collecting garbage: MB of new objects."""


def main() -> int:
    """Returns 0 if both find nothing. They run at the same time."""
    tree = make()
    binaries = Path(sys.executable).parent
    commands: dict[str, list[str]] = {"mypy": [], "pyright": ["--pythonpath", sys.executable]}
    environment = {**os.environ, "NODE_OPTIONS": f"{os.environ.get('NODE_OPTIONS', '')} {COLLECT_RARELY}".strip()}
    running = [
        subprocess.Popen([str(binaries / name), *options], cwd=tree, env=environment, stdout=subprocess.PIPE, text=True)
        for name, options in commands.items()
    ]
    failed = 0
    for name, process in zip(commands, running, strict=True):
        output, _ = process.communicate()
        print(f"{name}: {original(output).strip()}")
        failed = failed or process.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
