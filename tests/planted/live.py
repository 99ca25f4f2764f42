"""Runs planted programs under `stepscope run`, and compares what `explain` finds first with what was planted.

python -m tests.planted.live [NAME ...] [--times N] [--out DIR] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepscope.analysis.explain import ENVIRONMENT, explain
from stepscope.analysis.findings import Answer

HERE = Path(__file__).parent


class Program(msgspec.Struct, frozen=True):
    """A program as a manifest (`programs_*.toml`) describes it."""

    file: str
    fault: str
    """Id of the finding that must be the first; `none` for a healthy program, `refused` for one that cannot be judged."""
    arguments: list[str] = []
    cured: list[str] | None = None
    """Arguments with which the fault is not there."""
    ranks: int = 1
    kind: str = "training"
    place: str = ""
    """Qualified name of the function where the time goes."""
    costs: float = 0.0
    """Percent of the step, as measured without any tool."""
    slow_rank: int | None = None
    allowed: list[str] = []
    """Further findings that are true on a machine with two processors, and count as no false alarm."""

    @property
    def name(self) -> str:
        return Path(self.file).stem


class Outcome(msgspec.Struct, frozen=True):
    """The answer on one run, and whether it is right."""

    program: Program
    cured: bool
    answer: Answer
    seconds: float

    @property
    def wanted(self) -> str:
        """The finding that must be first; `none`: there must be none."""
        return "none" if self.cured else self.program.fault

    @property
    def found(self) -> str:
        if self.answer.refused:
            return "refused"
        about = [
            one.id for one in self.answer.findings if one.id not in ENVIRONMENT and one.id not in self.program.allowed
        ]
        return about[0] if about else "none"

    @property
    def right(self) -> bool:
        return self.found == self.wanted

    @property
    def place_found(self) -> bool | None:
        """Whether the place is named; `None` if none is wanted."""
        if not self.program.place or self.cured or not self.answer.findings:
            return None
        text = repr(self.answer.findings[0])
        return self.program.place in text


def programs() -> Iterator[Program]:
    """All programs, of all manifests."""
    for manifest in sorted(HERE.glob("programs_*.toml")):
        found = tomllib.loads(manifest.read_text(encoding="utf-8"))
        tables = found.values() if not isinstance(found.get("program"), list) else found["program"]
        for table in tables:
            known = {name: value for name, value in table.items() if name in Program.__struct_fields__}
            yield msgspec.convert(known, Program)


def run(program: Program, arguments: list[str], out: Path) -> None:
    """Runs a program under `stepscope run`, each rank of a job under its own."""
    script = HERE / "programs" / Path(program.file).name
    traced = [sys.executable, "-m", "stepscope", "run", "--quiet", "--out", str(out), str(script), *arguments]
    if program.ranks > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", "--no-python"]
        traced = [sys.executable, *launch, "--nproc-per-node", str(program.ranks), *traced]
    done = subprocess.run(traced, cwd=out.parent, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{program.name} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def judge(program: Program, out: Path, *, cured: bool, recorded: bool = False) -> Outcome:
    """Runs the program, unless its run is there already, and explains the run."""
    if not recorded:
        run(program, (program.cured or []) if cured else program.arguments, out)
    begin = time.perf_counter()
    answer = explain(out)
    return Outcome(program, cured, answer, time.perf_counter() - begin)


def line(outcome: Outcome) -> str:
    """A row of the table."""
    others = ", ".join(one.id for one in outcome.answer.findings[1:])
    place = {None: "", True: "yes", False: "no"}[outcome.place_found]
    mark = "right" if outcome.right else "**wrong**"
    name = f"{outcome.program.name}{' (cured)' if outcome.cured else ''}"
    return f"| {name} | {outcome.wanted} | {outcome.found} | {others} | {place} | {mark} | {outcome.seconds:.1f} |"


HEAD = "| program | planted | first finding | others | place named | | seconds to explain |\n| --- | --- | --- | --- | --- | --- | ---: |"


def main() -> int:
    """Runs the programs, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keep the runs there")
    parser.add_argument("--recorded", action="store_true", help="judge the runs that are there, and run nothing")
    parser.add_argument("--markdown", type=Path, help="put the table into a page, too, where that has one")
    parser.add_argument("--faults-only", action="store_true")
    options = parser.parse_args()
    if options.markdown is not None and options.names:
        parser.error("--markdown takes all programs")
    wrong = 0
    rows: list[str] = []

    def report(row: str) -> None:
        rows.append(row)
        print(row, flush=True)

    print(HEAD, flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as room:
        for program in programs():
            if options.names and program.name not in options.names:
                continue
            for cured in (False, True) if program.cured is not None and not options.faults_only else (False,):
                for number in range(options.times):
                    out = (options.out or Path(room)) / f"{program.name}{'-cured' if cured else ''}-{number}"
                    try:
                        outcome = judge(program, out.absolute(), cured=cured, recorded=options.recorded)
                    except Exception as error:
                        why = " ".join(str(error).split())[-300:]
                        report(f"| {program.name} | {program.fault} | failed: {why} | | | **wrong** | |")
                        wrong += 1
                        continue
                    wrong += not outcome.right
                    report(line(outcome))
    if options.markdown is not None:
        page = options.markdown.read_text(encoding="utf-8")
        before, begin, rest = page.partition("<!-- last try -->\n")
        _, end, after = rest.partition("<!-- end -->")
        table = "\n".join([HEAD, *rows, ""])
        options.markdown.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
