"""Runs mypy and pyright over everything, and tsc over the live page: `python -m tools.check_types`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools import page_types
from tools.package_tree import ROOT, make, original

COLLECT_RARELY = "--max-semi-space-size=128"
"""For Node.js, which runs pyright and by its defaults spends a third of the time on collecting garbage: MB of new objects."""
TSC = ROOT / ".cache" / "viewers" / "typescript" / "package" / "lib" / "tsc.js"
PAGE = ROOT / "collector" / "page" / "jsconfig.json"


def main() -> int:
    """Returns 0 if none finds anything. They run at the same time."""
    tree = make()
    binaries = Path(sys.executable).parent
    commands = {
        "mypy": [str(binaries / "mypy")],
        "pyright": [str(binaries / "pyright"), "--pythonpath", sys.executable],
    }
    node = shutil.which("node")
    if node is not None and TSC.is_file():
        page_types.write()
        commands["tsc"] = [node, str(TSC), "--project", str(PAGE)]
    else:
        print("tsc: the types of the live page are not checked; install npm and run `make viewers`")
    environment = {**os.environ, "NODE_OPTIONS": f"{os.environ.get('NODE_OPTIONS', '')} {COLLECT_RARELY}".strip()}
    running = [
        subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True)
        for command in commands.values()
    ]
    failed = 0
    for name, process in zip(commands, running, strict=True):
        output, _ = process.communicate()
        print(f"{name}: {original(output).strip() or 'no errors'}")
        failed = failed or process.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
