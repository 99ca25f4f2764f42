"""Checks that the external pages to which the documentation links are there: `python -m tools.check_links`. Needs the network."""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request

from tools.package_tree import ROOT

LINK = re.compile(r"(?:\]\(|<)(https?://[^\s)>#]+)")
"""Markdown links and addresses in angle brackets, without their anchors."""
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
TIMEOUT_S = 20
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; stepscope link check)"}
"""Some servers refuse that of urllib."""


def links() -> dict[str, set[str]]:
    """Each address, with the pages that link to it."""
    found: dict[str, set[str]] = {}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]:
        for address in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
            found.setdefault(address, set()).add(str(page.relative_to(ROOT)))
    return found


def problem(address: str) -> str:
    """Why a page cannot be read; empty if it can."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=HEADERS), timeout=TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:  # an answer, which is to be closed
        with error:
            return str(error)
    except OSError as error:
        return str(error)


def main() -> int:
    """Returns 0 if all pages can be read."""
    found = links()
    broken = {address: why for address in found if (why := problem(address))}
    for address, why in broken.items():
        print(f"{address}: {why} ({', '.join(sorted(found[address]))})")
    print(f"{len(found)} outside pages, {len(broken)} cannot be read")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
