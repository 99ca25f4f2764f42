"""Fuzzes one target, or each in turn, with atheris: python -m tests.stress.fuzz [TARGET ...] [--seconds N] [--corpus DIR]."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

MEMORY_MB = 4096
"""A target that takes more is a finding."""
LONGEST_S = 20
"""So is one that takes longer for one input."""


def fuzz(target: str, seconds: int, corpus: Path) -> None:
    """Runs the fuzzer in this process; it ends the process, with an error if it found something."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["stepscope"]):
        targets = importlib.import_module("tests.stress.fuzz.targets")
        seeds = importlib.import_module("tests.stress.fuzz.seeds")
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds.seeds(target):
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-timeout={LONGEST_S}",
        "-max_len=16384",
        f"-artifact_prefix={corpus}/../{target}-",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], targets.TARGETS[target])
    atheris.Fuzz()


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"), help="where inputs are kept")
    arguments = parser.parse_args()
    if len(arguments.targets) == 1:
        fuzz(arguments.targets[0], arguments.seconds, arguments.corpus / arguments.targets[0])
        return 0
    targets = importlib.import_module("tests.stress.fuzz.targets")
    names = arguments.targets or list(targets.TARGETS)
    for name in [name for name in names if not all(map(_is_there, targets.NEEDS.get(name, ())))]:
        print(f"left out {name}: it needs {', '.join(targets.NEEDS[name])}")
        names.remove(name)
    rest = ["--seconds", str(arguments.seconds), "--corpus", str(arguments.corpus)]
    codes = {
        name: subprocess.run([sys.executable, "-m", "tests.stress.fuzz", name, *rest], check=False) for name in names
    }
    failed = [name for name, done in codes.items() if done.returncode]
    print(f"fuzzed {', '.join(names)}: {'found something in ' + ', '.join(failed) if failed else 'nothing found'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
