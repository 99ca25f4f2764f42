"""The lowest versions that pyproject.toml allows, as constraints for pip: `python -m tools.lowest >FILE`.

Of what stepscope itself and its extras for users need. torch, and what only the tests need, stay as constraints.txt has them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEVELOPMENT = {"bench", "dev", "docs"}
"""Extras that only development needs."""
_NEED = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,-]+\])?>=(?P<version>[\w.]+)(?:,<[\w.]+)?(?P<marker>;.*)?")
_PIN = re.compile(r"(?P<name>[\w.-]+)==")


def lowest(project: dict[str, Any], pinned: str) -> list[str]:
    """Lines of a file of constraints.

    Args:
        project: the table `project` of pyproject.toml.
        pinned: text of constraints.txt.

    Raises:
        ValueError: if a package is needed of which no lowest version is known.
    """
    pins = {match["name"]: line for line in pinned.splitlines() if (match := _PIN.match(line))}
    extras: dict[str, list[str]] = project["optional-dependencies"]
    needs = [*project["dependencies"], *(need for name in extras.keys() - DEVELOPMENT for need in extras[name])]
    found = dict(pins)
    for need in needs:
        if need.startswith(f"{project['name']}["):
            continue
        match = _NEED.fullmatch(need)
        if match is None:
            raise ValueError(f"pyproject.toml needs {need!r}, which names no lowest version; write name>=version")
        if match["name"] != "torch":
            found[match["name"]] = f"{match['name']}=={match['version']}{match['marker'] or ''}"
    return sorted(found.values())


def main() -> None:
    """Prints the lines."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("\n".join(lowest(project, (ROOT / "constraints.txt").read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
