"""Checks that imports go one way, by the contracts in pyproject.toml: `python -m tools.check_imports`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.package_tree import make, original


def main() -> int:
    """Returns 0 if every contract holds."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo"]
    done = subprocess.run(command, cwd=make(), capture_output=True, text=True, check=False)
    print(original(done.stdout).strip() if done.returncode else "import-linter: every contract is kept", done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
