"""A container has no locale: standard output takes ASCII only.

Right: the commands print what they can, with the exit status that they have elsewhere.
"""

import os
import subprocess
import sys
import tempfile

TRAIN = """
import stepscope as sc
with sc.span("größe µs 日本"):
    pass
for n in range(20):
    sc.counter("ü", n)
print("trained")
"""
faults = []
with tempfile.TemporaryDirectory() as folder:
    open(f"{folder}/train.py", "w", encoding="utf-8").write(TRAIN)
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    for what in (
        ["run", "--out", "run", "train.py"],
        ["convert", "run", "t.json"],
        ["convert", "run", "tµ.json"],
        ["merge", "run", "--out", "m.json"],
        ["run", "--help"],
        ["demo"],
    ):
        command = [sys.executable, "-m", "stepscope", *what]
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, env=environment)
        plain = subprocess.run(command, cwd=folder, capture_output=True, timeout=120)
        if done.returncode != plain.returncode:
            faults.append(f"{what}: exit {done.returncode}, else {plain.returncode}: {done.stderr[-300:]!r}")
        if b"UnicodeEncodeError" in done.stderr:
            faults.append(f"{what}: UnicodeEncodeError")
print("WRONG: " + "; ".join(faults) if faults else "ok: all print what they can")
sys.exit(bool(faults))
