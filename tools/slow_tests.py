"""Writes `tests/slow_tests.txt`, the tests that `make test` leaves out: `python -m tools.slow_tests JUNIT_XML`.

JUNIT_XML is of a run of all tests, as `make test-all` leaves it in `build/tests.xml`. A test is slow if one of its cases took
`CASE_S` seconds or more, or all of them together `CASES_S`.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

LIST = Path(__file__).resolve().parent.parent / "tests" / "slow_tests.txt"
CASE_S = 1.0
CASES_S = 4.0


def main(report: str) -> None:
    """Reads a report and writes the list."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2]
        times[f"{module}::{case.get('name', '').partition('[')[0]}"].append(float(case.get("time", 0)))
    slow = sorted(name for name, each in times.items() if max(each) >= CASE_S or sum(each) >= CASES_S)
    LIST.write_text("".join(f"{name}\n" for name in slow))
    print(f"{len(slow)} of {len(times)} tests are slow")


if __name__ == "__main__":
    main(sys.argv[1])
