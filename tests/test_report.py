"""The report: every line that it may have is explained."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import stepscope as sc
from stepscope.runtime import trust
from tests.support import ROOT

PAGE = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")


def test_every_line_of_a_report_is_explained(output_dir: Path) -> None:
    """By its first word; those that a run has, and those that it could have."""
    with sc.trace(keep_last=2, backends=[sc.HostBackend()], output_dir=output_dir) as profiler:
        profiler.step()
        profiler.save()
    said = set(re.findall(r"^  (\w+)", str(profiler.report()), re.MULTILINE))
    assert {"state", "run", "recorded", "output", "flight", "saved", "clock", "backend", "cost", "overhead"} <= said
    could_be = set(re.findall(r'f"(\w+) {2,}', inspect.getsource(trust)))
    assert len(could_be) > 10
    explained = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert said | could_be <= explained
