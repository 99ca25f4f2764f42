"""The tutorials: everything that a page has its reader save, change and run happens here as well."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from stepscope.analysis.findings import Answer, Finding
from stepscope.runtime.control.entry_points.environment import SIGNALS_VARIABLE
from tests.support.basics import ROOT, require
from tests.support.commands import LAUNCHERS, stepscope

BLOCK = re.compile(r'^```(?P<kind>\w*)(?: title="(?P<file>[\w.]+)")?\n(?P<text>.*?)^```', re.DOTALL | re.MULTILINE)
VARYING = re.compile(r"\d[\d.,]*(?:ns|us|ms|s|%)?|\s+")
"""Numbers with their units, and where lines are broken."""


def follow(page: str, directory: Path) -> dict[str, tuple[Finding, ...]]:
    """Does what a page says: saves a block of Python, applies a diff, runs the lines of a block without a language.

    Returns:
        For each directory that was recorded what `explain` finds.
    """
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    # Threads of torch wait for each other, so long as no processor is free for all of them.
    one_thread = {"OMP_NUM_THREADS": "1"}
    environment = {**inherited, **one_thread, "PATH": search_path, SIGNALS_VARIABLE: "all"}
    found: dict[str, tuple[Finding, ...]] = {}
    for block in BLOCK.finditer(text_of(page)):
        if block["kind"] == "python":
            (directory / block["file"]).write_text(block["text"], encoding="utf-8")
        elif block["kind"] == "diff":
            apply(block["text"], directory / block["file"])
        elif block["kind"] == "":
            script = f"set -e\n{block['text']}"
            subprocess.run(["bash", "-c", script], cwd=directory, env=environment, timeout=250, check=True)
            for name in re.findall(r"--out (\w+)", script):
                answer = stepscope("explain", name, "--json", cwd=directory).stdout
                found[name] = msgspec.json.decode(answer, type=Answer).findings
    return found


def text_of(page: str) -> str:
    """A page of docs/."""
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def apply(diff: str, file: Path) -> None:
    """Changes the one place of a file that a diff shows."""
    lines = [line or " " for line in diff.splitlines()]
    before, after = ("".join(f"{line[1:]}\n" for line in lines if line[0] in (" ", sign)) for sign in "-+")
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1
    file.write_text(text.replace(before, after), encoding="utf-8")


def check(page: str, directory: Path, cause: str, function: str) -> None:
    """Fails unless the first recording has the cause that the page speaks of, as it shows it, and the last has not."""
    found = follow(page, directory)
    assert list(found) == ["slow", "mended"]
    first = found["slow"][0]
    assert (first.id, first.places[0].function) == (cause, function)
    assert VARYING.sub("", first.title) in VARYING.sub("", text_of(page))
    assert not [finding for finding in found["mended"] if function in str(finding.places)]


def test_training(tmp_path: Path) -> None:
    """The items of the loader are the cause, and no longer when they are made once."""
    require("torch")
    check("tutorial-training", tmp_path, "input-bound-in-process", "wave")


def test_service(tmp_path: Path) -> None:
    """A call that blocks the event loop is the cause, and no longer when it is on a thread."""
    check("tutorial-service", tmp_path, "loop-blocked", "digest")
